"""This module is the only place that searches for probable transcripts with beams."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
)

from asrl.models.speech_llm import SpeechLLM
from asrl.types import Prompts, SpeechBatch


@dataclass(frozen=True)
class BeamSettings:
    """How beams are scored. Upstream's example decodes with 3 beams and the penalties 3.0 and 1.0.

    Attributes:
        num_beams: Unfinished transcripts kept at each step; 1 is greedy.
        repetition_penalty: Multiplies the log-prob of a token that the transcript has already; 1 is none.
            With one beam it is the logits that are penalised, as upstream does.
        length_penalty: A finished transcript scores its log-prob / its tokens ** this.
    """

    num_beams: int
    repetition_penalty: float
    length_penalty: float


class _OwnLimit(StoppingCriteria):
    """Ends each utterance at its own limit, where ``max_new_tokens`` would be that of the whole batch."""

    def __init__(self, limits: Int[Tensor, " u"]) -> None:
        self.limits = limits

    def __call__(self, input_ids: Int[Tensor, "r l"], scores: object, **_: object) -> Bool[Tensor, " r"]:
        return input_ids.shape[1] >= self.limits.repeat_interleave(len(input_ids) // len(self.limits))


@torch.no_grad()
def search(
    model: SpeechLLM, batch: SpeechBatch, settings: BeamSettings, limits: Sequence[int]
) -> list[list[int]]:
    """Return the best transcript of each utterance, its end token included unless it was cut at its limit.

    The search is transformers' own, which is upstream's; here every utterance has its own limit, prompts have
    no gap, and no option is taken from the decoder's ``generation_config.json``, so that a transcript is the
    same alone and in any batch.

    Args:
        model: In eval mode.
        batch: One row per utterance.
        settings: How beams are scored.
        limits: Most tokens of each utterance, the end token included.
    """
    everyone = torch.arange(len(batch.utterances), device=batch.features.device)
    embeddings, is_valid = _padded_left(model.prompts(model.encode_batch(batch, everyone)))
    config = GenerationConfig(
        do_sample=False,
        early_stopping=False,
        num_beams=settings.num_beams,
        length_penalty=settings.length_penalty if settings.num_beams > 1 else None,
        max_new_tokens=max(limits),
        eos_token_id=model.prompt.end_id,
        pad_token_id=model.prompt.pad_id,
    )
    # As an option, the penalty would skip as many tokens of a transcript as its prompt is padded by.
    penalty = RepetitionPenaltyLogitsProcessor(settings.repetition_penalty)
    own_limit = _OwnLimit(torch.tensor(limits, device=is_valid.device))
    decoder = model.causal_lm
    inherited, decoder.generation_config = decoder.generation_config, config
    try:
        tokens = decoder.generate(
            inputs_embeds=embeddings,
            attention_mask=is_valid.long(),
            generation_config=config,
            logits_processor=LogitsProcessorList([penalty]),
            stopping_criteria=StoppingCriteriaList([own_limit]),
        )
    finally:
        decoder.generation_config = inherited
    rows = zip(tokens.tolist(), limits, strict=True)
    return [_until_end(row[:limit], model.prompt.end_id) for row, limit in rows]


def _padded_left(prompts: Prompts) -> tuple[Float[Tensor, "u p d"], Bool[Tensor, "u p"]]:
    """Move the padding of prompts to the left, where ``generate`` wants it; return where the prompts are."""
    width = prompts.embeddings.shape[1]
    column = torch.arange(width, device=prompts.num_tokens.device) - (width - prompts.num_tokens[:, None])
    is_valid = column >= 0
    rows = torch.arange(len(column), device=column.device)[:, None]
    moved = prompts.embeddings[rows, column.clamp(min=0)]
    return moved.masked_fill(~is_valid[..., None], 0), is_valid


def _until_end(tokens: list[int], end_id: int) -> list[int]:
    return tokens[: tokens.index(end_id) + 1] if end_id in tokens else tokens
