"""This module is the only place that scores rows with the policy and takes optimizer steps on them."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from omegaconf import DictConfig
from torch import Tensor

from asrl.errors import UserError
from asrl.experience import Experience
from asrl.losses import LossOutput, Metric, aggregation_weights, mean_metric, policy_loss
from asrl.micro_batches import cut_rows, replica_positions, rows_with_signal, tree_positions
from asrl.optimization import learning_rates
from asrl.reports import reduce_metrics
from asrl.run_state import Parts, Progress
from asrl.sampling import stable_hash
from asrl.tracking import Clock, timed
from asrl.types import TokenScores

Metrics = Mapping[str, Metric]
POSITIONS = {"tree": tree_positions, "replicas": replica_positions}


def add_metrics(metrics: Metrics, others: Metrics) -> Metrics:
    """Combine the metrics of micro-batches; the same names in each."""
    return {name: metrics[name] + other if metrics else other for name, other in others.items()}


class Learner:
    """The policy, and how it learns from rows of experience."""

    def __init__(self, parts: Parts, config: DictConfig, progress: Progress, clock: Clock) -> None:
        self.parts = parts
        self.config = config
        self.progress = progress
        self.clock = clock

    def fix_policies(self, experience: Experience) -> Experience:
        """Add the log-probs under the old and the reference policy, which stay as they are from here on."""
        old_logps, ref_logps = self.old_logps(experience), self.ref_logps(experience)
        return replace(experience, old_logps=old_logps, ref_logps=ref_logps)

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
        with self.parts.backend.swapped(self.parts.starting_weights):
            return self.frozen_logps(experience)

    @torch.no_grad()
    def frozen_logps(self, experience: Experience, *, with_adapter: bool = True) -> Float[Tensor, "n l"]:
        """Score rows without gradient, in the micro-batches of the updates; 0 for rows that none uses."""
        logps = torch.zeros_like(experience.completions.sampling_logps)
        for step_rows in self.step_rows(len(logps)):
            for rows, is_own in self.in_step(self.cut(experience, step_rows)):
                scores = self.forward(experience.select(rows), with_adapter=with_adapter)
                if is_own:
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

    def step_rows(self, num_rows: int) -> Sequence[Int[Tensor, " r"]]:
        """Numbers of this rank's rows of each optimizer step on a batch."""
        rows = torch.arange(num_rows, device=self.parts.accelerator.device)
        return rows.chunk(self.config.steps_per_generation)

    def optimizer_steps(self, experience: Experience) -> Iterator[Experience]:
        """The rows of every optimizer step on this batch: its parts in turn, ``num_iterations`` times."""
        for _ in range(self.config.num_iterations):
            for rows in self.step_rows(len(experience.advantages)):
                yield experience.select(rows)

    def cut(self, experience: Experience, rows: Int[Tensor, " r"]) -> list[Int[Tensor, " _"]]:
        """Cut rows into what fits one forward and backward pass.

        Rows without a gradient are left out, except in the replica layout, which does what padded trainers
        do. A rank whose rows all have none keeps the first, so that it joins the collectives of the others.
        """
        if not self.config.beta and self.config.model.layout == "tree":
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

    def in_step(self, parts: list[Int[Tensor, " _"]]) -> Iterator[tuple[Int[Tensor, " _"], bool]]:
        """As many parts on every rank: one that has fewer gets its first again, which must not count."""
        num_own = torch.tensor([len(parts)], device=self.parts.accelerator.device)
        num_parts = int(self.parts.accelerator.gather(num_own).max())
        yield from ((part, True) for part in parts)
        yield from ((parts[0], False) for _ in range(num_parts - len(parts)))

    @timed("update")
    def learn(self, rows: Experience) -> dict[str, float]:
        """One optimizer step; return its metrics.

        Token weights are normalised over all ranks, so micro-batches and ranks just add up.
        """
        everything = torch.arange(len(rows.advantages), device=self.parts.accelerator.device)
        micro_batches = list(self.in_step(self.cut(rows, everything)))
        num_rows, num_tokens = self.count(rows)
        metrics: Metrics = {}
        loss = torch.zeros((), device=self.parts.accelerator.device)
        for index, (part, is_own) in enumerate(micro_batches):
            output = self.loss(rows.select(part), num_rows=num_rows, num_tokens=num_tokens)
            # Gradients are averaged over ranks; the loss is a sum.
            scale = self.parts.accelerator.num_processes if is_own else 0
            self.parts.backend.backward(output.loss * scale, is_last=index + 1 == len(micro_batches))
            if is_own:
                metrics = add_metrics(metrics, output.metrics)
                loss += output.loss.detach()
        loss = self.parts.accelerator.reduce(loss, "sum")
        return self.apply_gradient(
            rows, {"loss": loss.item()} | reduce_metrics(metrics, self.parts.accelerator)
        )

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

    def apply_gradient(self, rows: Experience, metrics: dict[str, float]) -> dict[str, float]:
        """Let the optimizer take its step, unless the gradient or the loss is not finite."""
        # Gradients and loss are global, so every rank decides alike.
        is_wanted = math.isfinite(metrics["loss"])
        norm = self.parts.backend.step(self.config.optim.max_grad_norm, is_wanted=is_wanted)
        if not (is_wanted and math.isfinite(norm)):
            self.reject(rows, metrics["loss"], norm)
        rates = learning_rates(self.parts.schedule.optimizer)
        self.parts.schedule.step()
        self.progress.step += 1
        return metrics | {"grad_norm": norm, "num_nonfinite": self.progress.num_nonfinite} | rates

    def reject(self, rows: Experience, loss: float, norm: float) -> None:
        """Dump a batch whose loss or gradient is not finite; stop, or count and skip it.

        Raises:
            UserError: With ``trainer.on_nonfinite=stop``.
        """
        rank, step = self.parts.accelerator.process_index, self.progress.step + 1
        dump = self.parts.run_dir / f"nonfinite-step-{step}-rank-{rank}.json"
        keys = [utterance.key for utterance in rows.batch.row_utterances]
        hypotheses = self.parts.model.decode(rows.completions)
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
