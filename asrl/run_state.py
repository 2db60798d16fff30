"""This module is the only place that says what a run consists of, and saves and restores it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from asrl.backends import Backend
from asrl.checkpoint import Checkpoint, rotate, save_checkpoint, write_pointer
from asrl.data.dataset import SpeechLoader
from asrl.errors import UserError
from asrl.evaluator import Evaluator
from asrl.mirror import Mirror
from asrl.models.speech_llm import SpeechLLM
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
        backend: Takes the optimizer's steps, and knows how weights lie on the ranks.
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
        mirror: Keeps a copy of the run in a second folder; on the main process only, if at all.
    """

    policy: nn.Module
    model: SpeechLLM
    backend: Backend
    schedule: LambdaLR
    loader: SpeechLoader
    rewards: Mapping[str, WeightedReward]
    generate: Generate
    sampling: SamplingSettings
    starting_weights: Mapping[str, Tensor]
    evaluator: Evaluator
    tracker: Tracker | None
    accelerator: Accelerator
    run_dir: Path
    mirror: Mirror | None = None


@dataclass
class Progress:
    """How far a run is.

    Attributes:
        step: Optimizer steps done.
        position: Batches of rollouts used up.
        num_nonfinite: Optimizer steps skipped because a loss or gradient was not finite.
        best_cer: Lowest greedy error rate on ``dev``; None before the first evaluation.
        wandb_id: Of the wandb run.
        rows_per_step: Rows of one optimizer step over all ranks; with ``num_utterances``, what ``position``
            counts in.
        num_utterances: In the manifest of the training.
    """

    step: int = 0
    position: int = 0
    num_nonfinite: int = 0
    best_cer: float | None = None
    wandb_id: str | None = None
    rows_per_step: int | None = None
    num_utterances: int | None = None

    def count_in(self, *, rows_per_step: int, num_utterances: int) -> None:
        """Note what the position counts in.

        Raises:
            UserError: It was counted in something else up to here.
        """
        sizes = {
            "rows_per_step": (
                rows_per_step,
                "trainer.rows_per_device * trainer.gradient_accumulation_steps * processes",
            ),
            "num_utterances": (num_utterances, "the number of utterances in data.train"),
        }
        for name, (size, key) in sizes.items():
            before = getattr(self, name)
            if before not in (None, size):
                raise UserError(
                    f"{key} was {before} when the run began and cannot be {size} now: its position in the "
                    "data would mean something else; keep the product or the manifest, or start a new run"
                )
            setattr(self, name, size)


def save_run(parts: Parts, progress: Progress, *, keep: int, is_best: bool) -> None:
    """Write a checkpoint from the main process while the other ranks wait.

    No random state is saved: rollout noise is keyed, and dropout is seeded anew at every batch.

    Raises:
        UserError: It could not be written.
    """
    checkpoint = Checkpoint(
        trainable=parts.backend.weights(), optimizer=parts.backend.states(), state=asdict(progress)
    )
    if parts.accelerator.is_main_process:
        path = save_checkpoint(parts.run_dir, progress.step, checkpoint)
        if is_best:
            write_pointer(parts.run_dir, "best", path.name)
        rotate(parts.run_dir, keep, newest=progress.step)
        if parts.mirror:
            parts.mirror.update()
    parts.accelerator.wait_for_everyone()
