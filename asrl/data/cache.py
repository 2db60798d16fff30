"""This module is the only place that knows where prepared data is kept between runs."""

import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from filelock import FileLock

from asrl.errors import UserError
from asrl.sampling import stable_hash

VARIABLE = "ASRL_CACHE"


def cache_folder() -> Path:
    """The folder named by ``ASRL_CACHE``, or else ``~/.cache/asrl``.

    Where that cannot be written, a folder that lasts as long as this process takes its place.
    """
    folder = Path(os.environ.get(VARIABLE) or os.path.expanduser("~/.cache/asrl"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return Path(_temporary_folder(folder, str(error.strerror)).name)
    return folder


@cache  # which keeps the folder: it is deleted with its object
def _temporary_folder(folder: Path, reason: str) -> tempfile.TemporaryDirectory[str]:
    warnings.warn(
        f"{folder}: cannot write here ({reason}), so manifests are prepared anew in every run; "
        f"set {VARIABLE} to another folder",
        stacklevel=4,
    )
    return tempfile.TemporaryDirectory(prefix="asrl-")


def cached_path(path: Path, *contents: str) -> Path:
    """Where to keep what was made of ``path``; another place if any of ``contents`` differs.

    Nothing there is ever changed or deleted, for runs that use it: people may empty the folder between runs.
    """
    name = f"{path.stem[:40]}-{stable_hash(str(path.resolve()), *contents):016x}"
    return cache_folder() / name


@contextmanager
def building(target: Path) -> Iterator[None]:
    """Keep other processes from making the same thing at the same time; they wait.

    Raises:
        UserError: What is made cannot be written.
    """
    with FileLock(target.with_name(f"{target.name}.lock")):
        try:
            yield
        except OSError as error:
            raise UserError(
                f"{target}: cannot write ({error.strerror}); make room, or set {VARIABLE} to another folder"
            ) from error


def file_stamp(path: Path) -> str:
    """Name what a file holds now, by its size and the time of its last change."""
    status = path.stat()
    return f"{status.st_size}-{status.st_mtime_ns}"
