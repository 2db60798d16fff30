"""This module is the only place that joins encoder, projector and decoder into one scorer of completions."""

import inspect
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Literal, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from peft import PeftModel
from torch import Tensor, nn
from transformers import Cache, Qwen2ForCausalLM

from asrl.logps import token_logps, vocabulary_logits
from asrl.models.conformer import ConformerEncoder, EncoderOutput, count_frames
from asrl.models.layouts import DecoderInputs, replica_inputs, splice_speech, tree_inputs
from asrl.models.lora import adapter_disabled
from asrl.models.projector import Projector
from asrl.models.prompt import PromptTemplate
from asrl.models.released_files import CheckpointArgs
from asrl.models.vocabulary import VocabularyHead
from asrl.tree import build_trees
from asrl.types import Completions, Prompts, SpeechBatch, SpeechEmbeddings, TokenScores

Output = TypeVar("Output")


def cache_argument(forward: Callable) -> str:
    """Name of the key/value cache in a decoder's ``forward``: transformers 5.24 renamed it."""
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"


class SpeechLLM(nn.Module):
    """Speech encoder, projector and Qwen2 decoder, with the prompt that the decoder was trained on.

    Attributes:
        encoder: Features to encoder frames.
        projector: Encoder frames to the decoder's embedding space.
        llm: The decoder, wrapped by peft if it has LoRA.
        prompt: Token ids around the speech.
        layout: How completions are scored: ``tree`` reads what the transcripts of an utterance share once,
            ``replicas`` reads every row by itself.
        max_logits: Logits that exist at the same time, whatever the vocabulary.
        autocast_dtype: What encoder, projector and decoder compute in where float32 is not needed; None:
            float32 where the weights are.
        work: Positions and forwards so far, for reports and benchmarks.
        checkpoint_args: Where the weights came from; None if from nowhere.
    """

    def __init__(
        self,
        encoder: ConformerEncoder,
        projector: Projector,
        llm: Qwen2ForCausalLM | PeftModel,
        prompt: PromptTemplate,
        *,
        layout: Literal["tree", "replicas"] = "tree",
        max_logits: int = 2**26,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.projector = projector
        self.llm = llm
        self.prompt = prompt
        self.layout = layout
        self.max_logits = max_logits
        self.autocast_dtype: torch.dtype | None = None
        self.work: Counter[str] = Counter()
        self.checkpoint_args: CheckpointArgs | None = None
        self.dropout_rates: dict[str, float] = {}  # of the modules that set_dropout has switched off
        self._cache_argument = cache_argument(self.causal_lm.model.forward)
        self.causal_lm.lm_head = VocabularyHead(self.causal_lm.lm_head.weight)

    @property
    def causal_lm(self) -> Qwen2ForCausalLM:
        """The decoder without peft's wrapper; its LoRA layers, if any, are inside and active."""
        return self.llm.get_base_model() if isinstance(self.llm, PeftModel) else self.llm

    def train(self, mode: bool = True) -> "SpeechLLM":
        """Switch to training; a frozen encoder stays in eval mode, without dropout."""
        super().train(mode)
        if not any(parameter.requires_grad for parameter in self.encoder.parameters()):
            self.encoder.eval()
        return self

    def enable_gradient_checkpointing(self) -> None:
        """Recompute activations of encoder blocks and decoder layers in the backward pass."""
        self.encoder.gradient_checkpointing = True
        self.causal_lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    def encode(self, features: Float[Tensor, "u f m"], num_frames: Int[Tensor, " u"]) -> SpeechEmbeddings:
        """Turn features into speech embeddings, ceil(L / 4) // 2 of them under both length rules.

        Upstream feeds the projector's frames to the decoder even where its ``arith`` rule masks them.
        """
        self.work["encoder_utterances"] += len(features)
        return self.project(self.run_encoder(features, num_frames).hidden, num_frames)

    def run_encoder(self, features: Float[Tensor, "u f m"], num_frames: Int[Tensor, " u"]) -> EncoderOutput:
        """Turn features into encoder frames."""
        with self.autocast(features.device):
            return self.encoder(features, num_frames)

    def autocast(self, device: torch.device) -> torch.autocast:
        """Compute in ``autocast_dtype`` inside, if it is set."""
        dtype = self.autocast_dtype
        return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)

    def encode_batch(self, batch: SpeechBatch, utterances: Int[Tensor, " i"]) -> SpeechEmbeddings:
        """Speech embeddings of these utterances of a batch, from its encoder output if that was kept."""
        num_frames = batch.num_frames[utterances]
        if batch.encoded is not None:
            return self.project(batch.encoded[utterances], num_frames)
        return self.encode(batch.features[utterances], num_frames)

    @torch.no_grad()
    def keep_encoded(self, batch: SpeechBatch) -> SpeechBatch:
        """Run a frozen encoder once for all forwards on a batch; a trained one is left to each forward."""
        if any(parameter.requires_grad for parameter in self.encoder.parameters()):
            return batch
        self.work["encoder_utterances"] += len(batch.features)
        return replace(batch, encoded=self.run_encoder(batch.features, batch.num_frames).hidden)

    def project(self, hidden: Float[Tensor, "u t e"], num_frames: Int[Tensor, " u"]) -> SpeechEmbeddings:
        """Turn encoder output into speech embeddings."""
        num_tokens = count_frames(num_frames, "stride") // self.projector.downsample
        with self.autocast(hidden.device):
            return SpeechEmbeddings(self.projector(hidden), num_tokens)

    def count_prompt(self, num_frames: Int[Tensor, " u"]) -> Int[Tensor, " u"]:
        """Prompt tokens, speech included, of utterances with so many feature frames."""
        num_speech = count_frames(num_frames, "stride") // self.projector.downsample
        return num_speech + len(self.prompt.prefix_ids) + len(self.prompt.suffix_ids)

    def prompts(self, speech: SpeechEmbeddings) -> Prompts:
        """Splice the speech into the chat prompt, compactly."""
        device = speech.embeddings.device
        prefix = self.embed(torch.tensor(self.prompt.prefix_ids, device=device))
        suffix = self.embed(torch.tensor(self.prompt.suffix_ids, device=device))
        cast = SpeechEmbeddings(speech.embeddings.to(prefix.dtype), speech.num_tokens)
        return splice_speech(prefix, cast, suffix)

    def embed(self, tokens: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape d"]:
        """Look up token embeddings."""
        return self.causal_lm.get_input_embeddings()(tokens)

    def decode(self, completions: Completions) -> list[str]:
        """Completions as text."""
        rows = zip(completions.tokens.tolist(), completions.mask.sum(1).tolist(), strict=True)
        return [self.prompt.decode(tokens[:num_tokens]) for tokens, num_tokens in rows]

    def decoder(
        self,
        embeddings: Float[Tensor, "n x d"],
        attention_mask: Tensor | None,
        position_ids: Int[Tensor, "n x"],
        cache: Cache | None = None,
    ) -> Float[Tensor, "n x d"]:
        """Run the decoder up to its final norm.

        Args:
            embeddings: New positions only, when there is a cache.
            attention_mask: True at visible keys, ``[n, keys]`` (causality is added) or ``[n, x, keys]``; None
                if every earlier position is visible.
            position_ids: Rotary positions.
            cache: Grows in place.
        """
        if attention_mask is not None and attention_mask.ndim == 3:
            # Additive, with a head axis: what transformers hands to the attention kernel as it is.
            hidden = torch.finfo(embeddings.dtype).min
            attention_mask = torch.zeros_like(attention_mask, dtype=embeddings.dtype).masked_fill_(
                ~attention_mask, hidden
            )[:, None]
        self.work["decoder_forwards"] += 1
        self.work["decoder_positions"] += embeddings.shape[0] * embeddings.shape[1]
        with self.autocast(embeddings.device):
            output = self.causal_lm.model(
                inputs_embeds=embeddings,
                attention_mask=attention_mask,
                position_ids=position_ids,
                use_cache=cache is not None,
                **{self._cache_argument: cache},
            )
        return output.last_hidden_state

    def head(self, hidden: Float[Tensor, "positions d"]) -> Float[Tensor, "positions v"]:
        """Logits in float32; project only positions that need them."""
        return self.with_head(hidden, vocabulary_logits)

    def with_head(
        self, hidden: Float[Tensor, "positions d"], function: Callable[[Tensor, Tensor], Output]
    ) -> Output:
        """Call a function with hidden states and the output embedding."""
        return self.causal_lm.lm_head(hidden, function)

    def join_forward(self, device: torch.device) -> None:
        """Take part in a rollout's forward of other ranks, with one token of nobody's."""
        token = torch.zeros(1, 1, dtype=torch.long, device=device)
        self.head(self.decoder(self.embed(token), None, token)[0])

    def each_logits(
        self, hidden: Float[Tensor, "positions d"], function: Callable[[Tensor, slice], Output]
    ) -> list[Output]:
        """Call a function with the logits of a few positions at a time, and with where those are."""

        def run(states: Tensor, weight: Tensor) -> list[Output]:
            starts = range(0, len(states), self.positions_at_once)
            parts = [slice(start, start + self.positions_at_once) for start in starts]
            return [function(vocabulary_logits(states[part], weight), part) for part in parts]

        return self.with_head(hidden, run)

    @property
    def positions_at_once(self) -> int:
        """Positions whose logits may exist at the same time."""
        return max(1, self.max_logits // self.causal_lm.config.vocab_size)

    def forward(
        self,
        batch: SpeechBatch,
        tokens: Int[Tensor, "n l"],
        mask: Bool[Tensor, "n l"],
        *,
        temperature: float,
        with_adapter: bool = True,
    ) -> TokenScores:
        """Score completions.

        Args:
            batch: Speech of the rows.
            tokens: Completions; arbitrary where ``mask`` is False.
            mask: True at the completion's tokens, its end token included.
            temperature: As in the rollout.
            with_adapter: False scores with LoRA switched off.
        """
        known = tokens.masked_fill(~mask, self.prompt.pad_id)
        score = self._score_trees if self.layout == "tree" else self._score_replicas
        with nullcontext() if with_adapter else adapter_disabled(self.llm):
            return score(batch, known, mask, temperature)

    def _score_replicas(
        self, batch: SpeechBatch, tokens: Int[Tensor, "n l"], mask: Bool[Tensor, "n l"], temperature: float
    ) -> TokenScores:
        """Every row encodes its utterance anew, so that in training each has dropout masks of its own."""
        speech = self.encode_batch(batch, batch.row_utterance)
        return self.score(speech, tokens, mask, temperature=temperature)

    def _score_trees(
        self, batch: SpeechBatch, tokens: Int[Tensor, "n l"], mask: Bool[Tensor, "n l"], temperature: float
    ) -> TokenScores:
        """Every utterance is encoded once, and a beginning that transcripts share is read once."""
        used, row_tree = batch.row_utterance.unique(return_inverse=True)
        trees = build_trees(tokens, mask, row_tree, len(used))
        prompts = self.prompts(self.encode_batch(batch, used))
        inputs = tree_inputs(prompts, trees, self.embed)
        scores = self._token_scores(inputs, trees.tokens[trees.is_node], trees.is_node, temperature)
        return TokenScores(trees.gather(scores.logps, mask), trees.gather(scores.entropy, mask))

    def score(
        self,
        speech: SpeechEmbeddings,
        tokens: Int[Tensor, "n l"],
        mask: Bool[Tensor, "n l"],
        *,
        temperature: float = 1.0,
    ) -> TokenScores:
        """Score completions of speech that is encoded already, one utterance per row."""
        inputs = replica_inputs(self.prompts(speech), self.embed(tokens), mask)
        return self._token_scores(inputs, tokens[mask], mask, temperature)

    def _token_scores(
        self, inputs: DecoderInputs, tokens: Int[Tensor, " q"], where: Bool[Tensor, "i j"], temperature: float
    ) -> TokenScores:
        """Read the inputs and score the tokens, which belong where ``where`` is True."""
        hidden = self.decoder(inputs.embeddings, inputs.is_visible, inputs.position_ids)
        score = partial(
            token_logps, tokens=tokens, temperature=temperature, chunk_size=self.positions_at_once
        )
        scores = self.with_head(inputs.gather_predictors(hidden), score)
        blank = scores.logps.new_zeros(where.shape)
        return TokenScores(
            blank.masked_scatter(where, scores.logps), blank.masked_scatter(where, scores.entropy)
        )
