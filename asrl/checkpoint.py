"""This module is the only place that knows how a checkpoint lies on disk.

    RUN/checkpoints/step-00000100/   trainable.safetensors  optimizer.pt  state.json  checksums.json
    RUN/checkpoints/latest           name of the newest checkpoint
    RUN/checkpoints/best             name of the one with the lowest error rate on the dev set

A checkpoint is written to a temporary directory, synced and renamed, so that it is whole or absent.
``asrl.mirror`` keeps a copy of all this in a second folder.
"""

import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from asrl.errors import UserError
from asrl.files import replace_text, sync

CHECKSUMS = "checksums.json"
UNFINISHED = ".writing-"
# What the readers of tensors raise at bytes that are not theirs.
NONSENSE = (SafetensorError, RuntimeError, EOFError, ValueError, LookupError, TypeError, AttributeError)
FILES = ("trainable.safetensors", "optimizer.pt", "state.json")


@dataclass(frozen=True)
class Checkpoint:
    """Everything a run needs to go on.

    Attributes:
        trainable: Trained weights by parameter name; frozen weights come from the model directory.
        optimizer: State of the optimizer and of its schedule.
        state: Position in the data, best result so far and the like; JSON.
    """

    trainable: Mapping[str, Tensor]
    optimizer: Mapping[str, Any]
    state: Mapping[str, Any]


def checkpoint_path(run_dir: Path, step: int) -> Path:
    """Directory of the checkpoint after so many optimizer steps."""
    return run_dir / "checkpoints" / f"step-{step:08d}"


def save_checkpoint(run_dir: Path, step: int, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint and point ``latest`` at it.

    Raises:
        UserError: The disk is full or not writable; older checkpoints are untouched.
    """
    final = checkpoint_path(run_dir, step)
    try:
        with new_directory(final) as temporary:
            _write_files(temporary, checkpoint)
    except (OSError, RuntimeError, SafetensorError) as error:  # torch wraps a full disk in a RuntimeError
        reason = " ".join(str(error).split())
        raise UserError(
            f"{final}: could not write the checkpoint ({reason}); older ones are intact: "
            f"make room, and go on with resume={run_dir}"
        ) from error
    write_pointer(run_dir, "latest", final.name)
    return final


@contextmanager
def new_directory(final: Path) -> Iterator[Path]:
    """Give a directory to fill, which takes its place whole, in one step, or not at all.

    What a killed attempt left half written goes first.
    """
    temporary = final.with_name(UNFINISHED + final.name)
    for unfinished in final.parent.glob(UNFINISHED + "*"):
        shutil.rmtree(unfinished)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for path in [*temporary.iterdir(), temporary]:
            sync(path)
        if final.exists():
            shutil.rmtree(final)
        os.rename(temporary, final)
        sync(final.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_files(directory: Path, checkpoint: Checkpoint) -> None:
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.trainable.items()}
    save_file(tensors, directory / "trainable.safetensors")
    torch.save(dict(checkpoint.optimizer), directory / "optimizer.pt")
    (directory / "state.json").write_text(json.dumps(checkpoint.state, indent=1), encoding="utf-8")
    checksums = {path.name: checksum(path) for path in sorted(directory.iterdir())}
    (directory / CHECKSUMS).write_text(json.dumps(checksums, indent=1), encoding="utf-8")


def checksum(path: Path) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def write_pointer(run_dir: Path, name: str, target: str) -> None:
    """Replace ``latest`` or ``best`` in one step."""
    replace_text(run_dir / "checkpoints" / name, target + "\n")


def read_pointer(run_dir: Path, name: str) -> str | None:
    """Name of the checkpoint that ``latest`` or ``best`` points at, if any."""
    pointer = run_dir / "checkpoints" / name
    return pointer.read_text(encoding="utf-8").strip() if pointer.exists() else None


def list_checkpoints(run_dir: Path) -> list[Path]:
    """Directories of finished checkpoints, oldest first."""
    return sorted((run_dir / "checkpoints").glob("step-*"))


def rotate(run_dir: Path, keep: int, *, newest: int) -> None:
    """Delete all but the best checkpoint and ``keep`` others up to step ``newest``.

    Later ones are what a resumed run passed over as damaged: counted among the newest, they would push out
    intact ones.
    """
    best, last = read_pointer(run_dir, "best"), checkpoint_path(run_dir, newest)
    checkpoints = list_checkpoints(run_dir)
    damaged = [path for path in checkpoints if path > last]
    intact = [path for path in checkpoints if path <= last]
    for path in [*damaged, *(path for path in intact[:-keep] if path.name != best)]:
        shutil.rmtree(path)


def damage(path: Path) -> str | None:
    """Say what is wrong with a checkpoint, or return None if every file is as it was written."""
    try:
        checksums = json.loads((path / CHECKSUMS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return f"{CHECKSUMS} is unreadable ({error})"
    if not isinstance(checksums, dict):
        return f"{CHECKSUMS} is not a JSON object"
    for name in [*FILES, *(name for name in checksums if name not in FILES)]:
        if fault := _file_damage(path / name, checksums.get(name)):
            return fault
    return None


def _file_damage(path: Path, expected: str | None) -> str | None:
    if expected is None:
        return f"{CHECKSUMS} does not list {path.name}"
    if not path.exists():
        return f"{path.name} is missing"
    try:
        is_whole = checksum(path) == expected
    except OSError as error:
        return f"{path.name} is unreadable ({error.strerror})"
    return None if is_whole else f"{path.name} does not match its checksum"


def load_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint. Nothing in it is unpickled beyond tensors and plain containers.

    Raises:
        UserError: It is damaged, holds code, or was written by another version.
    """
    if fault := damage(path):
        raise UserError(f"{path}: damaged checkpoint: {fault}")
    try:
        return Checkpoint(
            trainable=load_file(path / "trainable.safetensors"),
            optimizer=torch.load(path / "optimizer.pt", map_location="cpu", weights_only=True),
            state=json.loads((path / "state.json").read_text(encoding="utf-8")),
        )
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path / 'optimizer.pt'}: holds more than tensors and plain containers; "
            "this program did not write it, do not trust it"
        ) from error
    except NONSENSE as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{path}: not a checkpoint of this program, though its checksums are right ({reason})"
        ) from error


@dataclass(frozen=True)
class Found:
    """The newest intact checkpoint of a run, and what was passed over."""

    path: Path
    warnings: list[str]


def find_checkpoint(run_dir: Path) -> Found:
    """Find the newest intact checkpoint of a run.

    Raises:
        UserError: The run has none.
    """
    warnings = []
    for path in reversed(list_checkpoints(run_dir)):
        fault = damage(path)
        if fault is None:
            return Found(path, warnings)
        warnings.append(f"{path}: damaged checkpoint passed over: {fault}")
    raise UserError("; ".join([*warnings, f"{run_dir} holds no intact checkpoint to resume from"]))


def drop_lost_best(run_dir: Path, resumed: Path) -> str | None:
    """Delete ``best`` where it points at a checkpoint that a run resumed from ``resumed`` cannot count on.

    That is one which is gone, damaged, or later than ``resumed``. Return a warning if so.
    """
    name = read_pointer(run_dir, "best")
    if name is None:
        return None
    path = run_dir / "checkpoints" / name
    fault = "it is later than the one to go on from" if name > resumed.name else damage(path)
    if fault is None:
        return None
    (run_dir / "checkpoints" / "best").unlink()
    return f"{path}: no longer the best checkpoint: {fault}"
