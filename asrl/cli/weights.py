"""This module is the only place that finds a model to use: a released directory or what a run trained."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from asrl.checkpoint import CHECKSUMS, find_checkpoint, load_checkpoint, read_pointer
from asrl.cli.build import DTYPES, load_model
from asrl.config import ModelConfig
from asrl.errors import UserError
from asrl.models.firered import load_firered
from asrl.models.released_files import MODEL_FILE, check_files
from asrl.models.released_lora import has_released_lora
from asrl.models.speech_llm import SpeechLLM
from asrl.optimization import load_parameters
from asrl.sampling import stable_hash


@dataclass(frozen=True)
class Source:
    """Where a model comes from.

    Attributes:
        directory: In the released layout; of a run, what it started from.
        checkpoint: Of a run, with the weights that it trained; None: the directory as it is.
        config: ``model`` section of the run's configuration.
    """

    directory: Path
    checkpoint: Path | None = None
    config: DictConfig | None = None

    @property
    def name(self) -> str:
        """What to call the model."""
        return str((self.checkpoint or self.directory).resolve())

    @property
    def length_rule(self) -> str:
        """Of the encoder, unless another is asked for."""
        return self.config.length_rule if self.config is not None else "stride"

    def fingerprint(self) -> str:
        """Changes when a file of the model is replaced."""
        files = sorted(path for path in self.directory.rglob("*") if path.is_file())
        parts = [
            f"{os.path.relpath(file, self.directory)} {file.stat().st_size} {file.stat().st_mtime_ns}"
            for file in files
        ]
        if self.checkpoint is not None:
            checksums = self.checkpoint / CHECKSUMS
            if not checksums.is_file():
                raise UserError(f"{self.checkpoint}: damaged checkpoint: {CHECKSUMS} is missing")
            parts.append(checksums.read_text(encoding="utf-8"))
        return f"{stable_hash(*parts):016x}"


def find_source(*, model: str | None = None, checkpoint: str | None = None) -> Source:
    """Find a model; a checkpoint may be a run, one of its checkpoints, or a released directory.

    Raises:
        UserError: There is nothing of the kind.
    """
    if model is not None:
        check_files(Path(model))
        return Source(Path(model))
    path = Path(checkpoint or "")
    if (path / MODEL_FILE).is_file():
        return Source(path)
    run_dir = path if (path / "config.yaml").is_file() else path.parent.parent
    if not (run_dir / "config.yaml").is_file():
        raise UserError(
            f"{path}: not a checkpoint; name the directory of a run, RUN/checkpoints/step-... in it, "
            "or a model directory"
        )
    config = _model_config(run_dir / "config.yaml")
    check_files(Path(config.path))
    return Source(Path(config.path), _checkpoint(path, run_dir), config)


def _checkpoint(path: Path, run_dir: Path) -> Path:
    """The checkpoint that a path names: the newest of a run, or itself, or what a pointer points at."""
    if path == run_dir:
        found = find_checkpoint(run_dir)
        for warning in found.warnings:
            print(f"warning: {warning}", file=sys.stderr)
        return found.path
    if path.is_file():
        return path.with_name(str(read_pointer(run_dir, path.name)))
    if not path.is_dir():
        raise UserError(f"{path}: no such checkpoint; {run_dir} takes the newest")
    return path


def _model_config(path: Path) -> DictConfig:
    try:
        return OmegaConf.merge(OmegaConf.structured(ModelConfig), OmegaConf.load(path).model)
    except (YAMLError, OmegaConfBaseException, AttributeError, ValueError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path}: not a configuration of this version ({reason})") from error


def load_source(source: Source, *, length_rule: str | None = None, dtype: str | None = None) -> SpeechLLM:
    """Load a model, in eval mode.

    Args:
        source: Where from.
        length_rule: Of the encoder; None: the run's, or ``stride``.
        dtype: Of decoder weights that are not trained; None: the run's, or float32.

    Raises:
        UserError: A file is damaged or does not fit.
    """
    if source.config is None or source.checkpoint is None:
        return load_firered(
            source.directory,
            lora_start="continue" if has_released_lora(source.directory / MODEL_FILE) else "none",
            length_rule=length_rule or source.length_rule,
            decoder_dtype=DTYPES[dtype or "float32"],
        )
    own = {"length_rule": length_rule, "decoder_dtype": dtype}
    config = OmegaConf.merge(source.config, {name: value for name, value in own.items() if value})
    # What a fresh LoRA starts from is about to be replaced; nothing else is random.
    model = load_model(config, dropout=False)
    load_parameters(model, load_checkpoint(source.checkpoint).trainable, place=str(source.checkpoint))
    return model.eval()


def pick_device(name: str | None) -> torch.device:
    """The device of this name; None: an accelerator if there is one.

    Raises:
        UserError: There is no such device.
    """
    if name is None:
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device).tolist()
    except (RuntimeError, NotImplementedError, AssertionError) as error:  # torch without CUDA asserts
        reason = str(error).splitlines()[0]
        raise UserError(f"--device {name}: cannot be used ({reason}); leave it out, or use cpu") from error
    return device
