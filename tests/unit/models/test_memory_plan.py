"""Estimated memory against counted bytes and against the built model."""

from dataclasses import replace

import pytest
import torch
from live_memory import peak_bytes
from transformers import Qwen2Config, Qwen2ForCausalLM

from asrl.models.conformer import ConformerEncoder
from asrl.models.lora import attach_lora
from asrl.models.memory import CPU, GPU, Work, update_bytes
from asrl.models.projector import Projector
from asrl.models.sizes import ModelSizes, Recipe
from asrl.models.speech_llm import SpeechLLM
from asrl.models.trainable import set_dropout, set_trainable
from asrl.types import SpeechBatch

WIDE = ModelSizes(
    encoder_width=128,
    encoder_heads=4,
    encoder_layers=3,
    kernel_size=15,
    hidden_size=256,
    num_heads=8,
    num_key_value_heads=2,
    intermediate_size=768,
    num_layers=4,
    vocab_size=640,
)


def build_encoder(sizes):
    return ConformerEncoder(
        sizes.num_bins, sizes.encoder_layers, sizes.encoder_heads, sizes.encoder_width, sizes.kernel_size
    )


def build_decoder(sizes):
    config = Qwen2Config(
        vocab_size=sizes.vocab_size,
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size,
        num_hidden_layers=sizes.num_layers,
        num_attention_heads=sizes.num_heads,
        num_key_value_heads=sizes.num_key_value_heads,
        tie_word_embeddings=sizes.is_tied,
    )
    return Qwen2ForCausalLM(config)


def build(sizes, recipe, prompt):
    llm = build_decoder(sizes)
    if recipe.decoder == "lora":
        llm = attach_lora(llm, rank=recipe.lora_rank, alpha=16, dropout=0.1)
    projector = Projector(sizes.encoder_width, sizes.hidden_size)
    model = SpeechLLM(build_encoder(sizes), projector, llm, prompt, max_logits=recipe.max_logits)
    set_trainable(
        model, encoder=recipe.trains_encoder, projector=recipe.trains_projector, decoder=recipe.decoder
    )
    if recipe.has_checkpointing:
        model.enable_gradient_checkpointing()
    set_dropout(model, recipe.has_dropout)
    return model.train()


def measure(model, *, num_utterances, num_frames, num_generations, num_tokens):
    """Peak of a second forward and backward, whose gradients add to those of a first, and its work.

    Transcripts share nothing, so each of their tokens is a node.
    """
    num_rows = num_utterances * num_generations
    rows = torch.arange(num_rows)
    features = torch.randn(num_utterances, num_frames, model.encoder.layer_stack[0].layer_norm.weight.numel())
    features = torch.randn(num_utterances, num_frames, 80)
    batch = SpeechBatch(
        (), features, torch.full((num_utterances,), num_frames), rows // num_generations, rows, rows, rows
    )
    batch = model.keep_encoded(batch)
    tokens = torch.randint(500, (num_rows, num_tokens))
    tokens[:, 0] = rows % num_generations
    mask = torch.ones_like(tokens, dtype=torch.bool)

    def step():
        model(batch, tokens, mask, temperature=1.0).logps.sum().backward()

    step()
    peak = peak_bytes(step)
    prompt = int(model.count_prompt(batch.num_frames)[0])
    # The last token of a transcript predicts nothing.
    num_positions = prompt + num_generations * (num_tokens - 1)
    frames = -(-num_frames // 4)
    return peak, Work(num_utterances, frames, num_utterances, num_positions, num_rows * num_tokens)


PLAIN = Recipe(lora_rank=16, decoder_bytes=4, has_checkpointing=False, max_logits=640 * 64)


@pytest.mark.parametrize("has_checkpointing", [False, True])
@pytest.mark.parametrize(
    "change",
    [{}, {"has_dropout": True}, {"trains_encoder": False}, {"decoder": "full"}, {"max_logits": 640 * 4000}],
    ids=lambda change: "-".join(change) or "plain",
)
@pytest.mark.parametrize("shape", [(2, 400, 4, 20), (4, 800, 2, 10), (1, 200, 8, 40)], ids=str)
def test_the_peak_of_an_update_is_predicted(model, has_checkpointing, change, shape):
    recipe = replace(PLAIN, has_checkpointing=has_checkpointing, **change)
    policy = build(WIDE, recipe, model.prompt)
    names = ("num_utterances", "num_frames", "num_generations", "num_tokens")
    peak, work = measure(policy, **dict(zip(names, shape, strict=True)))
    predicted = update_bytes(WIDE, work, recipe, CPU)
    print(f"ratio {predicted.total / peak:.3f} measured {peak / 2**20:.2f} MiB", predicted)
    assert predicted.total == pytest.approx(peak, rel=0.15)
