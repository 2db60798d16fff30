"""This module is the only place that builds the parts that every kind of run needs."""

import os
from collections.abc import Callable
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from asrl.backends import Backend
from asrl.config import plain
from asrl.data.augment import SpecAugment
from asrl.data.dataset import SpeechDataset
from asrl.data.features import read_cmvn
from asrl.data.manifest import read_manifest
from asrl.data.perturb import Noise, Perturbation, Reverb, Speed, Stage, find_recordings
from asrl.errors import UserError
from asrl.evaluator import Evaluator
from asrl.files import replace_text
from asrl.mirror import Mirror
from asrl.models.firered import load_firered
from asrl.models.released_files import check_files
from asrl.models.speech_llm import SpeechLLM
from asrl.models.trainable import set_dropout, set_trainable
from asrl.optimization import build_optimizer, build_schedule
from asrl.rollout.settings import SamplingSettings
from asrl.tracking import Tracker, WandbRun

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_model(config: DictConfig, *, dropout: bool, mixed_precision: str = "no") -> SpeechLLM:
    """Load the checkpoint and mark what is trained."""
    model = load_firered(
        config.path,
        lora_start=config.lora.start if config.train_decoder == "lora" else "none",
        lora_rank=config.lora.rank,
        lora_alpha=config.lora.alpha,
        lora_dropout=config.lora.dropout,
        length_rule=config.length_rule,
        decoder_dtype=DTYPES[config.decoder_dtype],
        train_decoder=config.train_decoder == "full",
    )
    set_trainable(
        model, encoder=config.train_encoder, projector=config.train_projector, decoder=config.train_decoder
    )
    set_dropout(model, dropout)
    model.layout = config.layout
    model.autocast_dtype = torch.bfloat16 if mixed_precision == "bf16" else None
    if config.gradient_checkpointing:
        model.enable_gradient_checkpointing()
    return model


def build_optimization(model: nn.Module, config: DictConfig, *, num_steps: int) -> tuple[AdamW, LambdaLR]:
    """Open the optimizer and its schedule."""
    optimizer = build_optimizer(
        model,
        config.learning_rate,
        weight_decay=config.weight_decay,
        betas=(config.beta1, config.beta2),
    )
    schedule = build_schedule(
        optimizer, config.schedule, num_warmup_steps=config.num_warmup_steps, num_steps=num_steps
    )
    return optimizer, schedule


def load_dataset(
    manifest: str,
    model_path: str,
    *,
    format: str = "auto",
    perturb: Callable[..., Tensor] | None = None,
    augment: Callable[..., Tensor] | None = None,
    check_audio: bool = True,
    require_text: bool = True,
) -> SpeechDataset:
    """Open a manifest with the feature statistics of the model.

    Args:
        manifest: Its path.
        model_path: Directory of the model.
        format: Of the manifest; see ``sources.FORMATS``.
        perturb: Changes waveforms; see ``SpeechDataset``.
        augment: Changes features; see ``SpeechDataset``.
        check_audio: Whether every audio file must exist.
        require_text: Whether every line must have a text with something to say.

    Raises:
        UserError: A line of the manifest is wrong, or the model's directory incomplete.
    """
    check_files(Path(model_path))
    utterances = read_manifest(manifest, format=format, check_audio=check_audio, require_text=require_text)
    cmvn = read_cmvn(Path(model_path) / "cmvn.ark")
    return SpeechDataset(utterances, cmvn=cmvn, perturb=perturb, augment=augment)


