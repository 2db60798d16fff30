"""This module is the only place that puts a reinforcement-learning run together and sums it up."""

import math
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import hydra
import torch
from accelerate import Accelerator
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from asrl.checkpoint import find_checkpoint, load_checkpoint
from asrl.cli.build import (
    build_evaluator,
    build_optimization,
    load_dataset,
    load_model,
    start_accelerator,
    start_tracker,
    unused_run_dir,
)
from asrl.cli.compose import check_command_line, resumed_config
from asrl.cli.describe import describe
from asrl.cli.summary import compare, print_summary, training_figures, write_summary
from asrl.config import CONFIG_DIRECTORY
from asrl.config_checks import check_combinations, check_values
from asrl.data.dataset import make_loader
from asrl.data.sampler import RepeatSampler
from asrl.errors import exit_with_one_line
from asrl.evaluate import read_transcriptions
from asrl.evaluator import Evaluator
from asrl.jsonl import read_json_lines
from asrl.models.speech_llm import SpeechLLM
from asrl.optimization import copy_parameters
from asrl.rewards import build_rewards
from asrl.rollout.engines import ENGINES
from asrl.rollout.settings import SamplingSettings, greedy
from asrl.run_state import Parts, Progress, restore_run
from asrl.tracking import Tracker
from asrl.trainer import Trainer

MODES = ("greedy", "sampled")


