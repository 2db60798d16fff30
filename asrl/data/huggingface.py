"""This module is the only place that reads audio data sets in the formats of Hugging Face ``datasets``."""

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from asrl.data.columns import decode_line, read_name, shorten
from asrl.errors import UserError

METADATA = ("metadata.jsonl", "metadata.csv")
SAVED = ("dataset_info.json", "state.json")  # what ``Dataset.save_to_disk`` leaves beside the data
TEXTS = ("text", "transcription", "sentence", "transcript")
KEYS = ("key", "id")


def read_audio_folder(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the utterances of a folder of audio files with ``metadata.jsonl`` or ``metadata.csv``.

    The package ``datasets`` is not needed. The key is the column ``key`` or ``id``, or else the file name.

    Raises:
        UserError: A line is wrong; names it.
    """
    for place, columns in _read_metadata(folder):
        name = read_name(columns, "file_name", place)
        rest = {column: value for column, value in columns.items() if column != "file_name"}
        yield {**_row(rest, place, key=name), "audio": name}


def read_saved(path: Path, *, audio_folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the utterances of a Parquet file, a folder of them, or a folder written by ``save_to_disk``.

    Args:
        path: The file or folder.
        audio_folder: Where audio goes that is stored inside the data set.

    Raises:
        UserError: The package ``datasets`` is not installed, or the data cannot be used.
    """
    datasets = _import_datasets()
    table = _open_saved(datasets, path)
    audio = next((name for name, kind in table.features.items() if isinstance(kind, datasets.Audio)), None)
    if audio is None:
        raise UserError(
            f"{path}: the data set has no column of the type Audio, got {', '.join(table.features)}; "
            'use dataset.cast_column("audio", Audio())'
        )
    audio_folder.mkdir()
    for number, columns in enumerate(table.cast_column(audio, datasets.Audio(decode=False))):
        place, recording = f"{path}:{number}", columns.pop(audio)
        if recording is None:
            raise UserError(f"{place}: column {audio!r} has no audio")
        file = recording["path"]
        if recording["bytes"] is not None:
            file = str(audio_folder / f"{number:08d}{Path(file or 'a.wav').suffix}")
            Path(file).write_bytes(recording["bytes"])
        yield {**_row(columns, place, key=recording["path"] or f"{number:08d}"), "audio": file}


def _row(columns: Mapping[str, Any], place: str, *, key: str) -> dict[str, Any]:
    """Give the key and the transcript the names that they have in our own manifests."""
    keys = [str(columns[name]) for name in KEYS if columns.get(name) not in (None, "")]
    row = {**columns, "key": keys[0] if keys else key, "place": place}
    texts = [name for name in TEXTS if name in columns]
    if texts:
        row["text"] = row.pop(texts[0])
    return row


def _read_metadata(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield place and columns of every line."""
    path = next(folder / name for name in METADATA if (folder / name).is_file())
    try:
        if path.suffix == ".jsonl":
            with path.open("rb") as lines:
                for number, raw in enumerate(lines, start=1):
                    if raw.strip():
                        yield f"{path}:{number}", decode_line(raw, f"{path}:{number}")
        else:
            with path.open(encoding="utf-8-sig", newline="") as table:
                yield from _read_table(table, path)
    except OSError as error:
        raise UserError(f"{path}: cannot read ({error.strerror})") from error


def _read_table(table: Iterator[str], path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    reader = csv.DictReader(table, strict=True)
    try:
        for columns in reader:
            place = f"{path}:{reader.line_num}"
            if None in columns or None in columns.values():
                raise UserError(
                    f"{place}: a line must have the columns of the first one, got {shorten(columns)}"
                )
            yield place, columns
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path}:{reader.line_num + 1}: not a line of CSV in UTF-8: {error}") from error


def _import_datasets() -> ModuleType:
    try:
        import datasets  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise UserError(
            "data.format=huggingface: Parquet files and saved data sets need the package datasets; "
            "pip install 'asrl[hf]'"
        ) from error
    return datasets


def _open_saved(datasets: ModuleType, path: Path) -> Any:
    """Open what ``save_to_disk`` wrote, or Parquet files."""
    try:
        if all((path / name).is_file() for name in SAVED):
            return datasets.load_from_disk(str(path))
        files = [path] if path.is_file() else sorted(path.glob("*.parquet"))
        return datasets.Dataset.from_parquet([str(file) for file in files])
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise UserError(f"{path}: cannot open the data set ({' '.join(str(error).split())})") from error