def load_training_set(config: DictConfig) -> SpeechDataset:
    """Open the training manifest, to be altered in each epoch as ``augment`` says.

    Raises:
        UserError: As ``load_dataset``, or a folder of noise or impulse responses cannot be used.
    """
    settings = config.augment
    stages: dict[str, Stage] = {}
    if settings.speed_factors:
        stages["speed"] = Speed(tuple(settings.speed_factors))
    if settings.reverb.path is not None:
        responses = find_recordings(settings.reverb.path, setting="augment.reverb.path")
        stages["reverb"] = Reverb(responses, settings.reverb.probability)
    if settings.noise.path is not None:
        recordings = find_recordings(settings.noise.path, setting="augment.noise.path")
        noise = {name: settings.noise[name] for name in ("probability", "min_snr", "max_snr")}
        stages["noise"] = Noise(recordings, **noise)
    return load_dataset(
        config.data.train,
        config.model.path,
        format=config.data.format,
        perturb=Perturbation(stages, seed=config.seed) if stages else None,
        augment=SpecAugment(**settings.spec_augment, seed=config.seed),
    )


def load_held_out_sets(config: DictConfig) -> dict[str, SpeechDataset]:
    """Open the manifests ``data.dev`` and ``data.test``, those of them that are given; nothing alters them.

    Raises:
        UserError: As ``load_dataset``.
    """
    manifests = {name: config.data[name] for name in ("dev", "test") if config.data[name]}
    return {
        name: load_dataset(path, config.model.path, format=config.data.format)
        for name, path in manifests.items()
    }


def build_evaluator(
    model: SpeechLLM,
    config: DictConfig,
    modes: dict[str, SamplingSettings],
    *,
    utterances_per_batch: int,
    accelerator: Accelerator,
    backend: Backend,
    run_dir: Path,
) -> Evaluator:
    """Prepare to transcribe the held-out sets in these ways."""
    return Evaluator(
        model,
        load_held_out_sets(config),
        modes,
        utterances_per_batch=utterances_per_batch,
        num_workers=config.data.num_workers,
        accelerator=accelerator,
        is_any_rank_busy=backend.is_any_rank_busy,
        run_dir=run_dir,
    )


def unused_run_dir(wanted: str, accelerator: Accelerator) -> Path:
    """Create the directory of a new run, the same on every rank; ``-2``, ``-3`` are appended if it exists.

    Raises:
        UserError: It cannot be created.
    """
    chosen = [wanted]
    if accelerator.is_main_process:
        number = 1
        while os.path.exists(chosen[0]):
            number += 1
            chosen = [f"{wanted}-{number}"]
        try:
            os.makedirs(chosen[0])
        except OSError as error:
            raise UserError(f"run_dir={wanted}: cannot create the directory ({error.strerror})") from error
    return Path(broadcast_object_list(chosen)[0])


def open_mirror(config: DictConfig, run_dir: Path, accelerator: Accelerator) -> Mirror | None:
    """Start to copy a run into a second folder under its own name, on the main process, if that is wanted.

    Raises:
        UserError: The copy would overwrite another run or the run itself, or cannot be written.
    """
    folder = config.trainer.copy_checkpoints_to
    if folder is None or not accelerator.is_main_process:
        return None
    copy = Path(folder) / run_dir.resolve().name
    if copy.resolve() == run_dir.resolve():
        raise UserError(
            f"trainer.copy_checkpoints_to={folder}: the run itself lies there; "
            "name a folder on another disk, or null"
        )
    if copy.exists() and not config.resume:
        raise UserError(
            f"trainer.copy_checkpoints_to={folder}: {copy} exists already, from another run; "
            "remove it, or name another folder or run_dir"
        )
    try:
        copy.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"trainer.copy_checkpoints_to={folder}: cannot create {copy} ({error.strerror})"
        ) from error
    return Mirror(run_dir, copy)


def start_tracker(
    config: DictConfig, run_dir: Path, *, max_steps: int, start: int = 0, wandb_id: str | None = None
) -> Tracker:
    """Open the run's logs and save its resolved configuration beside them."""
    settings = plain(config)
    replace_text(run_dir / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(settings)))
    wandb = None
    if config.logger.wandb:
        wandb = WandbRun(settings, project=config.logger.project, run_dir=run_dir, run_id=wandb_id)
    return Tracker(run_dir, max_steps=max_steps, start=start, wandb=wandb)
