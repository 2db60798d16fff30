"""This module is the only place that turns rewards into advantages.

Rows are group-major: the ``num_generations`` rows of an utterance are neighbours, gathered over all ranks.
"""

import torch
from jaxtyping import Float, Real
from torch import Tensor

from asrl.errors import UserError
from asrl.registry import nearest

ESTIMATORS = ("grpo", "rloo", "reinforce_plus_plus", "gdpo")
SCALES = ("group", "batch", "none")

# Added to every standard deviation, as TRL does: it bounds the advantages of a group whose rewards differ
# by rounding only.
STD_OFFSET = 1e-4


def advantages(
    values: Float[Tensor, "n k"],
    weights: Float[Tensor, " k"],
    num_generations: int,
    *,
    scale_rewards: str = "group",
    estimator: str = "grpo",
) -> Float[Tensor, " n"]:
    """Advantage of each row from the values of its reward functions.

    Args:
        values: One column per reward function; NaN where it does not apply.
        weights: Weight of each reward function.
        num_generations: Rows per utterance.
        scale_rewards: See ``group_advantages``.
        estimator: ``gdpo`` normalises each reward by itself; the others, see ``group_advantages``, their sum.

    Raises:
        UserError: Unknown ``estimator`` or ``scale_rewards``.
    """
    _check_names(estimator, scale_rewards)
    if estimator == "gdpo":
        return gdpo_advantages(values, weights, num_generations)
    rewards = combine_rewards(values, weights)
    return group_advantages(rewards, num_generations, scale_rewards=scale_rewards, estimator=estimator)


def combine_rewards(values: Float[Tensor, "n k"], weights: Float[Tensor, " k"]) -> Float[Tensor, " n"]:
    """Weighted sum of the reward functions that apply (are not NaN); 0 for a row to which none does."""
    return (values * weights.to(values.dtype)).nansum(1)


def group_advantages(
    rewards: Real[Tensor, " n"],
    num_generations: int,
    *,
    scale_rewards: str = "group",
    estimator: str = "grpo",
) -> Float[Tensor, " n"]:
    """How much better a row is than its siblings; exactly 0 where all rewards of a group are equal.

    Standard deviations divide by count - 1. Estimators:

    ``grpo``: ``(R - group mean) / (std + 1e-4)`` (arXiv 2402.03300, 4.1.2).
    ``rloo``: ``(R - mean of the other rows) / (std + 1e-4)`` (arXiv 2402.14740, which does not divide:
    ``scale_rewards="none"``).
    ``reinforce_plus_plus``: ``A = R - group mean``, then ``A / (std of A over the batch + 1e-4)``: the
    REINFORCE++-baseline of arXiv 2501.03262. It sets the scale itself, whatever ``scale_rewards`` says. The
    paper also subtracts the batch mean of ``A``, which is 0 by construction.

    Args:
        rewards: One per row.
        num_generations: Rows per utterance.
        scale_rewards: ``group``: std of the group's rewards; ``batch``: std of all rewards, so that a group
            keeps the size of its differences; ``none``: no division (arXiv 2503.20783).
        estimator: As above.

    Raises:
        UserError: Unknown ``estimator`` or ``scale_rewards``.
    """
    _check_names(estimator, scale_rewards)
    assert estimator != "gdpo", "gdpo needs the rewards one by one: call advantages()"
    assert len(rewards) % num_generations == 0, (len(rewards), num_generations)
    dtype = torch.promote_types(rewards.dtype, torch.float32)
    if num_generations == 1:  # no siblings to compare with, and no std
        return torch.zeros_like(rewards, dtype=dtype)
    # float64: in float32 the mean of eight rewards of 0.9 is not 0.9.
    groups = rewards.double().view(-1, num_generations)
    centred = groups - groups.mean(1, keepdim=True)
    if estimator == "rloo":
        centred = centred * (num_generations / (num_generations - 1))
    # Not left to the std: even in float64 the mean of equal numbers may differ from them.
    has_signal = groups.amax(1, keepdim=True) > groups.amin(1, keepdim=True)
    centred = torch.where(has_signal, centred, 0.0)
    if estimator == "reinforce_plus_plus":
        scaled = centred / (centred.std() + STD_OFFSET)
    elif scale_rewards == "none":
        scaled = centred
    else:
        std = groups.std(1, keepdim=True) if scale_rewards == "group" else groups.std()
        scaled = centred / (std + STD_OFFSET)
    return scaled.flatten().to(dtype)


def gdpo_advantages(
    values: Float[Tensor, "n k"], weights: Float[Tensor, " k"], num_generations: int
) -> Float[Tensor, " n"]:
    """Normalise each reward in its group, add them up by weight, then divide by the batch's std.

    Rewards of different spread keep the influence that their weights say (arXiv 2601.05242). The paper's
    last step also subtracts the batch mean. This mean is 0, since each normalised reward adds up to 0 over
    the rows of a group to which it applies; subtracting its rounding error would give signal to groups
    without any.

    Args:
        values: NaN where a reward does not apply: left out of the reward's group statistics and of the sum.
        weights: Weight of each reward function.
        num_generations: Rows per utterance.
    """
    assert len(values) % num_generations == 0, (len(values), num_generations)
    if num_generations == 1:
        return torch.zeros_like(values[:, 0])
    groups = values.double().view(-1, num_generations, values.shape[1])
    applies = ~groups.isnan()
    count = applies.sum(1, keepdim=True)
    centred = groups - groups.nanmean(1, keepdim=True)
    std = (centred.square().nansum(1, keepdim=True) / (count - 1).clamp(min=1)).sqrt()
    largest = groups.masked_fill(~applies, -torch.inf).amax(1, keepdim=True)
    smallest = groups.masked_fill(~applies, torch.inf).amin(1, keepdim=True)
    normalised = torch.where(applies & (largest > smallest), centred / (std + STD_OFFSET), 0.0)
    combined = (normalised * weights.double()).sum(2).flatten()
    return (combined / (combined.std() + STD_OFFSET)).to(values.dtype)


def _check_names(estimator: str, scale_rewards: str) -> None:
    if estimator not in ESTIMATORS:
        raise UserError(f"estimator: unknown {estimator!r}{nearest(estimator, ESTIMATORS)}")
    if scale_rewards not in SCALES:
        raise UserError(f"scale_rewards: unknown {scale_rewards!r}{nearest(scale_rewards, SCALES)}")
