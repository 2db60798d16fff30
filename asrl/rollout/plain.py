"""This module is the only place that draws transcripts token by token, one row each: the oracle for faster engines."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import DynamicCache

from asrl.models.speech_llm import SpeechLLM
from asrl.sampling import draw, keyed_uniforms, sampling_logps
from asrl.types import Completions, Prompts, SpeechBatch


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


class _Rows:
    """The rows still being written: their cache, and the state that predicts their next token."""

    def __init__(self, model: SpeechLLM, prompts: Prompts, row_utterance: Int[Tensor, " n"]) -> None:
        self.model = model
        self.cache = DynamicCache()
        num_prompt, num_tokens = prompts.embeddings.shape[1], prompts.num_tokens
        positions = torch.arange(num_prompt, device=num_tokens.device)
        is_valid = positions < num_tokens[:, None]
        hidden = model.decoder(prompts.embeddings, is_valid, positions.expand_as(is_valid), self.cache)
        # Prompts are prefilled once per utterance, then copied to its rows.
        last = hidden[torch.arange(len(num_tokens), device=num_tokens.device), num_tokens - 1]
        self.cache.batch_select_indices(row_utterance)
        self.last: Float[Tensor, "n d"] = last[row_utterance]
        self.is_valid: Bool[Tensor, "n c"] = is_valid[row_utterance]
        self.position: Int[Tensor, " n"] = num_tokens[row_utterance]

    def keep(self, is_kept: Bool[Tensor, " n"]) -> None:
        """Drop the other rows."""
        kept = is_kept.nonzero()[:, 0]
        self.cache.batch_select_indices(kept)
        self.last, self.is_valid, self.position = self.last[kept], self.is_valid[kept], self.position[kept]

    def append(self, tokens: Int[Tensor, " n"]) -> None:
        """Feed one token per row. Padding inside a row's cache is masked out, never moved."""
        self.is_valid = torch.nn.functional.pad(self.is_valid, (0, 1), value=True)
        embeddings = self.model.embed(tokens)[:, None]
        self.last = self.model.decoder(embeddings, self.is_valid, self.position[:, None], self.cache)[:, 0]
        self.position = self.position + 1


def row_uniforms(batch: SpeechBatch, num: int, *, seed: int) -> Float[Tensor, "n {num}"]:
    """The uniform numbers of every row: a function of (seed, epoch, utterance, replica) alone."""
    keys = zip(batch.row_utterances, batch.epoch.tolist(), batch.replica.tolist(), strict=True)
    rows = [
        torch.as_tensor(keyed_uniforms(num, seed=seed, epoch=epoch, key=utterance.key, replica=replica))
        for utterance, epoch, replica in keys
    ]
    return torch.stack(rows)


@torch.no_grad()
def generate(model: SpeechLLM, batch: SpeechBatch, settings: SamplingSettings) -> Completions:
    """Draw one transcript per row of ``batch``. Dropout is off; the model's mode is restored afterwards.

    The encoder and the prompt run once per utterance. The noise of token t of a row is number t of the row's own
    stream, so a transcript does not depend on the batch that it is drawn in.
    """
    was_training = model.training
    model.eval()
    try:
        prompts = model.prompts(model.encode(batch.features, batch.num_frames))
        rows = _Rows(model, prompts, batch.row_utterance)
        return _write(rows, row_uniforms(batch, settings.max_new_tokens, seed=settings.seed), settings)
    finally:
        model.train(was_training)


def _write(rows: _Rows, uniforms: Float[Tensor, "n max"], settings: SamplingSettings) -> Completions:
    num_rows, device = len(uniforms), rows.last.device
    end_id, uniforms = rows.model.prompt.end_id, uniforms.to(device)
    tokens = torch.full((num_rows, settings.max_new_tokens), end_id, device=device)
    logps = torch.zeros(num_rows, settings.max_new_tokens, device=device)
    num_tokens = torch.full((num_rows,), settings.max_new_tokens, device=device)
    is_finished = torch.zeros(num_rows, dtype=torch.bool, device=device)
    alive = torch.arange(num_rows, device=device)
    for step in range(settings.max_new_tokens):
        logits = rows.model.head(rows.last)
        drawn = draw(
            logits,
            uniforms[alive, step],
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
        )
        tokens[alive, step] = drawn
        logps[alive, step] = sampling_logps(logits, drawn, settings.temperature or 1.0)
        is_end = drawn == end_id
        is_finished[alive[is_end]] = True
        num_tokens[alive[is_end]] = step + 1
        alive = alive[~is_end]
        if len(alive) == 0 or step + 1 == settings.max_new_tokens:
            break
        rows.keep(~is_end)
        rows.append(drawn[~is_end])
    longest = int(num_tokens.max())
    mask = torch.arange(longest, device=device) < num_tokens[:, None]
    return Completions(tokens[:, :longest], mask, is_finished, logps[:, :longest])
