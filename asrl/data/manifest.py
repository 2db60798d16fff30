"""This module is the only place that opens manifests: files with one utterance per line."""

import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import numpy as np
from jaxtyping import Int64
from tqdm import tqdm

from asrl.data.cache import building, cached_path, file_stamp
from asrl.data.lines import LineTable, ManifestLines, line_table, open_file, scan
from asrl.data.shapes import SHAPES, parse_line
from asrl.data.sources import Source, find_source
from asrl.errors import UserError
from asrl.text import normalize_text
from asrl.utterance import Utterance

# A smaller manifest is checked in a second or two: it is checked every time, and nothing of it is kept.
REMEMBERED_BYTES = 2**23
VERSION = "1"  # of what is kept


@dataclass(frozen=True)
class Checks:
    """What must hold for every line besides being laid out well and having a key of its own.

    Attributes:
        audio: The audio file exists.
        text: There is a transcript.
        words: The transcript has letters or digits.
    """

    audio: bool = True
    text: bool = True
    words: bool = True


class Manifest(Sequence[Utterance]):
    """Utterances that have been checked, read from their file one by one as they are asked for.

    Args:
        lines: The lines of the manifest.
    """

    def __init__(self, lines: ManifestLines) -> None:
        self.lines = lines

    def __len__(self) -> int:
        return len(self.lines)

    @overload
    def __getitem__(self, index: int) -> Utterance: ...

    @overload
    def __getitem__(self, index: slice) -> list[Utterance]: ...

    def __getitem__(self, index: int | slice) -> Utterance | list[Utterance]:
        positions = range(len(self))[index]
        if isinstance(positions, range):
            return [self.lines.read(position) for position in positions]
        return self.lines.read(positions)


def read_manifest(
    path: str | Path,
    *,
    format: str = "auto",
    check_audio: bool = True,
    allow_empty_text: bool = False,
    require_text: bool = True,
) -> Manifest:
    """Open data in any format and check every line. That a large manifest is fine is remembered.

    Our own manifests are JSONL with the columns ``key`` (unique), ``audio`` (relative to the manifest's
    folder) and ``text``, and if wanted the lists of words ``hotwords`` and ``distractors``, a stretch of the
    file, ``start`` and ``duration`` in seconds, and a ``channel``. All other columns are kept in
    ``Utterance.columns``. Blank lines are skipped.

    Args:
        path: A manifest, or a folder; see ``sources.find_source``.
        format: One of ``sources.FORMATS``.
        check_audio: Whether every audio file must exist.
        allow_empty_text: Whether a text may have no letters or digits, for recordings without speech.
        require_text: Whether every line must have a text; without one the transcript is empty.

    Raises:
        UserError: The manifest cannot be used; the message names the first offending line.
    """
    source = find_source(path, format)
    checks = Checks(audio=check_audio, text=require_text, words=require_text and not allow_empty_text)
    with open_file(source) as file:
        size = os.fstat(file.fileno()).st_size
    if size < REMEMBERED_BYTES:
        return Manifest(ManifestLines(source, _check_lines(source, checks), require_text=require_text))
    kept = cached_path(source.file, VERSION, file_stamp(source.file), source.shape, str(checks))
    table = kept.with_name(f"{kept.name}.npy")
    with building(table):
        if not _is_intact(table):
            unfinished = table.with_name(f"{kept.name}.writing.npy")
            np.save(unfinished, _check_lines(source, checks))
            os.replace(unfinished, table)
    return Manifest(ManifestLines(source, table, require_text=require_text))


def check_utterance(utterance: Utterance, checks: Checks) -> None:
    """Check what a line says.

    Raises:
        UserError: Names the line and the column.
    """
    if checks.words and not normalize_text(utterance.transcript):
        raise UserError(
            f"{utterance.place}: column 'text' has no letters or digits, got {utterance.transcript!r}"
        )
    if checks.audio and not os.path.isfile(utterance.audio):
        raise UserError(
            f"{utterance.place}: audio file {utterance.audio} does not exist; "
            "a relative path starts at the manifest's folder"
        )


def find_duplicates(hashes: Int64[np.ndarray, " lines"]) -> Iterator[tuple[int, int]]:
    """Yield pairs of lines ``(earlier, later)`` whose keys have the same hash, sorted by the later one."""
    order = np.argsort(hashes, kind="stable")
    repeated = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
    pairs = zip(order[repeated].tolist(), order[repeated + 1].tolist(), strict=True)
    yield from sorted(pairs, key=lambda pair: pair[1])


def _is_intact(table: Path) -> bool:
    """Whether a table was written to its end."""
    try:
        np.load(table, mmap_mode="r")
    except (OSError, EOFError, ValueError):
        return False
    return True


def _check_lines(source: Source, checks: Checks) -> LineTable:
    """Check all lines and say where they begin.

    Raises:
        UserError: Names the first line that is wrong.
    """
    offsets, numbers, hashes = array("q"), array("q"), array("q")
    shape, folder = SHAPES[source.shape], source.file.parent
    failure = None
    with open_file(source) as file:
        size = os.fstat(file.fileno()).st_size
        bar = tqdm(
            total=size, desc=f"checking {source.path}", unit="B", unit_scale=True, leave=False, delay=1
        )
        for offset, number, raw in scan(file):
            try:
                place = f"{source.path}:{number}"
                utterance = parse_line(raw, shape, place, folder, require_text=checks.text)
                check_utterance(utterance, checks)
            except UserError as error:
                failure = error  # to be raised unless an earlier line repeats a key
                break
            offsets.append(offset)
            numbers.append(number)
            hashes.append(hash(utterance.key))
            bar.update(len(raw))
        bar.close()
    if offsets:
        lines = ManifestLines(source, line_table(source, offsets, numbers), require_text=checks.text)
        _refuse_duplicates(lines, np.frombuffer(hashes, dtype=np.int64))
    if failure is not None:
        raise failure
    return line_table(source, offsets, numbers)


def _refuse_duplicates(lines: ManifestLines, hashes: Int64[np.ndarray, " lines"]) -> None:
    for earlier, later in find_duplicates(hashes):
        first, second = lines.read(earlier), lines.read(later)
        if first.key == second.key:
            line = first.place.rpartition(":")[2]
            raise UserError(f"{second.place}: key {second.key!r} was already used on line {line}")
