"""This module is the only place that reads and writes the JSON-lines files of a run."""

import codecs
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asrl.errors import UserError
from asrl.files import cannot_write, replace_text


class JsonLines:
    """An append-only file of one JSON object per line that a resumed run can cut back."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def truncate_after(self, step: int) -> None:
        """Drop lines of later steps, and a last line that a kill or a full disk cut short.

        Raises:
            UserError: The file cannot be read or written, or a line is not one of a run.
        """
        if not self.path.exists():
            return
        rows = read_json_lines(self.path)
        for number, row in enumerate(rows, start=1):
            if not isinstance(row.get("step"), int):
                raise UserError(
                    f"{self.path}:{number}: a line of a run has a whole number 'step', "
                    f"got {row.get('step')!r}; delete the line"
                )
        kept = [row for row in rows if row["step"] <= step]
        replace_text(self.path, "".join(_line(row) for row in kept))

    def append(self, *records: Mapping[str, Any]) -> None:
        """Write the records in one go.

        Raises:
            UserError: The disk is full or not writable; a line cut short is left out by readers.
        """
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(_line(record) for record in records))
        except OSError as error:
            raise cannot_write(self.path, error) from error


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"


def read_json_lines(path: Path, *, may_be_cut: bool = True) -> list[dict[str, Any]]:
    """Read a file of JSON objects.

    Args:
        path: The file.
        may_be_cut: It is one of ours, and a kill has cut a last line without a newline: that is left out.
            Otherwise anyone may have written it, with blank lines, a byte order mark, or no last newline.

    Raises:
        UserError: The file cannot be read, or a line is not a JSON object.
    """
    if not path.exists():
        raise UserError(f"{path}: no such file")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot read ({error.strerror})") from error
    # Cut into lines before decoding: a kill may have cut a character in two.
    lines = content.split(b"\n")
    if may_be_cut:
        lines = lines[:-1]
    else:
        lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
    return [
        _parse(line, place=f"{path}:{number}")
        for number, line in enumerate(lines, start=1)
        if may_be_cut or line.strip()
    ]


def _parse(line: bytes, *, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # of the encoding too
        raise UserError(f"{place}: not a JSON object ({error})") from error
    if not isinstance(row, dict):
        raise UserError(f"{place}: not a JSON object, got {line[:40].decode('utf-8', 'replace')}")
    return row
