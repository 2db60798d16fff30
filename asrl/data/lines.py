"""This module is the only place that reads single lines of a manifest's file."""

import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Int64

from asrl.data.cache import file_stamp
from asrl.data.columns import decode_line
from asrl.data.shapes import SHAPES, parse_line
from asrl.data.sources import Source, find_source, skip_byte_order_mark
from asrl.errors import UserError
from asrl.utterance import Utterance

LineTable = Int64[np.ndarray, "lines 2"]  # where each line begins, in bytes, and its number


class ManifestLines:
    """The lines of a manifest, right or wrong, read from its file one by one as they are asked for.

    Only the file, and a table of where its lines begin, are held open, so that worker processes share
    millions of lines at no cost.

    Args:
        source: Where the lines are.
        table: Where they begin; as a path: of a file to map into memory.
        require_text: Whether every line must have a transcript.
    """

    def __init__(self, source: Source, table: LineTable | Path, *, require_text: bool = True) -> None:
        self.source = source
        self.require_text = require_text
        self._table = table
        self._stamp = file_stamp(source.file)
        self._open()

    def _open(self) -> None:
        self._file = self.source.file.open("rb", buffering=0)
        is_mapped = isinstance(self._table, Path)
        self._lines = np.load(self._table, mmap_mode="r") if is_mapped else self._table
        self._folder = self.source.file.parent

    def __getstate__(self) -> dict[str, Any]:
        """What a spawned worker gets: the map by its name, not its content."""
        return {name: value for name, value in vars(self).items() if name not in ("_file", "_lines")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()

    def __len__(self) -> int:
        return len(self._lines)

    def read(self, index: int) -> Utterance:
        """Read the line at a position.

        Raises:
            UserError: The line is wrong, or the file was changed in the meantime.
        """
        return parse_line(
            self._read_line(index),
            SHAPES[self.source.shape],
            self._place(index),
            self._folder,
            require_text=self.require_text,
        )

    def place(self, index: int) -> str:
        """``file:line`` of a position, in the file that people wrote."""
        column = SHAPES[self.source.shape].place
        return decode_line(self._read_line(index), "")[column] if column else self._place(index)

    def _place(self, index: int) -> str:
        return f"{self.source.path}:{self._lines[index, 1]}"

    def _read_line(self, index: int) -> bytes:
        """Read a line; not through a map, which would kill the process if the file shrank."""
        descriptor = self._file.fileno()
        status = os.fstat(descriptor)
        if f"{status.st_size}-{status.st_mtime_ns}" != self._stamp:
            raise UserError(
                f"{self.source.file}: changed while it was in use; write changes to a new file and rename it"
            )
        first = int(self._lines[index, 0])
        end = int(self._lines[index + 1, 0]) if index + 1 < len(self) else status.st_size
        return os.pread(descriptor, end - first, first).split(b"\n", 1)[0]


def open_lines(path: str | Path, *, format: str = "auto") -> ManifestLines:
    """Open data in any format without looking at what its lines hold.

    Args:
        path: A manifest, or a folder; see ``sources.find_source``.
        format: One of ``sources.FORMATS``.

    Raises:
        UserError: It cannot be read, or has no lines.
    """
    source = find_source(path, format)
    offsets, numbers = array("q"), array("q")
    with open_file(source) as file:
        for offset, number, _ in scan(file):
            offsets.append(offset)
            numbers.append(number)
    return ManifestLines(source, line_table(source, offsets, numbers))


def open_file(source: Source) -> BinaryIO:
    """Open the file behind its byte order mark.

    Raises:
        UserError: It cannot be read.
    """
    try:
        file = source.file.open("rb")
    except OSError as error:
        raise UserError(f"{source.path}: cannot read the manifest ({error.strerror})") from error
    skip_byte_order_mark(file)
    return file


def scan(file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """Yield offset, number and content of every line that is not blank.

    A file is cut at newlines only; str.splitlines would also cut at U+2028, which JSON allows inside strings.
    """
    offset = file.tell()
    for number, raw in enumerate(file, start=1):
        if raw.strip():
            yield offset, number, raw
        offset += len(raw)


def line_table(source: Source, offsets: "array[int]", numbers: "array[int]") -> LineTable:
    """Put the columns of a table side by side.

    Raises:
        UserError: There are no lines.
    """
    if not offsets:
        raise UserError(f"{source.path}: the manifest has no utterances")
    return np.stack([np.frombuffer(column, dtype=np.int64) for column in (offsets, numbers)], axis=1)
