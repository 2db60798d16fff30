"""This module is the only place that says what a rollout draws from: the distribution and the noise."""

from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from asrl.sampling import keyed_uniforms
from asrl.types import SpeechBatch


@dataclass(frozen=True)
class SamplingSettings:
    """The distribution that transcripts are drawn from.

    Attributes:
        temperature: Divides the logits; 0 takes the most probable token (greedy decoding).
        top_k: Number of most probable tokens kept; 0 keeps all.
        top_p: Probability mass kept, most probable tokens first; 1 keeps all.
        max_new_tokens: Rows that have not ended by then are cut (``is_finished`` False).
        seed: First part of the key of every row's noise.
    """

    temperature: float
    top_k: int
    top_p: float
    max_new_tokens: int
    seed: int


def greedy(max_new_tokens: int) -> SamplingSettings:
    """Settings of greedy decoding."""
    return SamplingSettings(temperature=0.0, top_k=0, top_p=1.0, max_new_tokens=max_new_tokens, seed=0)


def row_uniforms(batch: SpeechBatch, num: int, *, seed: int) -> Float64[Tensor, "n {num}"]:
    """The uniform numbers of every row: a function of (seed, epoch, utterance, replica) alone."""
    keys = zip(batch.row_utterances, batch.epoch.tolist(), batch.replica.tolist(), strict=True)
    rows = [
        keyed_uniforms(num, seed=seed, epoch=epoch, key=utterance.key, replica=replica)
        for utterance, epoch, replica in keys
    ]
    return torch.stack(rows)
