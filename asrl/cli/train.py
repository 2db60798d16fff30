"""This module is the only place that puts a reinforcement-learning run together and sums it up."""

import math
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import hydra
import torch
from accelerate import Accelerator
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from asrl.backends import Backend, States
from asrl.checkpoint import drop_lost_best, find_checkpoint, list_checkpoints, load_checkpoint
from asrl.cli.build import (
    build_evaluator,
    build_optimization,
    load_model,
    load_training_set,
    open_mirror,
    start_tracker,
    unused_run_dir,
)
from asrl.cli.compose import check_command_line, resumed_config
from asrl.cli.describe import describe
from asrl.cli.distribute import distribute, reference_device, start_accelerator
from asrl.cli.summary import print_summary, training_figures, write_summary
from asrl.comparison import compare
from asrl.config import CONFIG_DIRECTORY
from asrl.config_checks import check_combinations, check_values
from asrl.data.dataset import make_loader
from asrl.data.sampler import RepeatSampler
from asrl.errors import exit_with_one_line
from asrl.evaluate import read_transcriptions
from asrl.evaluator import Evaluator
from asrl.jsonl import read_json_lines
from asrl.models.speech_llm import SpeechLLM
from asrl.optimization import copy_parameters, load_parameters, place_schedule
from asrl.rewards import build_rewards
from asrl.rollout.engines import ENGINES
from asrl.rollout.settings import SamplingSettings, greedy
from asrl.run_state import Parts, Progress
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
    accelerator = start_accelerator(num_threads=config.trainer.num_threads)
    trainer = build_trainer(config, accelerator)
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, trainer.stop)
    with trainer.parts.tracker or nullcontext(), trainer.parts.mirror or nullcontext():
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
    dataset = load_training_set(config)  # first: fails fast
    steps_per_batch = config.num_iterations * config.steps_per_generation
    num_batches = math.ceil(config.trainer.max_steps / steps_per_batch)
    num_steps = num_batches * steps_per_batch
    learned = prepare_policy(config, accelerator, num_steps=num_steps)
    progress = learned.progress
    sampler = rollout_batches(config, len(dataset), accelerator, progress, end=num_batches)
    run_dir = Path(config.resume) if config.resume else unused_run_dir(config.run_dir, accelerator)
    sampling = sampling_settings(config)
    evaluator = build_evaluator(
        learned.model,
        config,
        {"greedy": greedy(config.rollout.max_new_tokens), "sampled": sampling},
        utterances_per_batch=config.trainer.eval_utterances,
        accelerator=accelerator,
        backend=learned.backend,
        run_dir=run_dir,
    )
    mirror = open_mirror(config, run_dir, accelerator)
    tracker = open_tracker(config, run_dir, progress, max_steps=num_steps, accelerator=accelerator)
    parts = Parts(
        policy=learned.policy,
        model=learned.model,
        backend=learned.backend,
        schedule=learned.schedule,
        loader=make_loader(dataset, sampler, num_workers=config.data.num_workers),
        rewards=rewards,
        generate=ENGINES[config.rollout.engine],
        sampling=sampling,
        starting_weights=learned.starting_weights,
        evaluator=evaluator,
        tracker=tracker,
        accelerator=accelerator,
        run_dir=run_dir,
        mirror=mirror,
    )
    return Trainer(parts, config, progress, num_batches=num_batches)


class Learned(NamedTuple):
    """What a run changes, where the run left it; see ``Parts``."""

    policy: nn.Module
    model: SpeechLLM
    backend: Backend
    schedule: LambdaLR
    starting_weights: dict[str, Tensor]
    progress: Progress


def prepare_policy(config: DictConfig, accelerator: Accelerator, *, num_steps: int) -> Learned:
    """Load the model and the checkpoint to go on from, and spread them over the ranks."""
    model = load_model(config.model, dropout=config.dropout, mixed_precision=config.trainer.mixed_precision)
    starting_weights = {}
    if config.beta and config.reference == "frozen":
        starting_weights = copy_parameters(model, device=reference_device(accelerator))
    progress, states = restore(config, model, is_main=accelerator.is_main_process)
    if num_steps <= progress.step and accelerator.is_main_process:
        print(f"already at its last step, {progress.step}; raise trainer.max_steps to go on")
    model.to(accelerator.device)
    optimizer, schedule = build_optimization(model, config.optim, num_steps=num_steps)
    place_schedule(schedule, progress.step)
    policy, backend = distribute(model, optimizer, accelerator, max_grad_norm=config.optim.max_grad_norm)
    backend.load_states(states)
    return Learned(policy, model, backend, schedule, starting_weights, progress)


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
    config: DictConfig, num_utterances: int, accelerator: Accelerator, progress: Progress, *, end: int
) -> RepeatSampler:
    """Rows of the batches of rollouts from where the run is up to number ``end``.

    Raises:
        UserError: The run was started with batches of another size or another number of utterances.
    """
    rows_per_rank = config.trainer.rows_per_device * config.trainer.gradient_accumulation_steps
    rows_per_step = rows_per_rank * accelerator.num_processes
    progress.count_in(rows_per_step=rows_per_step, num_utterances=num_utterances)
    return RepeatSampler(
        num_utterances=num_utterances,
        num_generations=config.num_generations,
        rows_per_step=rows_per_step,
        steps_per_generation=config.steps_per_generation,
        world_size=accelerator.num_processes,
        rank=accelerator.process_index,
        seed=config.seed,
        drop_last=config.data.drop_last,
        start=progress.position,
        num_batches=end - progress.position,
    )


def restore(config: DictConfig, model: SpeechLLM, *, is_main: bool) -> tuple[Progress, States]:
    """Go on from the newest intact checkpoint of ``resume``, or start from the beginning.

    Returns:
        How far the run is, and the states of its optimizer.

    Raises:
        UserError: There is no such checkpoint, or it belongs to another configuration.
    """
    if not config.resume:
        return Progress(), {}
    if not list_checkpoints(Path(config.resume)):
        if is_main:
            print(f"warning: {config.resume}: no checkpoint yet, the run starts again", file=sys.stderr)
        return Progress(), {}
    found = find_checkpoint(Path(config.resume))
    if is_main:
        lost_best = drop_lost_best(Path(config.resume), found.path)
        for warning in filter(None, [*found.warnings, lost_best]):
            print(f"warning: {warning}", file=sys.stderr)
    checkpoint = load_checkpoint(found.path)
    load_parameters(model, checkpoint.trainable, place=str(found.path))
    return Progress(**checkpoint.state), checkpoint.optimizer


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
