"""This module is the only place that writes the small files which a crash must not leave half written."""

import os
from contextlib import suppress
from pathlib import Path

from asrl.errors import UserError


def replace_text(path: Path, text: str) -> None:
    """Give a file new content: after a crash it has the old or the new one, on the disk.

    Raises:
        UserError: The disk is full or not writable; the old content is intact.
    """
    temporary = path.with_name(f".{path.name}.writing")
    try:
        temporary.write_text(text, encoding="utf-8")
        sync(temporary)
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):  # where the folder is no folder
            temporary.unlink(missing_ok=True)
        raise cannot_write(path, error) from error


def sync(path: Path) -> None:
    """Wait until a file or a directory is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cannot_write(path: Path, error: OSError) -> UserError:
    """The error to raise where a file of a run cannot be written."""
    return UserError(
        f"{path}: cannot write ({error.strerror}); make room, and go on with resume=DIRECTORY_OF_THE_RUN"
    )
