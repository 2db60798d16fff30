"""This module is the only place that knows how a checkpoint lies on disk.

    RUN/checkpoints/step-00000100/   trainable.safetensors  optimizer.pt  state.json  checksums.json
    RUN/checkpoints/latest           name of the newest checkpoint
    RUN/checkpoints/best             name of the one with the lowest error rate on the dev set

A checkpoint is written to a temporary directory, synced and renamed, so that it is whole or absent.
"""

import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from asrl.errors import UserError

CHECKSUMS = "checksums.json"


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
    temporary = final.with_name(".writing-" + final.name)
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        _write_files(temporary, checkpoint)
        if final.exists():
            shutil.rmtree(final)
        os.rename(temporary, final)
        write_pointer(run_dir, "latest", final.name)
    except (OSError, RuntimeError) as error:  # torch wraps a full disk in a RuntimeError
        shutil.rmtree(temporary, ignore_errors=True)
        raise UserError(
            f"{final}: could not write the checkpoint ({error}); older ones are intact"
        ) from error
    return final


def _write_files(directory: Path, checkpoint: Checkpoint) -> None:
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.trainable.items()}
    save_file(tensors, directory / "trainable.safetensors")
    torch.save(dict(checkpoint.optimizer), directory / "optimizer.pt")
    (directory / "state.json").write_text(json.dumps(checkpoint.state, indent=1), encoding="utf-8")
    checksums = {path.name: _checksum(path) for path in sorted(directory.iterdir())}
    (directory / CHECKSUMS).write_text(json.dumps(checksums, indent=1), encoding="utf-8")
    for path in [*directory.iterdir(), directory]:
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def write_pointer(run_dir: Path, name: str, target: str) -> None:
    """Replace ``latest`` or ``best`` in one step."""
    pointer = run_dir / "checkpoints" / name
    temporary = pointer.with_name(f".{name}")
    temporary.write_text(target + "\n", encoding="utf-8")
    _sync(temporary)
    os.replace(temporary, pointer)


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
    for name, expected in checksums.items():
        if not (path / name).exists():
            return f"{name} is missing"
        if _checksum(path / name) != expected:
            return f"{name} does not match its checksum"
    return None


def load_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint. Nothing in it is unpickled beyond tensors and plain containers.

    Raises:
        UserError: It is damaged, or holds code.
    """
    if fault := damage(path):
        raise UserError(f"{path}: damaged checkpoint: {fault}")
    try:
        optimizer = torch.load(path / "optimizer.pt", map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path / 'optimizer.pt'}: holds more than tensors and plain containers; "
            "this program did not write it, do not trust it"
        ) from error
    return Checkpoint(
        trainable=load_file(path / "trainable.safetensors"),
        optimizer=optimizer,
        state=json.loads((path / "state.json").read_text(encoding="utf-8")),
    )


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
