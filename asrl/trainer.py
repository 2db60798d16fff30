"""This module is the only place that says in which order a reinforcement-learning step happens."""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from accelerate.utils import gather_object
from jaxtyping import Float, Int
from omegaconf import DictConfig
from torch import Tensor

from asrl.errors import UserError
from asrl.experience import Experience, group_relative, score
from asrl.losses import LossOutput, Metric, aggregation_weights, mean_metric, policy_loss
from asrl.micro_batches import cut_rows, replica_positions, rows_with_signal, tree_positions
from asrl.optimization import learning_rates, swapped_parameters
from asrl.reports import reduce_metrics, rollout_metrics, transcript_rows
from asrl.run_state import Parts, Progress, save_run
from asrl.sampling import stable_hash
from asrl.tracking import Clock, timed
from asrl.types import Completions, SpeechBatch, TokenScores, on_device

POSITIONS = {"tree": tree_positions, "replicas": replica_positions}


class Trainer:
    """Samples, scores and learns until ``max_steps``."""

    def __init__(self, parts: Parts, config: DictConfig, progress: Progress, *, num_batches: int) -> None:
        self.parts = parts
        self.config = config
        self.progress = progress
        self.num_batches = num_batches
        self.reward_weights = {name: reward.weight for name, reward in parts.rewards.items()}
        self.clock = Clock()
        self.is_asked_to_stop = False
        self.is_stopping = False

    def run(self) -> None:
        """Train up to the last batch, or to the end of the batch in which ``stop`` was called."""
        for batch in self.batches():
            completions = self.rollout(batch)
            experience = self.collect(batch, completions)
            for rows in self.optimizer_steps(experience):
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
                batch = on_device(next(batches), device)
            torch.manual_seed(stable_hash(self.config.seed, "dropout", self.progress.position, rank))
            yield batch

    @timed("rollout")
    def rollout(self, batch: SpeechBatch) -> Completions:
        """Draw one transcript per row."""
        return self.parts.generate(self.parts.model, batch, self.parts.sampling)

    def collect(self, batch: SpeechBatch, completions: Completions) -> Experience:
        """Score the transcripts and fix what the updates compare with."""
        hypotheses = self.decode(completions)
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
        return replace(experience, old_logps=self.old_logps(experience), ref_logps=self.ref_logps(experience))

    def decode(self, completions: Completions) -> list[str]:
        """Transcripts as text."""
        rows = zip(completions.tokens, completions.mask, strict=True)
        return [self.parts.model.prompt.decode(tokens[mask].tolist()) for tokens, mask in rows]

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

    @timed("old")
    def old_logps(self, experience: Experience) -> Float[Tensor, "n l"] | None:
        """Log-probs before the first update on these rows; None: those of the update itself."""
        match self.config.old_logps:
            case "recompute" | "same_masks":
                return self.frozen_logps(experience)
            case "rollout":
                return experience.completions.sampling_logps
        return None

    @timed("ref")
    def ref_logps(self, experience: Experience) -> Float[Tensor, "n l"] | None:
        """Log-probs under the reference policy."""
        if not self.config.beta:
            return None
        if self.config.reference == "adapter_off":
            return self.frozen_logps(experience, with_adapter=False)
        with swapped_parameters(self.parts.model, self.parts.starting_weights):
            return self.frozen_logps(experience)

    @torch.no_grad()
    def frozen_logps(self, experience: Experience, *, with_adapter: bool = True) -> Float[Tensor, "n l"]:
        """Score rows without gradient, in the micro-batches of the updates; 0 for rows that no update uses."""
        logps = torch.zeros_like(experience.completions.sampling_logps)
        for step_rows in self.step_rows(len(logps)):
            for rows in self.cut(experience, step_rows):
                scores = self.forward(experience.select(rows), with_adapter=with_adapter)
                logps[rows, : scores.logps.shape[1]] = scores.logps
        return logps

    def forward(self, rows: Experience, *, with_adapter: bool = True) -> TokenScores:
        """Score rows with the current weights.

        With ``old_logps=same_masks`` the dropout masks of a micro-batch are the same each time it is scored.
        """
        if self.config.old_logps == "same_masks":
            first_row = int(rows.batch.row_index[0])
            torch.manual_seed(stable_hash(self.config.seed, "masks", self.progress.position, first_row))
        completions = rows.completions
        return self.parts.policy(
            rows.batch,
            completions.tokens,
            completions.mask,
            temperature=self.config.rollout.temperature,
            with_adapter=with_adapter,
        )

    # ---- one optimizer step --------------------------------------------------------------------------------

    def step_rows(self, num_rows: int) -> Sequence[Int[Tensor, " r"]]:
        """Numbers of this rank's rows of each optimizer step on a batch."""
        rows = torch.arange(num_rows, device=self.parts.accelerator.device)
        return rows.chunk(self.config.steps_per_generation)

    def optimizer_steps(self, experience: Experience) -> Iterator[Experience]:
        """The rows of every optimizer step on this batch: its parts in turn, ``num_iterations`` times."""
        for _ in range(self.config.num_iterations):
            for rows in self.step_rows(len(experience.advantages)):
                yield experience.select(rows)

    def cut(self, experience: Experience, rows: Int[Tensor, " r"]) -> list[Int[Tensor, " r"]]:
        """Cut rows into what fits one forward and backward pass, without rows that have no gradient.

        A rank whose rows all have none keeps the first, so that it joins the collectives of the others.
        """
        if not self.config.beta:
            has_signal = rows_with_signal(experience.advantages[rows], experience.batch.row_utterance[rows])
            rows = rows[has_signal] if has_signal.any() else rows[:1]
        selected = experience.select(rows)
        count = POSITIONS[self.config.model.layout](
            selected.transcripts(),
            selected.batch.row_utterance.tolist(),
            self.parts.model.count_prompt(selected.batch.num_frames).tolist(),
        )
        parts = cut_rows(
            selected.batch.row_utterance.tolist(),
            max_rows=self.config.trainer.rows_per_device,
            max_positions=self.config.trainer.max_positions,
            count=count,
        )
        return [rows[torch.tensor(part, device=rows.device)] for part in parts]

    @timed("update")
    def update(self, rows: Experience) -> None:
        """One optimizer step.

        Token weights are normalised over all ranks, so micro-batches and ranks just add up.
        """
        everything = torch.arange(len(rows.advantages), device=self.parts.accelerator.device)
        micro_batches = [rows.select(part) for part in self.cut(rows, everything)]
        num_rows, num_tokens = self.count(rows)
        metrics: dict[str, Metric] = {}
        loss = torch.zeros((), device=self.parts.accelerator.device)
        for index, micro in enumerate(micro_batches):
            is_last = index + 1 == len(micro_batches)
            with nullcontext() if is_last else self.parts.accelerator.no_sync(self.parts.policy):
                output = self.loss(micro, num_rows=num_rows, num_tokens=num_tokens)
                # DDP averages gradients over ranks; the loss is a sum.
                self.parts.accelerator.backward(output.loss * self.parts.accelerator.num_processes)
            metrics = {
                name: metric + metrics[name] if metrics else metric for name, metric in output.metrics.items()
            }
            loss += output.loss.detach()
        loss = self.parts.accelerator.reduce(loss, "sum")
        self.step(rows, {"loss": loss.item()} | reduce_metrics(metrics, self.parts.accelerator))

    def count(self, rows: Experience) -> tuple[int, int]:
        """Rows and completion tokens of this optimizer step over all ranks."""
        mask = rows.completions.mask
        counts = torch.tensor([len(mask), int(mask.sum())], device=mask.device)
        num_rows, num_tokens = self.parts.accelerator.reduce(counts, "sum").tolist()
        return num_rows, num_tokens

    def loss(self, rows: Experience, *, num_rows: int, num_tokens: int) -> LossOutput:
        """The share of one micro-batch in the loss of the optimizer step."""
        config, mask = self.config, rows.completions.mask
        weights = aggregation_weights(
            mask,
            loss_type=config.loss_type,
            num_rows=num_rows,
            num_tokens=num_tokens,
            max_completion_length=config.rollout.max_new_tokens,
        )
        scores = self.forward(rows)
        output = policy_loss(
            scores.logps,
            old_logps=rows.old_logps,
            ref_logps=rows.ref_logps,
            advantages=rows.advantages,
            mask=mask,
            importance_sampling_level=config.importance_sampling_level,
            loss_type=config.loss_type,
            beta=config.beta,
            epsilon=config.epsilon,
            epsilon_high=config.epsilon_high,
            delta=config.delta,
            weights=weights,
        )
        entropy = {"entropy": mean_metric(scores.entropy, mask)}
        return LossOutput(output.loss, output.metrics | entropy)

    def step(self, rows: Experience, metrics: dict[str, float]) -> None:
        """Apply the gradient, unless it or the loss is not finite, and log."""
        parts = self.parts
        norm = float(
            parts.accelerator.clip_grad_norm_(parts.policy.parameters(), self.config.optim.max_grad_norm)
        )
        # Gradients and loss are global, so every rank decides alike.
        if math.isfinite(norm) and math.isfinite(metrics["loss"]):
            parts.optimizer.step()
        else:
            self.reject(rows, metrics["loss"], norm)
        rates = learning_rates(parts.optimizer)
        parts.schedule.step()
        parts.optimizer.zero_grad()
        self.progress.step += 1
        self.log(metrics | {"grad_norm": norm, "num_nonfinite": self.progress.num_nonfinite} | rates)

    def reject(self, rows: Experience, loss: float, norm: float) -> None:
        """Dump a batch whose loss or gradient is not finite; stop, or count and skip it.

        Raises:
            UserError: With ``trainer.on_nonfinite=stop``.
        """
        rank, step = self.parts.accelerator.process_index, self.progress.step + 1
        dump = self.parts.run_dir / f"nonfinite-step-{step}-rank-{rank}.json"
        keys = [utterance.key for utterance in rows.batch.row_utterances]
        hypotheses = self.decode(rows.completions)
        content = {"step": step, "loss": str(loss), "grad_norm": str(norm), "rows": []}
        for key, hypothesis, advantage in zip(keys, hypotheses, rows.advantages.tolist(), strict=True):
            content["rows"].append({"key": key, "hypothesis": hypothesis, "advantage": advantage})
        dump.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
        self.progress.num_nonfinite += 1
        if self.config.trainer.on_nonfinite == "stop":
            raise UserError(
                f"step {step}: the loss ({loss}) or the gradient norm ({norm}) is not finite; "
                f"rows dumped to {dump}; lower optim.learning_rate, or set trainer.on_nonfinite=skip"
            )

    def log(self, metrics: dict[str, float]) -> None:
        """Write one line of metrics; the first step on a batch also reports its rollouts."""
        timings = self.clock.read()
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
        self.is_stopping = self.any_rank(self.is_asked_to_stop)
        num_steps = self.config.num_iterations * self.config.steps_per_generation
        is_last = self.progress.position == self.num_batches
        is_best = (is_last or self.is_due(self.config.trainer.eval_every, num_steps)) and self.evaluate()
        if is_best or is_last or self.is_stopping or self.is_due(self.config.trainer.save_every, num_steps):
            save_run(self.parts, self.progress, keep=self.config.trainer.keep_checkpoints, is_best=is_best)

    def any_rank(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        accelerator = self.parts.accelerator
        return bool(accelerator.reduce(torch.tensor(float(flag), device=accelerator.device), "sum"))

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
