"""This module is the only place that draws tokens and assigns each its random number."""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

# Rows are drawn in slices of at most this many logits, to bound the memory of an unfiltered vocabulary.
MAX_LOGITS_AT_ONCE = 2**25


def stable_hash(*parts: int | str) -> int:
    """Hash to 64 bits, the same in every process and on every machine, unlike ``hash``.

    Each part carries its type and length: ``("ab", "c")`` is not ``("a", "bc")``, ``1`` is not ``"1"``.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        content = str(part).encode("utf-8", "surrogatepass")
        digest.update(f"{'s' if isinstance(part, str) else 'i'}{len(content)}:".encode() + content)
    return int.from_bytes(digest.digest(), "big")


def keyed_uniforms(num: int, *, seed: int, epoch: int, key: str, replica: int) -> Float64[Tensor, " num"]:
    """Uniform numbers in [0, 1) that belong to one transcript: number ``t`` draws its token ``t``.

    They depend on nothing but the keywords; a larger ``num`` only appends to them.
    """
    generator = np.random.Generator(np.random.Philox(key=stable_hash("rollout", seed, epoch, key, replica)))
    return torch.from_numpy(generator.random(num))


@dataclass(frozen=True)
class Candidates:
    """The tokens that may be drawn, in ascending order of their ids.

    Attributes:
        tokens: Token ids.
        probs: Sum to 1 in each row; 0 for a candidate that top-p dropped.
    """

    tokens: Int[Tensor, "n candidates"]
    probs: Float64[Tensor, "n candidates"]


def filtered_distribution(
    logits: Float[Tensor, "n v"], *, temperature: float, top_k: int, top_p: float
) -> Candidates:
    """Apply temperature, then top-k, then top-p to what top-k kept.

    Args:
        logits: Of the next token; -inf forbids a token.
        temperature: Positive.
        top_k: Keep so many of the most probable tokens, the lower ids among equals; 0 keeps all.
        top_p: Keep the fewest most probable tokens whose mass reaches it (the one that crosses it is kept).
    """
    assert temperature > 0, temperature
    assert top_k >= 0, top_k
    assert 0 < top_p <= 1, top_p
    if 0 < top_k < logits.shape[1]:
        tokens = _most_probable(logits, top_k).sort(dim=1).values
        logits = logits.gather(1, tokens)
    else:
        tokens = torch.arange(logits.shape[1], device=logits.device).expand_as(logits)
    probs = (logits.double() / temperature).softmax(1)
    if top_p < 1:  # at 1 the running sum may round up to 1 early and would drop the rarest tokens
        probs = probs * _nucleus(probs, top_p)
        probs = probs / probs.sum(1, keepdim=True)
    return Candidates(tokens=tokens, probs=probs)


def draw(
    logits: Float[Tensor, "n v"],
    uniforms: Float64[Tensor, " n"],
    *,
    temperature: float,
    top_k: int,
    top_p: float,
) -> Int[Tensor, " n"]:
    """Draw one token per row; see ``draw_each``."""
    drawn = draw_each(logits, uniforms[:, None], temperature=temperature, top_k=top_k, top_p=top_p)
    return drawn[:, 0]


def draw_each(
    logits: Float[Tensor, "n v"],
    uniforms: Float64[Tensor, "n g"],
    *,
    temperature: float,
    top_k: int,
    top_p: float,
) -> Int[Tensor, "n g"]:
    """Draw tokens from each row's filtered distribution by inverse CDF; at temperature 0 the argmax.

    The CDF runs over the candidates in order of their ids, not of their probabilities: a rounding error in
    the logits can swap two ranks but moves a boundary between ids by no more than itself, so that two engines
    that batch differently draw the same token unless a uniform number falls into that sliver.

    Args:
        logits: Of the next token.
        uniforms: Numbers in [0, 1), one per token to draw.
        temperature: 0 or positive.
        top_k: See ``filtered_distribution``.
        top_p: See ``filtered_distribution``.
    """
    if temperature == 0:
        return _most_probable(logits, 1).expand_as(uniforms)
    rows = max(1, MAX_LOGITS_AT_ONCE // logits.shape[1])
    drawn = torch.empty(uniforms.shape, dtype=torch.long, device=logits.device)
    for start in range(0, len(logits), rows):
        part = slice(start, start + rows)
        candidates = filtered_distribution(logits[part], temperature=temperature, top_k=top_k, top_p=top_p)
        drawn[part] = _invert(candidates, uniforms[part])
    return drawn


def sampling_logps(
    logits: Float[Tensor, "n v"], tokens: Int[Tensor, " n"], temperature: float
) -> Float[Tensor, " n"]:
    """Log-probs of drawn tokens under temperature alone, without top-k and top-p, as the loss compares them.

    Greedy decoding (temperature 0) reports the model's own log-probs, at temperature 1.
    """
    scaled = logits.to(torch.promote_types(logits.dtype, torch.float32)) / (temperature or 1.0)
    return scaled.gather(1, tokens[:, None])[:, 0] - scaled.logsumexp(1)


def drawn_logps(
    logits: Float[Tensor, "n v"], tokens: Int[Tensor, "n g"], temperature: float
) -> Float[Tensor, "n g"]:
    """``sampling_logps`` of several tokens per row."""
    scale = temperature or 1.0
    return logits.gather(1, tokens) / scale - (logits / scale).logsumexp(1, keepdim=True)


def _most_probable(logits: Tensor, num: int) -> Tensor:
    """Token ids of the ``num`` largest logits of each row, in no particular order; lower ids win ties."""
    if num >= logits.shape[1]:
        return torch.arange(logits.shape[1], device=logits.device).expand_as(logits)
    # topk breaks ties as it likes. One rank more shows where the cut runs through equal values (often, in
    # bfloat16): only those rows pay for a stable sort, which is 40 times slower on 152 k logits.
    best = logits.topk(num + 1, dim=1)
    tokens = best.indices[:, :num]
    is_tied = best.values[:, num - 1] == best.values[:, num]
    if is_tied.any():
        tokens = tokens.clone()
        tokens[is_tied] = logits[is_tied].sort(dim=1, descending=True, stable=True).indices[:, :num]
    return tokens


def _nucleus(probs: Tensor, top_p: float) -> Tensor:
    """True at the fewest most probable entries whose mass reaches ``top_p``; lower positions win ties."""
    ranked = probs.sort(dim=1, descending=True, stable=True)
    mass = ranked.values.cumsum(1)
    is_kept = torch.ones_like(probs, dtype=torch.bool)
    is_kept[:, 1:] = mass[:, :-1] < top_p
    return torch.empty_like(is_kept).scatter_(1, ranked.indices, is_kept)


def _invert(candidates: Candidates, uniforms: Tensor) -> Tensor:
    cdf = candidates.probs.cumsum(1)
    total = cdf[:, -1:]
    # Strictly below the total, and right=True finds the first entry strictly above: the entry found has
    # raised the sum, so its probability is not 0, however the sum was rounded.
    threshold = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    position = torch.searchsorted(cdf, threshold, right=True)
    return candidates.tokens.gather(1, position.clamp(max=cdf.shape[1] - 1))
