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
from torch.optim.lr_scheduler import LRScheduler

from asrl.config import plain
from asrl.data.dataset import SpeechDataset
from asrl.data.features import read_cmvn
from asrl.data.manifest import read_manifest
from asrl.errors import UserError
from asrl.evaluator import Evaluator
from asrl.models.firered import load_firered
from asrl.models.released_files import check_files
from asrl.models.speech_llm import SpeechLLM, set_dropout, set_trainable
from asrl.optimization import build_optimizer, build_schedule
from asrl.rollout.settings import SamplingSettings
from asrl.tracking import Tracker, WandbRun

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def start_accelerator(mixed_precision: str = "no", *, num_threads: int | None = None) -> Accelerator:
    """Set the number of CPU threads and join the process group, if there is one.

    Without a GPU, ranks find each other only if told to use the CPU.
    """
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    return Accelerator(mixed_precision=mixed_precision, cpu=not torch.accelerator.is_available())


def load_model(config: DictConfig, *, dropout: bool) -> SpeechLLM:
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
    if config.gradient_checkpointing:
        model.enable_gradient_checkpointing()
    return model


def build_optimization(model: nn.Module, config: DictConfig, *, num_steps: int) -> tuple[AdamW, LRScheduler]:
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
    manifest: str, model_path: str, *, augment: Callable[..., Tensor] | None = None
) -> SpeechDataset:
    """Open a manifest with the feature statistics of the model.

    Raises:
        UserError: A line of the manifest is wrong, or the model's directory incomplete.
    """
    check_files(Path(model_path))
    return SpeechDataset(
        read_manifest(manifest), cmvn=read_cmvn(Path(model_path) / "cmvn.ark"), augment=augment
    )


def build_evaluator(
    model: SpeechLLM,
    config: DictConfig,
    modes: dict[str, SamplingSettings],
    *,
    utterances_per_batch: int,
    accelerator: Accelerator,
    run_dir: Path,
) -> Evaluator:
    """Open the held-out sets that the configuration names."""
    manifests = {name: config.data[name] for name in ("dev", "test") if config.data[name]}
    return Evaluator(
        model,
        {name: load_dataset(path, config.model.path) for name, path in manifests.items()},
        modes,
        utterances_per_batch=utterances_per_batch,
        num_workers=config.data.num_workers,
        accelerator=accelerator,
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


def start_tracker(
    config: DictConfig, run_dir: Path, *, max_steps: int, start: int = 0, wandb_id: str | None = None
) -> Tracker:
    """Open the run's logs and save its resolved configuration beside them."""
    settings = plain(config)
    (run_dir / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(settings)), encoding="utf-8")
    wandb = None
    if config.logger.wandb:
        wandb = WandbRun(settings, project=config.logger.project, run_dir=run_dir, run_id=wandb_id)
    return Tracker(run_dir, max_steps=max_steps, start=start, wandb=wandb)
