"""This module is the only place that reads Kaldi data folders."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asrl.data.columns import decode_text
from asrl.errors import UserError

FILES = ("wav.scp", "text", "segments", "utt2dur")
TO_THE_END = -1.0  # the end of a segment that lasts as long as its recording


def read_kaldi(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the utterances of a data folder as columns of our own manifests.

    ``wav.scp`` names the audio files; ``segments``, if there, cuts utterances out of them; ``text`` has the
    transcripts and may be absent; ``utt2dur``, if there, gives the durations of whole recordings.

    Raises:
        UserError: A line is wrong or does not fit the other files, or audio comes out of a pipe; names it.
    """
    recordings = dict(_read_pairs(folder / "wav.scp"))
    texts = _read_optional(folder / "text")
    if (folder / "segments").is_file():
        rows = _cut(folder / "segments", recordings)
    else:
        rows = _whole(folder, recordings, _read_optional(folder / "utt2dur"))
    for row in rows:
        if texts is not None:
            place, text = texts.pop(row["key"], (row["place"], None))
            if text is None:
                raise UserError(f"{place}: utterance {row['key']!r} has no line in {folder / 'text'}")
            row["text"] = text
        yield row
    for key, (place, _) in (texts or {}).items():
        raise UserError(f"{place}: utterance {key!r} has no audio: neither segments nor wav.scp has its line")


def _whole(
    folder: Path, recordings: dict[str, tuple[str, str]], durations: dict[str, tuple[str, str]] | None
) -> Iterator[dict[str, Any]]:
    for key, (place, audio) in recordings.items():
        row: dict[str, Any] = {"key": key, "audio": _find_file(audio, place, folder), "place": place}
        if durations is not None and key in durations:
            duration_place, value = durations[key]
            row["duration"] = _to_seconds(value, duration_place, "duration")
        yield row


def _cut(path: Path, recordings: dict[str, tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """Utterances of ``segments``: key, recording, start, end and perhaps a channel."""
    for key, (place, rest) in _read_pairs(path):
        fields = rest.split()
        if len(fields) not in (3, 4):
            raise UserError(f"{place}: a segment is KEY RECORDING START END [CHANNEL], got {key} {rest}")
        if fields[0] not in recordings:
            raise UserError(f"{place}: recording {fields[0]!r} has no line in {path.with_name('wav.scp')}")
        start, end = _to_seconds(fields[1], place, "start"), _to_seconds(fields[2], place, "end")
        audio_place, audio = recordings[fields[0]]
        row = {
            "key": key,
            "audio": _find_file(audio, audio_place, path.parent),
            "start": start,
            "place": place,
        }
        if end != TO_THE_END:
            if end <= start:
                raise UserError(
                    f"{place}: the end of a segment comes after its start, got {start:g} to {end:g} s"
                )
            row["duration"] = end - start
        if len(fields) == 4:
            if not fields[3].isdecimal():
                raise UserError(f"{place}: the channel of a segment is 0, 1, ..., got {fields[3]!r}")
            row["channel"] = int(fields[3])
        yield row


def _find_file(audio: str, place: str, folder: Path) -> str:
    """Return the path of an audio file: relative to the folder or, as in Kaldi, to where one works.

    Raises:
        UserError: It is a pipe or a part of an archive.
    """
    if audio.rstrip().endswith("|"):
        raise UserError(
            f"{place}: audio from a pipe is not supported, got {audio!r}; run the command once, write its "
            "output to a file and name that"
        )
    if re.search(r"\.ark:\d+$", audio):
        raise UserError(
            f"{place}: audio inside an archive is not supported, got {audio!r}; write it to files, e.g. with "
            "Kaldi's wav-copy"
        )
    if not (folder / audio).exists() and Path(audio).exists():
        return str(Path(audio).absolute())
    return audio


def _to_seconds(value: str, place: str, name: str) -> float:
    try:
        seconds = float(value)
    except ValueError as error:
        raise UserError(f"{place}: {name} must be a number of seconds, got {value!r}") from error
    if not 0 <= seconds < float("inf") and not (name == "end" and seconds == TO_THE_END):
        raise UserError(f"{place}: {name} must be at least 0 seconds, got {value}")
    return seconds


def _read_optional(path: Path) -> dict[str, tuple[str, str]] | None:
    return dict(_read_pairs(path)) if path.is_file() else None


def _read_pairs(path: Path) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield ``(key, (place, rest of the line))`` of every line of a file that is a map.

    Raises:
        UserError: The file cannot be read, a line has no key or a key has two lines.
    """
    line_of_key: dict[str, int] = {}
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                place = f"{path}:{number}"
                fields = decode_text(raw, place).split(maxsplit=1)
                if not fields:
                    continue
                key = fields[0]
                if key in line_of_key:
                    raise UserError(f"{place}: key {key!r} was already used on line {line_of_key[key]}")
                line_of_key[key] = number
                yield key, (place, "".join(fields[1:]).strip())
    except OSError as error:
        raise UserError(f"{path}: cannot read ({error.strerror})") from error
