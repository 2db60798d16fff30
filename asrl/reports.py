"""This module is the only place that gathers what a step reports from all ranks."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from accelerate import Accelerator
from jaxtyping import Float
from torch import Tensor

from asrl.advantages import combine_rewards
from asrl.experience import Experience, gather_in_order
from asrl.losses import Metric
from asrl.rewards.hallucination import loop_share
from asrl.rewards.hotword import hotword_counts
from asrl.statistics import (
    ROW_COUNTS,
    completion_statistics,
    diversity_statistics,
    reward_statistics,
    text_statistics,
)
from asrl.text import error_counts
from asrl.utterance import Utterance


def reduce_metrics(metrics: Mapping[str, Metric], accelerator: Accelerator) -> dict[str, float]:
    """Combine the metrics of all ranks; names and kinds are the same everywhere."""
    names = sorted(metrics)
    local = torch.stack([torch.stack([metrics[name].total, metrics[name].weight]) for name in names])
    everyone = accelerator.gather(local[None])
    reduced = {}
    for index, name in enumerate(names):
        ranks = [Metric(metrics[name].kind, total, weight) for total, weight in everyone[:, index]]
        reduced[name] = sum(ranks[1:], ranks[0]).value
    return reduced


def count_rows(hypotheses: Sequence[str], utterances: Sequence[Utterance]) -> Float[Tensor, "n c"]:
    """What can be counted in each hypothesis; columns as in ``ROW_COUNTS``."""
    rows = []
    for hypothesis, utterance in zip(hypotheses, utterances, strict=True):
        errors = error_counts(utterance.transcript, hypothesis)
        hotwords = hotword_counts(hypothesis, utterance)
        has_loop = loop_share(hypothesis, utterance.transcript) > 0
        found = (hotwords.hits, hotwords.misses, hotwords.false_insertions)
        rows.append([errors.errors, errors.num_reference_tokens, has_loop, *found])
    return torch.tensor(rows, dtype=torch.float64).reshape(len(rows), len(ROW_COUNTS))


def rollout_metrics(
    experience: Experience,
    values: Float[Tensor, "n k"],
    hypotheses: Sequence[str],
    *,
    reward_weights: Mapping[str, float],
    num_generations: int,
    accelerator: Accelerator,
) -> dict[str, float]:
    """Statistics of a batch of rollouts over all ranks.

    Args:
        experience: This rank's rows.
        values: Their rewards, part by part.
        hypotheses: Their transcripts as text.
        reward_weights: Weight of each part, in the order of ``values``.
        num_generations: Rows per group.
        accelerator: Gathers.
    """
    completions, row_index = experience.completions, experience.batch.row_index

    def everyone(local: Tensor) -> Tensor:
        return gather_in_order(local, row_index, accelerator.gather)

    def everyone_padded(local: Tensor) -> Tensor:
        # As integers: accelerate pads with the number 0, and would make them of truth values on some ranks.
        return everyone(accelerator.pad_across_processes(local.long(), dim=1)).to(local.dtype)

    values = everyone(values)
    weights = torch.tensor(list(reward_weights.values()), device=values.device)
    totals = combine_rewards(values, weights)
    counts = everyone(count_rows(hypotheses, experience.batch.row_utterances).to(values.device))
    mask = everyone_padded(completions.mask)
    tokens = everyone_padded(completions.tokens)
    return {
        **reward_statistics(
            values, totals, everyone(experience.advantages), list(reward_weights), num_generations
        ),
        **diversity_statistics(tokens, mask, num_generations),
        **completion_statistics(mask, everyone(completions.is_finished)),
        **text_statistics(counts),
    }


def transcript_rows(
    experience: Experience,
    values: Float[Tensor, "n k"],
    hypotheses: Sequence[str],
    reward_names: Sequence[str],
) -> list[dict[str, Any]]:
    """This rank's transcripts with their rewards, equal ones of an utterance once with their number.

    None stands for a reward that does not apply: JSON has no NaN.
    """
    rows: dict[tuple[int, str], dict[str, Any]] = {}
    local = zip(
        experience.batch.row_utterance.tolist(),
        experience.batch.row_utterances,
        hypotheses,
        values.tolist(),
        experience.advantages.tolist(),
        strict=True,
    )
    for index, utterance, hypothesis, parts, advantage in local:
        row = rows.setdefault(
            (index, hypothesis),
            {
                "key": utterance.key,
                "transcript": utterance.transcript,
                "hypothesis": hypothesis,
                "num": 0,
                **{
                    name: None if math.isnan(part) else part
                    for name, part in zip(reward_names, parts, strict=True)
                },
                "advantage": advantage,
            },
        )
        row["num"] += 1
    return list(rows.values())
