"""This module is the only place that takes checked values out of a line of JSON."""

import json
import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from asrl.errors import UserError
from asrl.registry import nearest

Columns = Mapping[str, Any]
HALF_CHARACTER = re.compile(rb"\\u[dD][89a-fA-F]")  # perhaps: two in a row may be a whole one


def decode_line(raw: bytes, place: str) -> dict[str, Any]:
    """Decode one line into its columns.

    Raises:
        UserError: It is not one JSON object in UTF-8.
    """
    text = decode_text(raw, place)
    try:
        columns = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{place}: not valid JSON at column {error.colno}: {error.msg}") from error
    except (ValueError, RecursionError) as error:  # a number of more than 4300 digits, very deep nesting
        raise UserError(f"{place}: not valid JSON: {error}") from error
    if not isinstance(columns, dict):
        raise UserError(f"{place}: a line must be one JSON object, got {shorten(columns)}")
    if half := HALF_CHARACTER.search(raw) and _find_half_character(columns):
        raise UserError(
            f"{place}: \\u{ord(half):04x} is half a character and cannot be written to a file; "
            "write characters beyond \\uffff as they are, or as two such halves"
        )
    return columns


def _find_half_character(columns: Columns) -> str | None:
    try:
        json.dumps(columns, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        return error.object[error.start]
    return None


def decode_text(raw: bytes, place: str) -> str:
    """Decode one line of text.

    Raises:
        UserError: It is not encoded in UTF-8.
    """
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{place}: a manifest is encoded in UTF-8, byte {error.start + 1} of this line is "
            f"0x{raw[error.start]:02x}; convert the file, e.g. with iconv"
        ) from error


def read_string(columns: Columns, name: str, place: str, *, known: Collection[str] = ()) -> str:
    """Take a string.

    Args:
        columns: The line.
        name: The column.
        place: ``file:line``.
        known: Columns that were not misspelt.

    Raises:
        UserError: The column is missing or holds something else.
    """
    if name not in columns:
        others = set(columns) - set(known)
        raise UserError(f"{place}: column {name!r} is missing{nearest(name, others) if others else ''}")
    value = columns[name]
    if not isinstance(value, str):
        raise UserError(f"{place}: column {name!r} must be a string, got {shorten(value)}")
    return value


def read_name(columns: Columns, name: str, place: str, *, known: Collection[str] = ()) -> str:
    """Take a string that is not empty.

    Raises:
        UserError: As ``read_string``, or it is empty.
    """
    value = read_string(columns, name, place, known=known)
    if not value:
        raise UserError(f"{place}: column {name!r} is empty")
    return value


def read_words(columns: Columns, name: str, place: str) -> tuple[str, ...]:
    """Take a list of words, empty if there is no such column.

    Raises:
        UserError: The column holds something else.
    """
    words = columns.get(name)
    if words is None:
        return ()
    if not isinstance(words, list) or not all(isinstance(word, str) and word.strip() for word in words):
        raise UserError(
            f'{place}: column {name!r} must be a list of words such as ["one", "two"], got {shorten(words)}'
        )
    return tuple(words)


def read_seconds(columns: Columns, name: str, place: str, *, above_zero: bool = False) -> float | None:
    """Take a number of seconds, None if there is none.

    Raises:
        UserError: The column holds something else, or a time that cannot be.
    """
    value = columns.get(name)
    if value is None:
        return None
    # bool is an int to Python, and its JSON reader takes NaN and Infinity.
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"{place}: column {name!r} must be a number of seconds, got {shorten(value)}")
    if value < 0 or (above_zero and value == 0):
        rule = "above" if above_zero else "at least"
        raise UserError(f"{place}: column {name!r} must be {rule} 0 seconds, got {shorten(value)}")
    return float(value)


def read_channel(columns: Columns, name: str, place: str) -> int | None:
    """Take the number of a channel, None if there is none.

    Raises:
        UserError: The column holds something else.
    """
    value = columns.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UserError(
            f"{place}: column {name!r} must be the number of a channel, the first being 0, "
            f"got {shorten(value)}"
        )
    return value


def shorten(value: object) -> str:
    """Word a value for an error message."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "..."
