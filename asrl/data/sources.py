"""This module is the only place that tells the formats of data apart, and makes manifests of folders."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from asrl.data.cache import building, cached_path, file_stamp
from asrl.data.huggingface import METADATA, SAVED, read_audio_folder, read_saved
from asrl.data.kaldi import FILES, read_kaldi
from asrl.data.shapes import FORMATS_OF_LINES, detect_shape
from asrl.errors import UserError

FORMATS = ("auto", *FORMATS_OF_LINES, "kaldi", "huggingface")
VERSION = "1"  # of what conversions look like
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Source:
    """A file with one JSON object per utterance and line.

    Attributes:
        file: The file.
        shape: Layout of its lines; see ``shapes.SHAPES``.
        path: What the user calls it.
    """

    file: Path
    shape: str
    path: Path


def find_source(path: str | Path, format: str = "auto") -> Source:
    """Find the lines of data in any format; folders are converted, once.

    Args:
        path: A JSONL or Parquet file, or a folder.
        format: One of ``FORMATS``; ``auto`` looks at the data.

    Raises:
        UserError: There is no such data, or it is not what it should be.
    """
    path = Path(path)
    if format == "auto":
        format = _detect(path)
    if format in FORMATS_OF_LINES:
        return Source(path, format, path)
    if format == "kaldi":
        _require_folder(path, "wav.scp", format)
        return Source(_convert(path, format, [path / name for name in FILES]), "converted", path)
    return Source(_convert(path, format, _huggingface_files(path)), "converted", path)


def skip_byte_order_mark(file: Any) -> int:
    """Move an open file behind its byte order mark, if it has one; return where that is."""
    if file.read(len(BYTE_ORDER_MARK)) != BYTE_ORDER_MARK:
        file.seek(0)
    return file.tell()


def _detect(path: Path) -> str:
    """Name the format of data.

    Raises:
        UserError: The path cannot be read or is no data.
    """
    if path.is_dir():
        if (path / "wav.scp").is_file():
            return "kaldi"
        _huggingface_files(path)
        return "huggingface"
    if path.suffix == ".parquet":
        return "huggingface"
    try:
        with path.open("rb") as file:
            skip_byte_order_mark(file)
            return detect_shape(next((line for line in file if line.strip()), b""))
    except OSError as error:
        raise UserError(f"{path}: cannot read the manifest ({error.strerror})") from error


def _require_folder(path: Path, name: str, format: str) -> None:
    if not (path / name).is_file():
        raise UserError(f"{path}: data.format={format} needs a folder with a file {name}; there is none")


def _huggingface_files(path: Path) -> list[Path]:
    """The files that say what a data set holds.

    Raises:
        UserError: There are none.
    """
    if path.is_file():
        return [path]
    for names in (*METADATA, "*.arrow", "*.parquet"):
        if files := sorted(path.glob(names)):
            return files
    splits = sorted(folder.name for folder in path.glob("*/") if _holds_data(folder))
    if splits:
        raise UserError(f"{path}: name one of the folders in it: {', '.join(splits)}")
    raise UserError(
        f"{path}: not a folder of data: Kaldi's has wav.scp, one of Hugging Face's has "
        f"{', '.join(METADATA)}, {SAVED[0]} or *.parquet"
    )


def _holds_data(folder: Path) -> bool:
    return any(next(folder.glob(name), None) for name in ("wav.scp", *METADATA, "*.arrow", "*.parquet"))


def _convert(path: Path, format: str, files: Iterable[Path]) -> Path:
    """Make a manifest of our own, or find the one made before.

    Raises:
        UserError: The data cannot be used.
    """
    stamps = [f"{file.name}-{file_stamp(file)}" for file in files if file.is_file()]
    target = cached_path(path, VERSION, format, *stamps)
    with building(target):
        if not target.is_dir():
            unfinished = target.with_name(f"{target.name}.writing")
            shutil.rmtree(unfinished, ignore_errors=True)  # left by a kill
            unfinished.mkdir()
            _write(unfinished / "manifest.jsonl", path, _rows(path, format, unfinished, target))
            os.replace(unfinished, target)
    return target / "manifest.jsonl"


def _rows(path: Path, format: str, unfinished: Path, target: Path) -> Iterator[dict[str, Any]]:
    if format == "kaldi":
        yield from read_kaldi(path)
    elif path.is_dir() and any((path / name).is_file() for name in METADATA):
        yield from read_audio_folder(path)
    else:
        for row in read_saved(path, audio_folder=unfinished / "audio"):
            audio = Path(row["audio"])
            is_ours = audio.is_relative_to(unfinished)
            yield row | {"audio": str(target / audio.relative_to(unfinished) if is_ours else audio)}


def _write(manifest: Path, path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows, with absolute paths of audio files: the manifest does not lie beside them."""
    folder = path if path.is_dir() else path.parent
    with manifest.open("w", encoding="utf-8") as file:
        for row in tqdm(rows, desc=f"converting {path}", unit=" utterances", leave=False, delay=1):
            row["audio"] = os.path.abspath(folder / row["audio"])
            file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
