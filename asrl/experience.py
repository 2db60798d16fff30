"""This module is the only place that turns drawn transcripts into what the policy learns from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from asrl.advantages import advantages
from asrl.rewards.base import WeightedReward
from asrl.types import Completions, SpeechBatch
from asrl.utterance import Utterance

Gather = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Experience:
    """Rows with everything that stays fixed while the policy is updated on them.

    Attributes:
        batch: The rows' utterances and features.
        completions: The rows' transcripts.
        advantages: Of every row, from the statistics of its group over all ranks.
        old_logps: Under the policy before its first update on these rows; None means the policy of the update
            itself (detached), which is the same when there is only one.
        ref_logps: Under the reference policy; None without KL penalty.
    """

    batch: SpeechBatch
    completions: Completions
    advantages: Float[Tensor, " n"]
    old_logps: Float[Tensor, "n l"] | None = None
    ref_logps: Float[Tensor, "n l"] | None = None

    def transcripts(self) -> list[list[int]]:
        """Tokens of every row, without padding."""
        rows = zip(self.completions.tokens.tolist(), self.completions.mask.sum(1).tolist(), strict=True)
        return [tokens[:num_tokens] for tokens, num_tokens in rows]

    def select(self, rows: Int[Tensor, " r"]) -> "Experience":
        """The rows of these numbers, as wide as the longest of them."""
        completions = self.completions
        width = int(completions.mask[rows].sum(1).max())

        def cut(values: Tensor) -> Tensor:
            return values[rows, :width]

        return Experience(
            batch=replace(
                self.batch,
                row_utterance=self.batch.row_utterance[rows],
                row_index=self.batch.row_index[rows],
                replica=self.batch.replica[rows],
                epoch=self.batch.epoch[rows],
            ),
            completions=Completions(
                tokens=cut(completions.tokens),
                mask=cut(completions.mask),
                is_finished=completions.is_finished[rows],
                sampling_logps=cut(completions.sampling_logps),
            ),
            advantages=self.advantages[rows],
            old_logps=None if self.old_logps is None else cut(self.old_logps),
            ref_logps=None if self.ref_logps is None else cut(self.ref_logps),
        )


def score(
    hypotheses: Sequence[str],
    utterances: Sequence[Utterance],
    rewards: Mapping[str, WeightedReward],
    *,
    is_truncated: Sequence[bool],
) -> Float[Tensor, "n k"]:
    """Call every reward function on every row; NaN where one does not apply."""
    columns = [reward(hypotheses, utterances, is_truncated=is_truncated) for reward in rewards.values()]
    rows = [[float("nan") if value is None else value for value in row] for row in zip(*columns, strict=True)]
    return torch.tensor(rows, dtype=torch.float32).reshape(len(hypotheses), len(columns))


def gather_in_order(values: Tensor, row_index: Int[Tensor, " n"], gather: Gather) -> Tensor:
    """Collect the rows of all ranks, sorted by their place in the batch so that groups are contiguous."""
    return gather(values)[gather(row_index).argsort()]


def group_relative(
    values: Float[Tensor, "n k"],
    row_index: Int[Tensor, " n"],
    gather: Gather,
    *,
    weights: Sequence[float],
    num_generations: int,
    scale_rewards: str,
    estimator: str,
) -> Float[Tensor, " n"]:
    """Advantages of this rank's rows; a group may have rows on several ranks."""
    everyone = advantages(
        gather_in_order(values, row_index, gather),
        torch.tensor(weights, dtype=values.dtype, device=values.device),
        num_generations,
        scale_rewards=scale_rewards,
        estimator=estimator,
    )
    return everyone[row_index]
