"""This module is the only place that reads manifests: JSONL files with one utterance per line."""

import json
import os.path
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asrl.errors import UserError
from asrl.registry import nearest
from asrl.text import normalize_text
from asrl.utterance import Utterance

REQUIRED = ("key", "audio", "text")
OPTIONAL = ("hotwords", "distractors")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_manifest(
    path: str | Path, *, check_audio: bool = True, allow_empty_text: bool = False
) -> list[Utterance]:
    """Read a manifest.

    Every line is an object with the columns ``key`` (unique), ``audio`` (relative to the manifest's folder)
    and ``text``, and if wanted the lists of words ``hotwords`` and ``distractors``. All other columns are
    kept in ``Utterance.columns``. Blank lines are skipped.

    Args:
        path: The manifest.
        check_audio: Whether every audio file must exist.
        allow_empty_text: Whether a text may have no letters or digits, for recordings without speech.

    Raises:
        UserError: The manifest cannot be used; the message names the first offending line.
    """
    utterances: list[Utterance] = []
    line_of_key: dict[str, int] = {}
    # Split on newlines only: str.splitlines would also split at U+2028, which JSON allows inside strings.
    for number, raw in enumerate(_read_bytes(path).split(b"\n"), start=1):
        if not raw.strip():
            continue
        place = f"{path}:{number}"
        utterance = _parse_utterance(_parse_line(raw, place), place, Path(path).parent)
        if utterance.key in line_of_key:
            raise UserError(
                f"{place}: key {utterance.key!r} was already used on line {line_of_key[utterance.key]}"
            )
        if not allow_empty_text and not normalize_text(utterance.transcript):
            raise UserError(f"{place}: column 'text' has no letters or digits, got {utterance.transcript!r}")
        if check_audio and not os.path.isfile(utterance.audio):
            raise UserError(
                f"{place}: audio file {utterance.audio} does not exist; "
                "a relative path starts at the manifest's folder"
            )
        line_of_key[utterance.key] = number
        utterances.append(utterance)
    if not utterances:
        raise UserError(f"{path}: the manifest has no utterances")
    return utterances


def _read_bytes(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes().removeprefix(BYTE_ORDER_MARK)
    except OSError as error:
        raise UserError(f"{path}: cannot read the manifest ({error.strerror})") from error


def _parse_line(raw: bytes, place: str) -> dict[str, Any]:
    """Decode one line into its columns."""
    try:
        columns = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(
            f"{place}: a manifest is encoded in UTF-8, byte {error.start + 1} of this line is "
            f"0x{raw[error.start]:02x}; convert the file, e.g. with iconv"
        ) from error
    except json.JSONDecodeError as error:
        raise UserError(f"{place}: not valid JSON at column {error.colno}: {error.msg}") from error
    except (ValueError, RecursionError) as error:  # a number of more than 4300 digits, very deep nesting
        raise UserError(f"{place}: not valid JSON: {error}") from error
    if not isinstance(columns, dict):
        raise UserError(f"{place}: a line must be one JSON object, got {_shorten(columns)}")
    return columns


def _parse_utterance(columns: Mapping[str, Any], place: str, folder: Path) -> Utterance:
    key = _read_string(columns, "key", place)
    audio = _read_string(columns, "audio", place)
    if not key or not audio:
        raise UserError(f"{place}: column {'key' if not key else 'audio'!r} is empty")
    return Utterance(
        key=key,
        audio=str(folder / audio),
        transcript=_read_string(columns, "text", place),
        hotwords=_read_words(columns, "hotwords", place),
        distractors=_read_words(columns, "distractors", place),
        columns={name: value for name, value in columns.items() if name not in REQUIRED + OPTIONAL},
        place=place,
    )


def _read_string(columns: Mapping[str, Any], name: str, place: str) -> str:
    if name not in columns:
        others = set(columns) - set(REQUIRED + OPTIONAL)
        raise UserError(f"{place}: column {name!r} is missing{nearest(name, others) if others else ''}")
    value = columns[name]
    if not isinstance(value, str):
        raise UserError(f"{place}: column {name!r} must be a string, got {_shorten(value)}")
    return value


def _read_words(columns: Mapping[str, Any], name: str, place: str) -> tuple[str, ...]:
    words = columns.get(name)
    if words is None:
        return ()
    if not isinstance(words, list) or not all(isinstance(word, str) and word.strip() for word in words):
        raise UserError(
            f'{place}: column {name!r} must be a list of words such as ["one", "two"], got {_shorten(words)}'
        )
    return tuple(words)


def _shorten(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."
