"""This module is the only place that reads and writes the JSON-lines files of a run."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asrl.errors import UserError


class JsonLines:
    """An append-only file of one JSON object per line that a resumed run can cut back."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def truncate_after(self, step: int) -> None:
        """Drop lines of later steps, and a last line that a kill cut short."""
        if not self.path.exists():
            return
        kept = [row for row in read_json_lines(self.path) if row["step"] <= step]
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text("".join(_line(row) for row in kept), encoding="utf-8")
        os.replace(temporary, self.path)

    def append(self, *records: Mapping[str, Any]) -> None:
        """Write the records in one go."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(_line(record) for record in records))


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON objects; a last line without a newline was cut by a kill and is left out.

    Raises:
        UserError: The file does not exist, or a line is not JSON.
    """
    if not path.exists():
        raise UserError(f"{path}: no such file")
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n")[:-1], start=1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise UserError(f"{path}:{number}: not a JSON object ({error})") from error
    return rows
