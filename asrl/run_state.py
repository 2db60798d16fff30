"""This module is the only place that says what a run consists of, and saves and restores it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from asrl.checkpoint import Checkpoint, rotate, save_checkpoint, write_pointer
from asrl.data.dataset import SpeechLoader
from asrl.evaluator import Evaluator
from asrl.models.speech_llm import SpeechLLM
from asrl.optimization import load_parameters, trainable_parameters
from asrl.rewards.base import WeightedReward
from asrl.rollout.engines import Generate
from asrl.rollout.settings import SamplingSettings
from asrl.tracking import Tracker


@dataclass(frozen=True)
class Parts:
    """What a run is made of.

    Attributes:
        policy: The model as wrapped by accelerate: for forwards that are followed by a backward.
        model: The same model without its wrapper.
        optimizer: As wrapped by accelerate.
        schedule: Of the learning rates, one step per optimizer step.
        loader: Batches of rollouts, from the run's position on.
        rewards: By name.
        generate: Rollout engine.
        sampling: Distribution of the rollouts.
        starting_weights: Trained weights as they were at the start of the run, for ``reference=frozen``.
        evaluator: Holds the held-out sets.
        tracker: On the main process only.
        accelerator: Runs it all.
        run_dir: Where the run is written to.
    """

    policy: nn.Module
    model: SpeechLLM
    optimizer: Optimizer
    schedule: LRScheduler
    loader: SpeechLoader
    rewards: Mapping[str, WeightedReward]
    generate: Generate
    sampling: SamplingSettings
    starting_weights: Mapping[str, Tensor]
    evaluator: Evaluator
    tracker: Tracker | None
    accelerator: Accelerator
    run_dir: Path


@dataclass
class Progress:
    """How far a run is.

    Attributes:
        step: Optimizer steps done.
        position: Batches of rollouts used up.
        num_nonfinite: Optimizer steps skipped because a loss or gradient was not finite.
        best_cer: Lowest greedy error rate on ``dev``; None before the first evaluation.
        wandb_id: Of the wandb run.
    """

    step: int = 0
    position: int = 0
    num_nonfinite: int = 0
    best_cer: float | None = None
    wandb_id: str | None = None


def save_run(parts: Parts, progress: Progress, *, keep: int, is_best: bool) -> None:
    """Write a checkpoint from the main process while the other ranks wait.

    No random state is saved: rollout noise is keyed, and dropout is seeded anew at every batch.

    Raises:
        UserError: It could not be written.
    """
    if parts.accelerator.is_main_process:
        checkpoint = Checkpoint(
            trainable=trainable_parameters(parts.model),
            optimizer={"optimizer": parts.optimizer.state_dict(), "schedule": parts.schedule.state_dict()},
            state=asdict(progress),
        )
        path = save_checkpoint(parts.run_dir, progress.step, checkpoint)
        if is_best:
            write_pointer(parts.run_dir, "best", path.name)
        rotate(parts.run_dir, keep, newest=progress.step)
    parts.accelerator.wait_for_everyone()


def restore_run(
    model: SpeechLLM, optimizer: Optimizer, schedule: LRScheduler, checkpoint: Checkpoint, *, place: str
) -> Progress:
    """Put a checkpoint's weights and states in place.

    Raises:
        UserError: The checkpoint belongs to another configuration.
    """
    load_parameters(model, checkpoint.trainable, place=place)
    optimizer.load_state_dict(checkpoint.optimizer["optimizer"])
    schedule.load_state_dict(checkpoint.optimizer["schedule"])
    return Progress(**checkpoint.state)
