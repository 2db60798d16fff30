"""This module is the only place that says in which order a reinforcement-learning step happens."""

from collections.abc import Iterator

import torch
from accelerate.utils import gather_object
from jaxtyping import Float
from omegaconf import DictConfig
from torch import Tensor

from asrl.backends import any_rank
from asrl.experience import Experience, group_relative, score
from asrl.learner import Learner
from asrl.reports import rollout_metrics, transcript_rows
from asrl.run_state import Parts, Progress, save_run
from asrl.sampling import stable_hash
from asrl.tracking import Clock, timed
from asrl.types import Completions, SpeechBatch, on_device


class Trainer:
    """Samples, scores and learns until ``max_steps``."""

    def __init__(self, parts: Parts, config: DictConfig, progress: Progress, *, num_batches: int) -> None:
        self.parts = parts
        self.config = config
        self.progress = progress
        self.num_batches = num_batches
        self.reward_weights = {name: reward.weight for name, reward in parts.rewards.items()}
        self.clock = Clock()
        self.learner = Learner(parts, config, progress, self.clock)
        self.is_asked_to_stop = False
        self.is_stopping = False

    def run(self) -> None:
        """Train up to the last batch, or to the end of the batch in which ``stop`` was called."""
        for batch in self.batches():
            completions = self.rollout(batch)
            experience = self.collect(batch, completions)
            for rows in self.learner.optimizer_steps(experience):
                self.update(rows)
            self.finish_batch()

    def stop(self, *_: object) -> None:
        """Ask for an end after this batch, with a checkpoint; usable as a signal handler."""
        self.is_asked_to_stop = True

    # ---- one batch -----------------------------------------------------------------------------------------

    def batches(self) -> Iterator[SpeechBatch]:
        """The batches left, each with dropout seeded by (seed, batch, rank): a resumed run repeats it."""
        device, rank = self.parts.accelerator.device, self.parts.accelerator.process_index
        batches = iter(self.parts.loader)
        while self.progress.position < self.num_batches and not self.is_stopping:
            with self.clock.phase("features"):
                batch = self.parts.model.keep_encoded(on_device(next(batches), device))
            torch.manual_seed(stable_hash(self.config.seed, "dropout", self.progress.position, rank))
            yield batch

    @timed("rollout")
    def rollout(self, batch: SpeechBatch) -> Completions:
        """Draw one transcript per row."""
        is_any_rank_busy = self.parts.backend.is_any_rank_busy
        return self.parts.generate(
            self.parts.model, batch, self.parts.sampling, is_any_rank_busy=is_any_rank_busy
        )

    def collect(self, batch: SpeechBatch, completions: Completions) -> Experience:
        """Score the transcripts and fix what the updates compare with."""
        hypotheses = self.parts.model.decode(completions)
        values = self.score(batch, completions, hypotheses)
        advantages = group_relative(
            values,
            batch.row_index,
            self.parts.accelerator.gather,
            weights=list(self.reward_weights.values()),
            num_generations=self.config.num_generations,
            scale_rewards=self.config.scale_rewards,
            estimator=self.config.advantage_estimator,
        )
        experience = Experience(batch, completions, advantages)
        self.report(experience, values, hypotheses)
        self.parts.model.train()
        return self.learner.fix_policies(experience)

    @timed("reward")
    def score(
        self, batch: SpeechBatch, completions: Completions, hypotheses: list[str]
    ) -> Float[Tensor, "n k"]:
        """Call the reward functions on this rank's transcripts."""
        is_truncated = (~completions.is_finished).tolist()
        values = score(hypotheses, batch.row_utterances, self.parts.rewards, is_truncated=is_truncated)
        return values.to(completions.tokens.device)

    @timed("report")
    def report(self, experience: Experience, values: Float[Tensor, "n k"], hypotheses: list[str]) -> None:
        """Keep the rollouts' statistics for the next line of metrics, and some transcripts."""
        self.rollout_metrics = rollout_metrics(
            experience,
            values,
            hypotheses,
            reward_weights=self.reward_weights,
            num_generations=self.config.num_generations,
            accelerator=self.parts.accelerator,
        )
        self.transcripts = transcript_rows(experience, values, hypotheses, list(self.reward_weights))

    def update(self, rows: Experience) -> None:
        """One optimizer step, and its line of metrics."""
        self.log(self.learner.learn(rows))

    def log(self, metrics: dict[str, float]) -> None:
        """Write one line of metrics; the first step on a batch also reports its rollouts."""
        work = self.parts.model.work
        timings = self.clock.read() | {f"work/{name}": count for name, count in work.items()}
        work.clear()
        is_due = self.is_due(self.config.logger.completions_every, 1)
        transcripts = gather_object(self.transcripts) if is_due else []
        if self.parts.tracker:
            self.parts.tracker.step(self.progress.step, self.rollout_metrics | metrics, timings)
            if transcripts:
                self.parts.tracker.transcripts(self.progress.step, transcripts)
        self.rollout_metrics = {}

    # ---- between batches -----------------------------------------------------------------------------------

    def is_due(self, every: int, num_steps: int) -> bool:
        """Whether a multiple of ``every`` lies within the last ``num_steps`` optimizer steps."""
        return every > 0 and self.progress.step // every > (self.progress.step - num_steps) // every

    def finish_batch(self) -> None:
        """Evaluate and save where it is due; nothing is buffered here, so a run can go on from here."""
        self.progress.position += 1
        self.is_stopping = any_rank(self.is_asked_to_stop)
        num_steps = self.config.num_iterations * self.config.steps_per_generation
        is_last = self.progress.position == self.num_batches
        is_best = (is_last or self.is_due(self.config.trainer.eval_every, num_steps)) and self.evaluate()
        if is_best or is_last or self.is_stopping or self.is_due(self.config.trainer.save_every, num_steps):
            save_run(self.parts, self.progress, keep=self.config.trainer.keep_checkpoints, is_best=is_best)

    def evaluate(self) -> bool:
        """Greedy error rate on ``dev``; return whether it is the lowest so far."""
        if "dev" not in self.parts.evaluator.datasets:
            return False
        rates = self.parts.evaluator.run("dev", "greedy", step=self.progress.step)
        if self.parts.tracker:
            self.parts.tracker.evaluation(self.progress.step, rates)
        cer, best = rates["dev_greedy/cer"], self.progress.best_cer
        if best is not None and cer >= best:
            return False
        self.progress.best_cer = cer
        return True
