"""This module is the only place that transcribes for use rather than for training: greedily or with beams."""

from dataclasses import dataclass, field

import torch

from asrl.models.speech_llm import SpeechLLM
from asrl.rollout import drafted
from asrl.rollout.beam import BeamSettings, search
from asrl.rollout.settings import greedy
from asrl.types import SpeechBatch

GREEDY = BeamSettings(num_beams=1, repetition_penalty=1.0, length_penalty=0.0)


@dataclass(frozen=True)
class DecodingSettings:
    """How to transcribe.

    Attributes:
        beam: Beams and their penalties.
        max_new_tokens: Most tokens of a transcript; 0: as many as the utterance has speech embeddings (one
            per 80 ms), which is upstream's rule for a single utterance.
    """

    beam: BeamSettings = field(default=GREEDY)
    max_new_tokens: int = 0


def token_limits(model: SpeechLLM, batch: SpeechBatch, settings: DecodingSettings) -> list[int]:
    """Most tokens of each utterance's transcript."""
    if settings.max_new_tokens:
        return [settings.max_new_tokens] * len(batch.utterances)
    num_around = len(model.prompt.prefix_ids) + len(model.prompt.suffix_ids)
    return [max(1, num_prompt - num_around) for num_prompt in model.count_prompt(batch.num_frames).tolist()]


@torch.no_grad()
def decode(model: SpeechLLM, batch: SpeechBatch, settings: DecodingSettings) -> list[list[int]]:
    """Transcripts as tokens, each the same whatever else is in the batch.

    Args:
        model: In eval mode.
        batch: One row per utterance. Its transcripts only serve as drafts of a greedy search.
        settings: How to transcribe.

    Returns:
        For every utterance its tokens, the end token included unless it was cut at its limit.
    """
    limits = token_limits(model, batch, settings)
    if settings.beam.num_beams > 1 or settings.beam.repetition_penalty != 1:
        return search(model, batch, settings.beam, limits)
    completions = drafted.generate(model, batch, greedy(max(limits)))
    rows = zip(completions.tokens.tolist(), completions.mask.sum(1).tolist(), limits, strict=True)
    return [tokens[: min(num_tokens, limit)] for tokens, num_tokens, limit in rows]
