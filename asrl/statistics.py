"""This module is the only place that summarises the rollouts of a step: group by group, over all ranks."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from asrl.tree import build_trees


def reward_statistics(
    values: Float[Tensor, "n k"],
    totals: Float[Tensor, " n"],
    advantages: Float[Tensor, " n"],
    names: Sequence[str],
    num_generations: int,
) -> dict[str, float]:
    """Mean of the reward and of each part, spread within groups, and how many groups carry no signal.

    Args:
        values: Parts of the reward, NaN where one does not apply; rows group-major.
        totals: Weighted sum of the parts.
        advantages: Of the same rows.
        names: Of the parts.
        num_generations: Rows per group.
    """
    groups = totals.view(-1, num_generations)
    is_flat = groups.max(1).values == groups.min(1).values
    statistics = {
        "reward/mean": totals.mean().item(),
        "reward/std_within_group": groups.std(1).mean().item(),
        "reward/frac_zero_std": is_flat.float().mean().item(),
        "advantage/abs_mean": advantages.abs().mean().item(),
    }
    for name, part in zip(names, values.T, strict=True):
        applies = ~part.isnan()
        if applies.any():
            statistics[f"reward/{name}"] = part[applies].mean().item()
    return statistics


def diversity_statistics(
    tokens: Int[Tensor, "n l"], mask: Bool[Tensor, "n l"], num_generations: int
) -> dict[str, float]:
    """How many different transcripts a group has, how many groups have only one, and what a tree would keep.

    ``group/tree_share`` is the share of tokens left when shared beginnings count once.
    """
    row_group = torch.arange(len(tokens), device=tokens.device) // num_generations
    trees = build_trees(tokens, mask, row_group, len(tokens) // num_generations)
    padded = torch.where(mask, tokens, -1).view(-1, num_generations, tokens.shape[1])
    num_unique = torch.tensor([len(group.unique(dim=0)) for group in padded], dtype=torch.float32)
    return {
        "group/unique_transcripts": num_unique.mean().item(),
        "group/frac_identical": (num_unique == 1).float().mean().item(),
        "group/tree_share": (trees.is_node.sum() / mask.sum()).item(),
    }


def completion_statistics(mask: Bool[Tensor, "n l"], is_finished: Bool[Tensor, " n"]) -> dict[str, float]:
    """Length in tokens (end token included) and the share of rows cut at the token limit."""
    num_tokens = mask.sum(1).float()
    return {
        "completion/num_tokens_mean": num_tokens.mean().item(),
        "completion/num_tokens_max": num_tokens.max().item(),
        "completion/frac_truncated": (~is_finished).float().mean().item(),
    }


# Columns of what is counted in the text of each row.
ROW_COUNTS = (
    "errors",
    "reference_tokens",
    "has_loop",
    "hotword_hits",
    "hotword_misses",
    "hotword_insertions",
)


def text_statistics(counts: Float[Tensor, "n c"]) -> dict[str, float]:
    """Error rate over all rows, share of rows with a loop, hotword recall and insertions per row.

    Args:
        counts: Columns as in ``ROW_COUNTS``.
    """
    total = dict(zip(ROW_COUNTS, counts.sum(0).tolist(), strict=True))
    statistics = {
        "cer": total["errors"] / max(total["reference_tokens"], 1),
        "loop_rate": total["has_loop"] / len(counts),
        "hotword/false_insertions": total["hotword_insertions"] / len(counts),
    }
    if num_hotwords := total["hotword_hits"] + total["hotword_misses"]:
        statistics["hotword/recall"] = total["hotword_hits"] / num_hotwords
    return statistics
