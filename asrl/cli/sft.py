"""This module is the only place that puts a supervised run together."""

import sys
from contextlib import nullcontext
from dataclasses import replace

import hydra
import torch
from accelerate import Accelerator
from omegaconf import DictConfig

from asrl.cli.build import (
    build_evaluator,
    build_optimization,
    load_model,
    load_training_set,
    start_tracker,
    unused_run_dir,
)
from asrl.cli.compose import check_command_line
from asrl.cli.describe import describe
from asrl.cli.distribute import distribute, start_accelerator
from asrl.config import CONFIG_DIRECTORY
from asrl.data.dataset import SpeechDataset, make_loader
from asrl.data.sampler import RepeatSampler
from asrl.errors import UserError, exit_with_one_line
from asrl.rollout.settings import greedy
from asrl.sft import SupervisedModel, SupervisedParts, SupervisedTrainer


def main() -> None:
    """Entry point of ``asrl sft``."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(describe("sft", sys.argv[1:]))
        return
    check_command_line("sft", sys.argv[1:])
    hydra.main(version_base="1.3", config_path=str(CONFIG_DIRECTORY), config_name="sft")(_job)()


def _job(config: DictConfig) -> None:
    # Hydra would print a traceback around the message.
    exit_with_one_line(lambda: run(config))


def run(config: DictConfig) -> None:
    """Train a model on the transcripts of ``data.train``."""
    accelerator = start_accelerator()
    torch.manual_seed(config.seed)
    dataset = load_training_set(config)  # first: fails fast
    model = load_model(config.model, dropout=config.dropout)
    sampler = _batches(config, dataset, accelerator)
    num_steps = sampler.num_batches
    if config.max_steps is not None:
        sampler = replace(sampler, num_batches=min(config.max_steps, num_steps))
    run_dir = unused_run_dir(config.run_dir, accelerator)
    policy = SupervisedModel(model, encoder_ctc=config.ctc.encoder, projector_ctc=config.ctc.projector)
    policy.to(accelerator.device)
    optimizer, schedule = build_optimization(policy, config.optim, num_steps=num_steps)
    policy, backend = distribute(policy, optimizer, accelerator, max_grad_norm=config.optim.max_grad_norm)
    if backend.is_lockstep:
        raise UserError("supervised training needs whole weights on every rank: use DDP, ZeRO-1 or ZeRO-2")
    evaluator = build_evaluator(
        model,
        config,
        {"greedy": greedy(config.max_new_tokens)},
        utterances_per_batch=2 * config.utterances_per_device,
        accelerator=accelerator,
        backend=backend,
        run_dir=run_dir,
    )
    loader = make_loader(dataset, sampler, num_workers=config.data.num_workers)
    tracker = None
    if accelerator.is_main_process:
        tracker = start_tracker(config, run_dir, max_steps=sampler.num_batches)
    parts = SupervisedParts(policy, model, backend, schedule, loader, evaluator, tracker, accelerator)
    with tracker or nullcontext():
        SupervisedTrainer(parts, config, run_dir).run()
    if tracker:
        print(f"wrote {run_dir / 'model'}")


def _batches(config: DictConfig, dataset: SpeechDataset, accelerator: Accelerator) -> RepeatSampler:
    sizes = {
        "num_utterances": len(dataset),
        "num_generations": 1,
        "rows_per_step": config.utterances_per_device * accelerator.num_processes,
        "steps_per_generation": 1,
        "world_size": accelerator.num_processes,
        "rank": accelerator.process_index,
        "seed": config.seed,
        "drop_last": config.data.drop_last,
    }
    return RepeatSampler(**sizes, num_batches=RepeatSampler(**sizes).count_batches(config.num_epochs))
