"""This module is the only place that copies a run to a second folder while it goes on."""

import os
import shutil
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

from tqdm import tqdm

from asrl.checkpoint import (
    CHECKSUMS,
    damage,
    list_checkpoints,
    new_directory,
    read_pointer,
    write_pointer,
)
from asrl.errors import UserError


class Mirror:
    """A copy of a run's checkpoints, logs and evaluations, which a run can be resumed from.

    A thread makes the copy equal to the run each time ``update`` is called; training waits for it only in
    ``close``. A failure is a warning and is tried again at the next update.

    Args:
        run_dir: The run.
        copy: Directory of the copy; created if it does not exist.
    """

    def __init__(self, run_dir: Path, copy: Path) -> None:
        self.run_dir = run_dir
        self.copy = copy
        self._is_due = threading.Event()
        self._is_closing = False
        self._said = ""
        self._thread = threading.Thread(target=self._work, name="copy of checkpoints", daemon=True)
        self._thread.start()

    def update(self) -> None:
        """Have the copy brought up to date, without waiting for it."""
        self._is_due.set()

    def close(self) -> None:
        """Bring the copy up to date and wait for it."""
        self._is_closing = True
        self._is_due.set()
        self._thread.join()

    def __enter__(self) -> "Mirror":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        is_last = False
        while not is_last:
            self._is_due.wait()
            self._is_due.clear()
            is_last = self._is_closing
            try:
                synchronise(self.run_dir, self.copy)
            except (OSError, UserError) as error:
                self._warn(f"{self.copy}: the copy of the run is not up to date ({error}); training goes on")

    def _warn(self, text: str) -> None:
        """Say it once: a second folder that is full stays full."""
        if text != self._said:
            tqdm.write(f"warning: {text}", file=sys.stderr)
        self._said = text


def synchronise(run_dir: Path, copy: Path) -> None:
    """Make a copy equal to a run, except for what cannot be resumed from: it gets nothing that is damaged.

    The newest checkpoint comes first, and an old one goes only after the new ones have come.

    Raises:
        OSError: The copy cannot be written.
        UserError: Likewise, or a checkpoint of the run is damaged.
    """
    (copy / "checkpoints").mkdir(parents=True, exist_ok=True)
    originals = list_checkpoints(run_dir)
    faults = [_copy_checkpoint(path, copy / "checkpoints" / path.name) for path in reversed(originals)]
    for name in ("latest", "best"):
        _copy_pointer(run_dir, copy, name)
    for path in list_checkpoints(copy):
        if path.name not in {original.name for original in originals}:
            shutil.rmtree(path)
    _copy_logs(run_dir, copy)
    if any(faults):
        raise UserError("; ".join(filter(None, faults)))


def _is_same(original: Path, copied: Path) -> bool:
    """Whether a checkpoint has been copied: the checksums say what is in it."""
    listed = copied / CHECKSUMS
    try:
        return listed.exists() and listed.read_bytes() == (original / CHECKSUMS).read_bytes()
    except FileNotFoundError:  # the original was rotated away this moment
        return True


def _copy_checkpoint(original: Path, copied: Path) -> str | None:
    """Copy a checkpoint that is not there yet; return what is wrong with it, if anything."""
    if _is_same(original, copied):
        return None
    with ExitStack() as stack:
        try:
            # All are opened first: the run may delete the checkpoint meanwhile, open files stay readable.
            sources = [stack.enter_context(path.open("rb")) for path in sorted(original.iterdir())]
        except FileNotFoundError:
            return None
        try:
            with new_directory(copied) as temporary:
                for source in sources:
                    with (temporary / Path(source.name).name).open("wb") as target:
                        shutil.copyfileobj(source, target, 1 << 20)
                if fault := damage(temporary):
                    raise UserError(f"{original}: {fault}")
        except UserError as error:
            return str(error)
    return None


def _copy_pointer(run_dir: Path, copy: Path, name: str) -> None:
    target = read_pointer(run_dir, name)
    if target is None:
        (copy / "checkpoints" / name).unlink(missing_ok=True)
    elif (copy / "checkpoints" / target).exists() and target != read_pointer(copy, name):
        write_pointer(copy, name, target)


def _copy_logs(run_dir: Path, copy: Path) -> None:
    """Copy what a resumed run goes on with besides checkpoints; a last line half written is no harm."""
    for pattern in ("config.yaml", "*.jsonl", "evaluations/*.jsonl"):
        for path in run_dir.glob(pattern):
            copied = copy / path.relative_to(run_dir)
            copied.parent.mkdir(exist_ok=True)
            temporary = copied.with_name(f".{copied.name}.writing")
            shutil.copyfile(path, temporary)
            os.replace(temporary, copied)