def main() -> None:
    """Entry point of ``asrl train`` and ``train.py``."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(describe("train", sys.argv[1:]))
        return
    check_command_line("train", sys.argv[1:])
    hydra.main(version_base="1.3", config_path=str(CONFIG_DIRECTORY), config_name="train")(_job)()


def _job(config: DictConfig) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    # Hydra would print a traceback around the message.
    exit_with_one_line(lambda: figures.update(run(config)))
    return figures


def run(config: DictConfig) -> dict[str, Any]:
    """Train, compare the model before and after on the held-out sets, and return figures of the training."""
    if config.resume:
        config = resumed_config(config.resume, HydraConfig.get().overrides.task)
    check_values(config)  # again, for the jobs of a sweep
    check_combinations(config)
    accelerator = start_accelerator(config.trainer.mixed_precision, num_threads=config.trainer.num_threads)
    trainer = build_trainer(config, accelerator)
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, trainer.stop)
    with trainer.parts.tracker or nullcontext():
        evaluate_all(trainer.parts.evaluator, step=0)
        trainer.run()
        if not trainer.is_stopping:
            evaluate_all(trainer.parts.evaluator, step=trainer.progress.step)
    return conclude(trainer)


def build_trainer(config: DictConfig, accelerator: Accelerator) -> Trainer:
    """Build every part of a run, and put a checkpoint in place if it resumes one.

    Raises:
        UserError: A file cannot be used or settings contradict each other.
    """
    torch.manual_seed(config.seed)  # of a fresh LoRA
    rewards = build_rewards(OmegaConf.to_container(config.reward, resolve=True))
    dataset = load_dataset(config.data.train, config.model.path)  # first: fails fast
    model = load_model(config.model, dropout=config.dropout)
    steps_per_batch = config.num_iterations * config.steps_per_generation
    num_batches = math.ceil(config.trainer.max_steps / steps_per_batch)
    num_steps = num_batches * steps_per_batch
    model.to(accelerator.device)
    starting_weights = copy_parameters(model) if config.beta and config.reference == "frozen" else {}
    optimizer, schedule = build_optimization(model, config.optim, num_steps=num_steps)
    progress = restore(config, model, optimizer, schedule)
    sampler = rollout_batches(config, len(dataset), accelerator, start=progress.position, end=num_batches)
    run_dir = Path(config.resume) if config.resume else unused_run_dir(config.run_dir, accelerator)
    sampling = sampling_settings(config)
    evaluator = build_evaluator(
        model,
        config,
        {"greedy": greedy(config.rollout.max_new_tokens), "sampled": sampling},
        utterances_per_batch=config.trainer.eval_utterances,
        accelerator=accelerator,
        run_dir=run_dir,
    )
    policy, optimizer = accelerator.prepare(model, optimizer)
    tracker = open_tracker(config, run_dir, progress, max_steps=num_steps, accelerator=accelerator)
    parts = Parts(
        policy=policy,
        model=model,
        optimizer=optimizer,
        schedule=schedule,
        loader=make_loader(dataset, sampler, num_workers=config.data.num_workers),
        rewards=rewards,
        generate=ENGINES[config.rollout.engine],
        sampling=sampling,
        starting_weights=starting_weights,
        evaluator=evaluator,
        tracker=tracker,
        accelerator=accelerator,
        run_dir=run_dir,
    )
    return Trainer(parts, config, progress, num_batches=num_batches)


def sampling_settings(config: DictConfig) -> SamplingSettings:
    """The distribution that rollouts are drawn from."""
    settings = {key: value for key, value in config.rollout.items() if key != "engine"}
    return SamplingSettings(**settings, seed=config.seed)


def open_tracker(
    config: DictConfig, run_dir: Path, progress: Progress, *, max_steps: int, accelerator: Accelerator
) -> Tracker | None:
    """Open the logs, on the main process, where the run left them; note the wandb run in its progress."""
    if not accelerator.is_main_process:
        return None
    tracker = start_tracker(
        config, run_dir, max_steps=max_steps, start=progress.step, wandb_id=progress.wandb_id
    )
    progress.wandb_id = tracker.wandb.run_id if tracker.wandb else None
    return tracker


def rollout_batches(
    config: DictConfig, num_utterances: int, accelerator: Accelerator, *, start: int, end: int
) -> RepeatSampler:
    """Rows of the batches of rollouts from number ``start`` up to ``end``."""
    rows_per_rank = config.trainer.rows_per_device * config.trainer.gradient_accumulation_steps
    return RepeatSampler(
        num_utterances=num_utterances,
        num_generations=config.num_generations,
        rows_per_step=rows_per_rank * accelerator.num_processes,
        steps_per_generation=config.steps_per_generation,
        world_size=accelerator.num_processes,
        rank=accelerator.process_index,
        seed=config.seed,
        drop_last=config.data.drop_last,
        start=start,
        num_batches=end - start,
    )


def restore(config: DictConfig, model: SpeechLLM, optimizer: Optimizer, schedule: LRScheduler) -> Progress:
    """Go on from the newest intact checkpoint of ``resume``, or start from the beginning."""
    if not config.resume:
        return Progress()
    found = find_checkpoint(Path(config.resume))
    for warning in found.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return restore_run(model, optimizer, schedule, load_checkpoint(found.path), place=str(found.path))


def evaluate_all(evaluator: Evaluator, *, step: int) -> None:
    """Transcribe every held-out set in every way, unless a resumed run has done it already."""
    for split in evaluator.datasets:
        for mode in MODES:
            evaluator.run_once(split, mode, step=step)


def conclude(trainer: Trainer) -> dict[str, Any]:
    """Print and save what the run brought; every rank returns figures of the training."""
    parts, step = trainer.parts, trainer.progress.step
    if parts.tracker is None:
        return {}
    figures = training_figures(read_json_lines(parts.run_dir / "metrics.jsonl"))
    if trainer.is_stopping:
        print(f"stopped after step {step}; go on with resume={parts.run_dir}")
        return figures
    path = parts.evaluator.path
    comparisons = [
        compare(
            split,
            mode,
            read_transcriptions(path(split, mode, 0)),
            read_transcriptions(path(split, mode, step)),
        )
        for split in parts.evaluator.datasets
        for mode in MODES
    ]
    write_summary(parts.run_dir / "summary.json", comparisons, figures)
    print_summary(comparisons, figures, parts.run_dir)
    return figures
