"""This module is the only place that reads, writes and checks the files of a FireRedASR-LLM directory.

::

    FireRedASR-LLM-L/
      asr_encoder.pth.tar    args of the encoder, no weights
      model.pth.tar          args, and weights of encoder, LoRA (unmerged) and projector
      cmvn.ark               feature statistics
      config.yaml            empty
      Qwen2-7B-Instruct/     the decoder, an ordinary Hugging Face folder
"""

import argparse
import json
import pickle
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict
from safetensors import SafetensorError, safe_open
from torch import Tensor

from asrl.errors import UserError

ENCODER_FILE = "asr_encoder.pth.tar"
MODEL_FILE = "model.pth.tar"
CMVN_FILE = "cmvn.ark"
CONFIG_FILE = "config.yaml"
DECODER_FOLDER = "Qwen2-7B-Instruct"
DECODER_INDEX = "model.safetensors.index.json"
LFS_POINTER = b"version https://git-lfs"

Shapes = Mapping[str, Collection[int]]


@dataclass(frozen=True)
class CheckpointArgs:
    """Where a model came from and what of its checkpoint the model itself does not hold.

    Attributes:
        directory: The checkpoint that was loaded.
        decoder: Its Qwen2 folder.
        encoder: ``args`` of asr_encoder.pth.tar; unknown fields are kept for the export.
        model: ``args`` of model.pth.tar, likewise.
        is_decoder_unchanged: The decoder without LoRA still has the weights of ``decoder``.
    """

    directory: Path
    decoder: Path
    encoder: argparse.Namespace
    model: argparse.Namespace
    is_decoder_unchanged: bool


def check_files(directory: Path) -> Path:
    """Check that a checkpoint is complete and return its Qwen2 folder.

    Raises:
        UserError: The directory, one of its files or the Qwen2 folder is missing.
    """
    if not directory.is_dir():
        raise UserError(
            f"{directory}: a checkpoint is a directory, there is none of this name; check model.path"
        )
    for name in (ENCODER_FILE, MODEL_FILE, CMVN_FILE):
        if not (directory / name).is_file():
            raise UserError(
                f"{directory / name}: {_absence(directory / name)}; a FireRedASR-LLM directory needs it"
            )
    # The released name first, should there be several.
    folders = sorted(directory.glob("Qwen2*"), key=lambda path: (path.name != DECODER_FOLDER, path.name))
    for folder in folders:
        if folder.is_symlink() and not folder.exists():
            raise UserError(
                f"{folder}: symlink to {folder.readlink()}, which does not exist; link the Qwen2 folder"
            )
    decoders = [folder for folder in folders if (folder / "config.json").is_file()]
    if not decoders:
        raise UserError(
            f"{directory}: no folder Qwen2* with a config.json inside; put or link {DECODER_FOLDER} there"
        )
    return decoders[0]


def _absence(path: Path) -> str:
    return f"link to {path.readlink()}, which does not exist" if path.is_symlink() else "file not found"


def _fault(path: Path) -> str:
    """Why a file of weights cannot be read, and the way out."""
    if not path.is_file():
        return f"{_absence(path)}; copy it again"
    with path.open("rb") as file:
        if file.read(len(LFS_POINTER)) == LFS_POINTER:
            return "is a Git LFS pointer, not the file itself; fetch it with `git lfs pull`"
    return f"incomplete or damaged ({path.stat().st_size} bytes); copy it again"


def read_package(path: Path) -> dict:
    """Read a ``.pth.tar`` of upstream without running any code in it.

    Raises:
        UserError: The file is damaged, holds more than tensors and args, or has no args.
    """
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            package = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path}: holds something else than tensors and an argparse.Namespace; use a released file"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError) as error:
        raise UserError(f"{path}: {_fault(path)}") from error
    args = package.get("args") if isinstance(package, dict) else None
    if not isinstance(args, argparse.Namespace):
        raise UserError(
            f"{path}: must be a dict with an argparse.Namespace under 'args'; use a released file"
        )
    return package


def read_field(args: argparse.Namespace, name: str, path: Path) -> int | float:
    """Read one number of ``args``.

    Raises:
        UserError: The field is absent or not a number.
    """
    value = getattr(args, name, None)
    if not isinstance(value, int | float):
        raise UserError(f"{path}: args.{name} must be a number, got {value!r}; use a released file")
    return value


def read_decoder_shapes(folder: Path) -> dict[str, list[int]]:
    """Read names and shapes of the decoder's weights from the safetensors headers.

    Raises:
        UserError: A file is missing or damaged.
    """
    files = sorted(folder.glob("*.safetensors"))
    index = folder / DECODER_INDEX
    if index.is_file():
        try:
            files = [
                folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))
            ]
        except (json.JSONDecodeError, KeyError) as error:
            raise UserError(f"{index}: damaged; copy the Qwen2 folder again") from error
    if not files:
        raise UserError(f"{folder}: no *.safetensors file; copy the Qwen2 folder again")
    shapes = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as weights:
                shapes.update({name: weights.get_slice(name).get_shape() for name in weights.keys()})  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise UserError(f"{file}: {_fault(file)}") from error
    return shapes


def check_shapes(found: Shapes, expected: Shapes, *, optional: Collection[str] = (), place: Path) -> None:
    """Compare tensors with what the model needs; upstream ignores differences and runs on random weights.

    Raises:
        UserError: Keys are missing or unexpected, or shapes differ; all in one line.
    """
    missing = [name for name in expected if name not in found and name not in optional]
    unexpected = [name for name in found if name not in expected]
    differing = [
        f"{name} {list(found[name])} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in found and list(found[name]) != list(shape)
    ]
    problems = []
    for kind, names in (("missing", missing), ("unexpected", unexpected), ("wrong shape", differing)):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            problems.append(f"{kind}: {', '.join(names[:3])}{more}")
    if problems:
        raise UserError(
            f"{place}: keys do not fit the model; {'; '.join(problems)}; use a matching checkpoint"
        )


def write_package(path: Path, args: argparse.Namespace, state: Mapping[str, Tensor] | None = None) -> None:
    """Write a ``.pth.tar`` as upstream reads it."""
    package: dict = {"args": args}
    if state is not None:
        package["model_state_dict"] = dict(state)
    torch.save(package, path)


def copy_decoder(source: Path, folder: Path) -> None:
    """Copy the files of a Qwen2 folder, but not their permissions."""
    folder.mkdir()
    for file in source.iterdir():
        if file.is_file():
            shutil.copyfile(file, folder / file.name)


def write_decoder(source: Path, folder: Path, state: Mapping[str, Tensor]) -> None:
    """Write new weights beside copies of the source's config and tokenizer.

    The config is copied rather than written by transformers, whose newer versions use fields that the version
    pinned by upstream does not read.
    """
    folder.mkdir()
    for file in source.iterdir():
        if file.is_file() and not file.name.endswith((".safetensors", ".bin", ".index.json")):
            shutil.copyfile(file, folder / file.name)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    dtype = str(next(iter(state.values())).dtype).removeprefix("torch.")
    config["dtype" if "dtype" in config else "torch_dtype"] = dtype
    (folder / "config.json").write_text(
        json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    save_torch_state_dict(dict(state), folder, max_shard_size="5GB")
    for file in folder.glob("*.safetensors"):
        file.chmod((folder / "config.json").stat().st_mode)  # it comes out readable by its owner alone
