"""This module is the only place that draws transcripts token by token: the oracle for faster engines."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import DynamicCache

from asrl.models.speech_llm import SpeechLLM
from asrl.rollout.settings import SamplingSettings, row_uniforms
from asrl.sampling import draw, sampling_logps
from asrl.types import Completions, Prompts, SpeechBatch


class _Rows:
    """The rows still being written: their cache, and the state that predicts their next token."""

    def __init__(self, model: SpeechLLM, prompts: Prompts) -> None:
        self.model = model
        self.cache = DynamicCache()
        num_prompt, num_tokens = prompts.embeddings.shape[1], prompts.num_tokens
        positions = torch.arange(num_prompt, device=num_tokens.device)
        is_valid = positions < num_tokens[:, None]
        hidden = model.decoder(prompts.embeddings, is_valid, positions.expand_as(is_valid), self.cache)
        rows = torch.arange(len(num_tokens), device=num_tokens.device)
        self.last: Float[Tensor, "n d"] = hidden[rows, num_tokens - 1]
        self.is_valid: Bool[Tensor, "n c"] = is_valid
        self.position: Int[Tensor, " n"] = num_tokens

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


@torch.no_grad()
def generate(
    model: SpeechLLM,
    batch: SpeechBatch,
    settings: SamplingSettings,
    *,
    is_any_rank_busy: Callable[[bool], bool] = bool,
) -> Completions:
    """Draw one transcript per row of ``batch``. Dropout is off; the model's mode is restored afterwards.

    Nothing is shared between rows: each encodes its utterance and reads its prompt. The noise of token t of a
    row is number t of the row's own stream, so a transcript does not depend on the batch that it is drawn in.
    ``is_any_rank_busy`` is that of ``drafted.generate``.
    """
    was_training = model.training
    model.eval()
    try:
        prompts = model.prompts(model.encode_batch(batch, batch.row_utterance))
        rows = _Rows(model, prompts)
        uniforms = row_uniforms(batch, settings.max_new_tokens, seed=settings.seed)
        completions = _write(rows, uniforms, settings, is_any_rank_busy)
        while is_any_rank_busy(False):
            model.join_forward(batch.features.device)
        return completions
    finally:
        model.train(was_training)


def _write(
    rows: _Rows,
    uniforms: Float[Tensor, "n max"],
    settings: SamplingSettings,
    is_any_rank_busy: Callable[[bool], bool],
) -> Completions:
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
        is_any_rank_busy(True)
        rows.keep(~is_end)
        rows.append(drawn[~is_end])
    longest = int(num_tokens.max())
    mask = torch.arange(longest, device=device) < num_tokens[:, None]
    return Completions(tokens[:, :longest], mask, is_finished, logps[:, :longest])
