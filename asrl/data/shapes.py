"""This module is the only place that knows how the lines of JSON manifests are laid out."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asrl.data.columns import (
    Columns,
    decode_line,
    read_channel,
    read_name,
    read_seconds,
    read_string,
    read_words,
    shorten,
)
from asrl.errors import UserError
from asrl.utterance import Utterance

OPTIONAL = ("hotwords", "distractors", "start", "channel")
ANSWER = "messages[assistant]"
PLACE = "place"  # column of converted manifests: where the line comes from


@dataclass(frozen=True)
class Shape:
    """Layout of a line.

    Attributes:
        key: Column with the key.
        audio: Column with the audio file, relative to the manifest's folder.
        text: Column with the transcript.
        prepare: Turns ``(columns, place)`` into the columns named above, where they are hidden deeper.
        signature: Columns that a line is recognised by.
        place: Column that says where the line comes from, in converted manifests.
    """

    key: str
    audio: str
    text: str
    prepare: Callable[[Columns, str], Columns]
    signature: tuple[str, ...]
    place: str | None = None


def parse_line(raw: bytes, shape: Shape, place: str, folder: Path, *, require_text: bool = True) -> Utterance:
    """Read one line.

    ``start`` and ``duration`` (seconds) name a stretch of the file. Without ``start`` a ``duration`` only
    describes the recording and stays in ``Utterance.columns`` with all columns that have no meaning here.

    Args:
        raw: The line.
        shape: Its layout.
        place: ``file:line``.
        folder: Where a relative path of an audio file starts.
        require_text: Whether there must be a transcript; without one it is empty.

    Raises:
        UserError: The line is not laid out like that, or a value cannot be; names the column.
    """
    line = decode_line(raw, place)
    place = line[shape.place] if shape.place else place
    columns = shape.prepare(line, place)
    known = {shape.key, shape.audio, shape.text, *OPTIONAL, shape.place}
    has_text = require_text or shape.text in columns
    start = read_seconds(columns, "start", place)
    if start is not None:
        known.add("duration")
    return Utterance(
        key=read_name(columns, shape.key, place, known=known),
        audio=str(folder / read_name(columns, shape.audio, place, known=known)),
        transcript=read_string(columns, shape.text, place, known=known) if has_text else "",
        hotwords=read_words(columns, "hotwords", place),
        distractors=read_words(columns, "distractors", place),
        columns={name: value for name, value in columns.items() if name not in known},
        place=place,
        start=start or 0.0,
        duration=None if start is None else read_seconds(columns, "duration", place, above_zero=True),
        channel=read_channel(columns, "channel", place),
    )


def to_columns(utterance: Utterance) -> dict[str, Any]:
    """The columns of an utterance in our own layout; reading them gives the utterance back."""
    stretch: dict[str, Any] = {}
    if utterance.start or utterance.duration is not None:
        stretch = {"start": utterance.start, "duration": utterance.duration}
    words = {"hotwords": list(utterance.hotwords), "distractors": list(utterance.distractors)}
    optional = {**words, **stretch, "channel": utterance.channel}
    ours = {
        "key": utterance.key,
        "audio": utterance.audio,
        "text": utterance.transcript,
        **{name: value for name, value in optional.items() if value not in (None, [])},
    }
    return {**ours, **utterance.columns, **ours}  # ours first, and ours where a foreign column has the name


def detect_shape(first_line: bytes) -> str:
    """Name the layout whose columns a line has most of; ours where none stands out."""
    try:
        columns = decode_line(first_line, "")
    except UserError:  # to be reported with its place by whoever reads the line
        return "asrl"
    return max(FORMATS_OF_LINES, key=lambda name: sum(c in columns for c in SHAPES[name].signature))


def _as_it_is(columns: Columns, place: str) -> Columns:
    return columns


def _with_duration(columns: Columns, place: str) -> Columns:
    """WeNet gives the ``end`` of a segment."""
    start, end = read_seconds(columns, "start", place), read_seconds(columns, "end", place)
    if start is None or end is None:
        return columns
    if end <= start:
        raise UserError(f"{place}: column 'end' must be after 'start' = {start:g} s, got {end:g} s")
    return {name: value for name, value in columns.items() if name != "end"} | {"duration": end - start}


def _from_messages(columns: Columns, place: str) -> Columns:
    """Make ms-swift's chat plain.

    The transcript is what the assistant says last, or else the column ``solution``; the key is the audio path
    as written, unless there is a column ``key``.
    """
    audios = columns.get("audios")
    if not isinstance(audios, list) or len(audios) != 1 or not isinstance(audios[0], str):
        raise UserError(
            f"{place}: column 'audios' must be a list with the path of one audio file, got {shorten(audios)}"
        )
    flat = {name: value for name, value in columns.items() if name not in ("messages", "audios", "solution")}
    flat = {"key": audios[0], **flat, "audio": audios[0]}
    answers = list(_answers(columns.get("messages"), place))
    if answers:
        flat[ANSWER] = answers[-1]
    elif "solution" in columns:
        flat[ANSWER] = read_string(columns, "solution", place)
    return flat


def _answers(messages: object, place: str) -> Iterator[str]:
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise UserError(
            f"{place}: column 'messages' must be a list of objects with 'role' and 'content', "
            f"got {shorten(messages)}"
        )
    for message in messages:
        if message.get("role") == "assistant":
            yield read_string(message, "content", f"{place}: messages")


SHAPES = {
    "asrl": Shape("key", "audio", "text", _as_it_is, signature=("key", "audio", "text")),
    "wenet": Shape("key", "wav", "txt", _with_duration, signature=("key", "wav", "txt")),
    "funasr": Shape("key", "source", "target", _as_it_is, signature=("key", "source", "target")),
    "swift": Shape("key", "audio", ANSWER, _from_messages, signature=("messages", "audios", "solution")),
    # What folders are turned into; people do not write it.
    "converted": Shape("key", "audio", "text", _as_it_is, signature=(), place=PLACE),
}
FORMATS_OF_LINES = ("asrl", "wenet", "funasr", "swift")
