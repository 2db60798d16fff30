"""What a case of the corpus is."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Case:
    """An input that a user may come with.

    Attributes:
        name: What is odd about it.
        make: Makes it in an empty folder and returns its path, or the words of the command line.
        error: Pattern of the whole message after ``error: ``, ``{folder}`` being the folder; None: accepted.
    """

    name: str
    make: Callable[[Path], Path | list[str]]
    error: str | None = None


def write_manifest(folder: Path, *rows: dict) -> Path:
    """Write a manifest of whole lines."""
    path = folder / "train.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path
