"""This module is the only place that projects hidden states to the vocabulary to score tokens."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable


class TokenLogps(NamedTuple):
    """Scores of one token per position, in nats.

    Attributes:
        logps: Log-prob of the token.
        entropy: Entropy of the distribution that the token was scored under; detached. NaN if not asked for.
    """

    logps: Float[Tensor, " positions"]
    entropy: Float[Tensor, " positions"]


def vocabulary_logits(
    hidden: Float[Tensor, "positions d"], head_weight: Float[Tensor, "v d"]
) -> Float[Tensor, "positions v"]:
    """Project in the precision of the head, then widen to float32 (float64 stays float64).

    Rollout and update both come through here, so that equal hidden states give equal log-probs.
    Autocast is left out: it would round a float32 head, and differently in forward and backward.
    """
    with torch.autocast(hidden.device.type, enabled=False):
        logits = hidden.to(head_weight.dtype) @ head_weight.T
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def token_logps(
    hidden: Float[Tensor, "positions d"],
    head_weight: Float[Tensor, "v d"],
    tokens: Int[Tensor, " positions"],
    *,
    temperature: float = 1.0,
    chunk_size: int = 1024,
    with_entropy: bool = True,
) -> TokenLogps:
    """Log-softmax(hidden @ head_weight.T / temperature) at the tokens, exact, in constant memory.

    At most ``chunk_size`` positions have logits at any time: the backward pass projects them again instead
    of keeping them. Gradients flow to ``hidden`` and to ``head_weight``, once (no second derivative).

    Args:
        hidden: The state that predicts each token, i.e. the one before it.
        head_weight: Output embedding of the decoder.
        tokens: The token to score at each position.
        temperature: Positive; the distribution's, as in the rollout.
        chunk_size: Positions projected at a time.
        with_entropy: Switch off where nobody reads the entropy.
    """
    assert temperature > 0, temperature
    assert chunk_size > 0, chunk_size
    logps, entropy = _ChunkedLogps.apply(hidden, head_weight, tokens, temperature, chunk_size, with_entropy)
    return TokenLogps(logps=logps, entropy=entropy)


class _ChunkedLogps(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head_weight: Tensor,
        tokens: Tensor,
        temperature: float,
        chunk_size: int,
        with_entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(head_weight.dtype, torch.float32)
        logps = torch.empty(len(hidden), dtype=dtype, device=hidden.device)
        log_normaliser = torch.empty_like(logps)
        entropy = torch.full_like(logps, torch.nan)
        for start in range(0, len(hidden), chunk_size):
            chunk = slice(start, start + chunk_size)
            log_probs = vocabulary_logits(hidden[chunk], head_weight).div_(temperature)
            log_normaliser[chunk] = log_probs.logsumexp(1)
            log_probs.sub_(log_normaliser[chunk, None])
            logps[chunk] = log_probs.gather(1, tokens[chunk, None])[:, 0]
            if with_entropy:
                entropy[chunk] = -torch.linalg.vecdot(log_probs.exp(), log_probs)
        ctx.save_for_backward(hidden, head_weight, tokens, log_normaliser)
        ctx.temperature, ctx.chunk_size = temperature, chunk_size
        ctx.mark_non_differentiable(entropy)
        return logps, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logps: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, head_weight, tokens, log_normaliser = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        # Summed over chunks in float32 even for a half-precision head, or the sum would depend on chunk_size.
        grad_head = torch.zeros_like(head_weight, dtype=grad_logps.dtype) if ctx.needs_input_grad[1] else None
        for start in range(0, len(hidden), ctx.chunk_size):
            chunk = slice(start, start + ctx.chunk_size)
            scaled_grad = grad_logps[chunk, None] / ctx.temperature
            grad_logits = vocabulary_logits(hidden[chunk], head_weight).div_(ctx.temperature)
            grad_logits.sub_(log_normaliser[chunk, None]).exp_().mul_(-scaled_grad)
            grad_logits.scatter_add_(1, tokens[chunk, None], scaled_grad)
            with torch.autocast(hidden.device.type, enabled=False):
                if grad_hidden is not None:
                    grad_hidden[chunk] = grad_logits.to(head_weight.dtype) @ head_weight
                if grad_head is not None:
                    grad_head += grad_logits.T @ hidden[chunk].to(grad_logits.dtype)
        return (
            grad_hidden,
            None if grad_head is None else grad_head.to(head_weight.dtype),
            None,
            None,
            None,
            None,
        )
