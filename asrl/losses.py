"""This module is the only place that defines the objective that the policy is trained on."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from asrl.errors import UserError
from asrl.registry import nearest

LEVELS = ("token", "sequence", "sequence_token")
LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo")

# Temperatures of SAPO's gate for positive and for other advantages (arXiv 2511.20347).
SAPO_TEMPERATURES = (1.0, 1.05)


@dataclass(frozen=True)
class Metric:
    """A statistic that micro-batches and ranks combine exactly.

    Over ranks: sum ``weight``, and sum ``total`` or reduce it to its least or largest according to ``kind``.

    Attributes:
        kind: What ``value`` reports.
        total: Float64 scalar: the weighted sum of a mean, or the extreme value seen (infinite if none was).
        weight: Float64 scalar: how much was observed, e.g. the number of tokens; what a mean divides by.
    """

    kind: Literal["mean", "min", "max"]
    total: Float[Tensor, ""]
    weight: Float[Tensor, ""]

    def __add__(self, other: "Metric") -> "Metric":
        assert self.kind == other.kind, (self.kind, other.kind)
        if self.kind == "mean":
            return Metric("mean", self.total + other.total, self.weight + other.weight)
        combine = torch.minimum if self.kind == "min" else torch.maximum
        return Metric(self.kind, combine(self.total, other.total), self.weight + other.weight)

    @property
    def value(self) -> float:
        """The statistic; NaN where nothing was observed."""
        if self.weight.item() == 0:
            return float("nan")
        return (self.total / self.weight if self.kind == "mean" else self.total).item()


@dataclass(frozen=True)
class LossOutput:
    """A scalar to call ``backward`` on, and what to log about it."""

    loss: Float[Tensor, ""]
    metrics: Mapping[str, Metric]


@dataclass(frozen=True)
class TokenLosses:
    """The surrogate loss of each token, and whether a bound replaced its importance weight.

    ``is_clipped_low``: the weight is below its range; ``is_clipped_high``: above it. Such a token has no
    gradient, except under cispo, which only caps the weight. sapo never clips.
    """

    losses: Float[Tensor, "n l"]
    is_clipped_low: Bool[Tensor, "n l"]
    is_clipped_high: Bool[Tensor, "n l"]


def policy_loss(  # noqa: PLR0913 - one argument per symbol of the formula
    logps: Float[Tensor, "n l"],
    *,
    old_logps: Float[Tensor, "n l"] | None,
    ref_logps: Float[Tensor, "n l"] | None,
    advantages: Float[Tensor, " n"] | Float[Tensor, "n l"],
    mask: Shaped[Tensor, "n l"],
    importance_sampling_level: str,
    loss_type: str = "grpo",
    beta: float = 0.0,
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
    delta: float | None = None,
    max_completion_length: int | None = None,
    weights: Float[Tensor, "n l"] | None = None,
) -> LossOutput:
    """Sum over tokens of ``weights * (surrogate loss + beta * k3)``.

    Where ``mask`` is False, nothing matters, not even NaN. A row without tokens adds nothing but counts as a
    row. float64 stays float64; anything else is computed in float32.

    Args:
        logps: Of the policy being trained, in nats; the only argument that gets a gradient.
        old_logps: Of the policy that drew the tokens; None takes ``logps``, so that every ratio is 1.
        ref_logps: Of the reference policy; may be None if ``beta`` is 0.
        advantages: One per row or one per token.
        mask: True (or not 0) at the tokens of the completions.
        importance_sampling_level: See ``importance_log_weights``.
        loss_type: See ``token_losses`` (also on ``epsilon`` and ``delta``) and ``aggregation_weights``.
        beta: Weight of the KL term.
        epsilon: Clipping bound below 1.
        epsilon_high: Clipping bound above 1; None takes ``epsilon``.
        delta: None is no bound.
        max_completion_length: Token limit of the rollout; only dr_grpo reads it.
        weights: From ``aggregation_weights`` where this call is part of an optimizer step; None takes these
            rows for the whole step.

    Raises:
        UserError: See ``check_objective``.
    """
    check_objective(importance_sampling_level, loss_type, epsilon_high, delta)
    if beta != 0 and ref_logps is None:
        raise UserError(f"beta: the KL term needs a reference policy, got {beta} without one; set beta to 0")
    mask = mask.bool()
    logps = _masked(logps, mask, torch.promote_types(logps.dtype, torch.float32))
    # Detached even where given: a caller's old_logps may be the very tensor logps, with its graph.
    old_logps = logps.detach() if old_logps is None else _masked(old_logps.detach(), mask, logps.dtype)
    advantages = _masked(advantages if advantages.ndim == 2 else advantages[:, None], mask, logps.dtype)
    if weights is None:
        weights = aggregation_weights(
            mask,
            loss_type=loss_type,
            num_rows=len(mask),
            num_tokens=int(mask.sum()),
            max_completion_length=max_completion_length,
            dtype=logps.dtype,
        )

    log_weights = importance_log_weights(logps, old_logps, mask, importance_sampling_level)
    clipped = token_losses(
        logps,
        log_weights,
        advantages,
        loss_type=loss_type,
        epsilon=epsilon,
        epsilon_high=epsilon if epsilon_high is None else epsilon_high,
        delta=delta,
    )
    losses = clipped.losses
    metrics = _clip_metrics(clipped, mask) | _ratio_metrics(log_weights.detach().exp(), mask)
    if ref_logps is not None:
        kl = kl_k3(logps, _masked(ref_logps.detach(), mask, logps.dtype))
        metrics["kl"] = mean_metric(kl, mask)
        if beta != 0:
            losses = losses + beta * kl
    return LossOutput(loss=(losses * weights.to(losses.dtype)).sum(), metrics=metrics)


def check_objective(level: str, loss_type: str, epsilon_high: float | None, delta: float | None) -> None:
    """Refuse options that contradict each other.

    Raises:
        UserError: Unknown level or loss type; cispo without ``epsilon_high``; ``delta`` that nothing reads.
    """
    if level not in LEVELS:
        raise UserError(f"importance_sampling_level: unknown {level!r}{nearest(level, LEVELS)}")
    if loss_type not in LOSS_TYPES:
        raise UserError(f"loss_type: unknown {loss_type!r}{nearest(loss_type, LOSS_TYPES)}")
    if loss_type == "cispo" and epsilon_high is None:
        raise UserError("epsilon_high: cispo caps the importance weight at this value, got none; set 5.0")
    if loss_type in ("cispo", "sapo") and delta is not None:
        raise UserError(f"delta: {loss_type} has no second clipping bound, got {delta}; leave delta unset")


def importance_log_weights(
    logps: Float[Tensor, "n l"], old_logps: Float[Tensor, "n l"], mask: Bool[Tensor, "n l"], level: str
) -> Float[Tensor, "n l"]:
    """Log of the importance weight ``w`` of each token; 0 where ``mask`` is False.

    ``token``: ``log r = logps - old_logps`` (GRPO, arXiv 2402.03300).
    ``sequence``: the mean of ``log r`` over the row's tokens (GSPO, arXiv 2507.18071, eq. 7).
    ``sequence_token``: the value of ``sequence`` with the gradient of ``token`` (GSPO-token, eq. 14): an
    advantage per token stays on its token.
    """
    log_ratios = torch.where(mask, logps - old_logps, 0.0)
    if level == "token":
        return log_ratios
    row_mean = log_ratios.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
    row_log_weights = torch.where(mask, row_mean, 0.0)
    if level == "sequence":
        return row_log_weights
    return torch.where(mask, logps - logps.detach() + row_log_weights.detach(), 0.0)


def token_losses(
    logps: Float[Tensor, "n l"],
    log_weights: Float[Tensor, "n l"],
    advantages: Float[Tensor, "n l"],
    *,
    loss_type: str,
    epsilon: float,
    epsilon_high: float,
    delta: float | None,
) -> TokenLosses:
    """Surrogate loss per token for importance weight ``w`` and advantage ``A``.

    ``grpo``, ``bnpo``, ``dr_grpo``, ``dapo``:
    ``-min(min(w, delta) A, clip(w, 1 - epsilon, 1 + epsilon_high) A)``; ``delta``, of two-sided clipping
    (arXiv 2505.07291), is the only upper bound of ``w`` where ``A`` is negative.
    ``cispo``: ``-stop_gradient(min(w, epsilon_high)) A logp`` (arXiv 2506.13585, eq. 4).
    ``sapo``: ``-4/t sigmoid(t (w - 1)) A`` with a temperature ``t`` by the sign of ``A`` (arXiv 2511.20347).
    """
    ratio = log_weights.exp()
    never = torch.zeros_like(ratio, dtype=torch.bool)
    if loss_type == "cispo":
        losses = -ratio.clamp(max=epsilon_high).detach() * advantages * logps
        return TokenLosses(losses, never, (ratio > epsilon_high) & (advantages != 0))
    if loss_type == "sapo":
        positive, other = SAPO_TEMPERATURES
        temperature = torch.full_like(ratio, other).masked_fill(advantages > 0, positive)
        losses = -torch.sigmoid(temperature * (ratio - 1)) * 4 / temperature * advantages
        return TokenLosses(losses, never, never)
    low, high, cap = 1 - epsilon, 1 + epsilon_high, math.inf if delta is None else delta
    losses = -torch.minimum(ratio.clamp(max=cap) * advantages, ratio.clamp(low, high) * advantages)
    is_low = (ratio < low) & (advantages < 0)
    is_high = ((ratio > min(high, cap)) & (advantages > 0)) | ((ratio > max(high, cap)) & (advantages < 0))
    return TokenLosses(losses, is_low, is_high)


def kl_k3(logps: Float[Tensor, "n l"], ref_logps: Float[Tensor, "n l"]) -> Float[Tensor, "n l"]:
    """Estimate KL(policy || reference) at tokens drawn from the policy: ``exp(d) - d - 1``, d = ref - logps.

    Unbiased and never negative (http://joschu.net/blog/kl-approx.html, k3). Not clamped: a clamp would end
    the pull towards the reference where the policy is furthest from it.
    """
    difference = ref_logps - logps
    return torch.expm1(difference) - difference


def aggregation_weights(
    mask: Bool[Tensor, "n l"],
    *,
    loss_type: str,
    num_rows: int,
    num_tokens: int,
    max_completion_length: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "n l"]:
    """Weight of each token's loss; 0 where ``mask`` is False.

    The counts are those of the optimizer step, over all ranks and micro-batches: the weighted sums of its
    parts add up to the loss of the whole, however it was cut.

    ``grpo``, ``sapo``: mean over rows of the mean over the row's tokens.
    ``dapo``, ``cispo``, ``bnpo``: mean over tokens. Other trainers divide bnpo by the micro-batch's tokens,
    so that the gradient depends on how rows were dealt out; over a whole step it is dapo's mean.
    ``dr_grpo``: sum over tokens divided by rows times ``max_completion_length`` (arXiv 2503.20783).

    Raises:
        UserError: dr_grpo without ``max_completion_length``.
    """
    selected = mask.to(dtype)
    if loss_type in ("grpo", "sapo"):
        return selected / (selected.sum(1, keepdim=True).clamp(min=1) * max(num_rows, 1))
    if loss_type in ("dapo", "cispo", "bnpo"):
        return selected / max(num_tokens, 1)
    assert loss_type == "dr_grpo", loss_type
    if max_completion_length is None:
        raise UserError("max_completion_length: dr_grpo divides by it, got none; set the token limit")
    return selected / (max(num_rows, 1) * max_completion_length)


def mean_metric(
    values: Float[Tensor, "*axes"] | Bool[Tensor, "*axes"], mask: Bool[Tensor, "*axes"]
) -> Metric:
    """The mean over the places where ``mask`` is True."""
    selected = torch.where(mask, values.detach().double(), 0.0)
    return Metric("mean", selected.sum(), mask.sum().double())


def _masked(values: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
    # Before any arithmetic: exp of a stray value could be infinite, and infinity times a mask of 0 is NaN.
    return torch.where(mask, values.to(dtype), 0.0)


def _clip_metrics(clipped: TokenLosses, mask: Tensor) -> dict[str, Metric]:
    """Fractions of tokens, and of rows with at least one such token, that were clipped."""
    low, high = clipped.is_clipped_low & mask, clipped.is_clipped_high & mask
    flags = {"low": low, "high": high, "any": low | high}
    metrics = {}
    for name, flag in flags.items():
        metrics[f"clip_ratio/{name}"] = mean_metric(flag, mask)
        metrics[f"clip_ratio/{name}_sequence"] = mean_metric(flag.any(1), mask.any(1))
    return metrics


def _ratio_metrics(ratio: Tensor, mask: Tensor) -> dict[str, Metric]:
    """Importance weights over tokens: mean and extremes."""
    mean = mean_metric(ratio, mask)
    # The appended infinity stands in where no token is left: amin of nothing is an error.
    kept, infinity = ratio[mask].double(), mean.total.new_full((1,), torch.inf)
    return {
        "ratio/mean": mean,
        "ratio/min": Metric("min", torch.cat([kept, infinity]).amin(), mean.weight),
        "ratio/max": Metric("max", torch.cat([kept, -infinity]).amax(), mean.weight),
    }
