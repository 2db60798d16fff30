"""Compares two engines' draws, and tells a rounding error that flipped one from a mistake.

Engines put the same tokens into matrix products of other shapes, so their logits differ in the last digits. A
draw can then flip, but only where it hangs by that much.
"""

from dataclasses import dataclass

import torch

from asrl.rollout.settings import row_uniforms
from asrl.sampling import filtered_distribution

TIE = 1e-6


def texts(completions):
    """Tokens of every row, without padding."""
    rows = zip(completions.tokens.tolist(), completions.mask.sum(1).tolist(), strict=True)
    return [tokens[:num_tokens] for tokens, num_tokens in rows]


@dataclass(frozen=True)
class Comparison:
    num_rows: int
    num_ties: int


def margin(logits, uniform, drawn, settings):
    """By how much one of two draws at the same place is off, in the unit of what decides between them.

    Greedy draws are apart by the gap of their logits. Others by how far the uniform number is from the
    interval of either token in the cumulated distribution, unless it hangs by less whether top-k or top-p
    keeps a token.
    """
    if settings.temperature == 0:
        return float((logits[drawn[0]] - logits[drawn[1]]).abs())
    options = {"temperature": settings.temperature, "top_k": settings.top_k, "top_p": settings.top_p}
    margins = [max(distance(logits, uniform, token, options) for token in drawn)]
    if 0 < settings.top_k < len(logits):
        best = logits.topk(settings.top_k + 1).values
        margins.append(float(best[-2] - best[-1]))
    if settings.top_p < 1:
        everyone = filtered_distribution(logits[None], **(options | {"top_p": 1.0}))
        mass = everyone.probs[0].sort(descending=True).values.cumsum(0)
        margins.append(float((mass - settings.top_p).abs().min()))
    return min(margins)


def distance(logits, uniform, token, options):
    """How far a uniform number is from those that draw the token; infinite if none does."""
    kept = filtered_distribution(logits[None], **options)
    place = (kept.tokens[0] == token).nonzero()[:, 0]
    if len(place) == 0 or kept.probs[0, place] == 0:
        return float("inf")
    high = float(kept.probs[0].cumsum(0)[place])
    low = high - float(kept.probs[0, place])
    return max(low - uniform, uniform - high, 0.0)


@torch.no_grad()
def next_logits(model, batch, row, written):
    """Logits after some tokens of a row, from one forward over prompt and tokens."""
    utterance = batch.row_utterance[row : row + 1]
    prompt = model.prompts(model.encode(batch.features[utterance], batch.num_frames[utterance]))
    size = int(prompt.num_tokens)
    tokens = model.embed(torch.tensor([written], dtype=torch.long))
    embeddings = torch.cat([prompt.embeddings[:, :size], tokens], dim=1)
    hidden = model.decoder(embeddings, None, torch.arange(embeddings.shape[1])[None])
    return model.head(hidden[0, -1:])[0].double()


def compare(model, batch, settings, expected, got):
    """Assert that two engines drew the same transcripts, up to draws that hang by less than ``TIE``."""
    num_ties = 0
    uniforms = row_uniforms(batch, settings.max_new_tokens, seed=settings.seed)
    for row, (one, other) in enumerate(zip(texts(expected), texts(got), strict=True)):
        if one == other:
            continue
        place = next(step for step, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
        logits = next_logits(model, batch, row, one[:place])
        drawn = (one[place], other[place])
        hangs_by = margin(logits, float(uniforms[row, place]), drawn, settings)
        assert hangs_by < TIE, (row, place, drawn, hangs_by, settings)
        num_ties += 1
    return Comparison(len(batch.row_utterance), num_ties)
