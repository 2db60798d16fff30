"""Estimated memory against counted bytes and against the built model."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from live_memory import peak_bytes
from sized_models import WIDE, build, build_decoder, build_encoder
from transformers import DynamicCache

from asrl.models.firered import load_firered
from asrl.models.lora import attach_lora
from asrl.models.memory import (
    CPU,
    GPU,
    Work,
    decoder_layer_bytes,
    encoder_block_bytes,
    rollout_bytes,
    static_bytes,
    update_bytes,
    update_work,
)
from asrl.models.projector import Projector
from asrl.models.sizes import ModelSizes, Recipe
from asrl.models.trainable import set_dropout
from asrl.types import SpeechBatch

DEMO = Path(__file__).parents[3] / "demo" / "FireRedASR-LLM-demo"


def measure(model, *, num_utterances, num_frames, num_generations, num_tokens):
    """Peak of a second forward and backward, whose gradients add to those of a first, and its work.

    Transcripts share nothing, so each of their tokens is a node.
    """
    num_rows = num_utterances * num_generations
    rows = torch.arange(num_rows)
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


PLAIN = Recipe(lora_rank=16, decoder_bytes=4, has_checkpointing=False)
SHAPES = [
    {"num_utterances": 2, "num_frames": 400, "num_generations": 4, "num_tokens": 20},
    {"num_utterances": 4, "num_frames": 800, "num_generations": 2, "num_tokens": 10},
    {"num_utterances": 1, "num_frames": 200, "num_generations": 8, "num_tokens": 40},
]


def ratio(sizes, recipe, policy, shape):
    """Predicted over counted bytes, printed for whoever wants the figures (-rP)."""
    peak, work = measure(policy, **shape)
    predicted = update_bytes(sizes, work, recipe, CPU).total
    figures = (
        f"predicted {predicted / 2**20:.2f} MiB, counted {peak / 2**20:.2f} MiB: {predicted / peak:.3f}\n"
    )
    sys.stdout.write(figures)
    return predicted / peak


@pytest.mark.parametrize("has_checkpointing", [False, True], ids=["kept", "checkpointed"])
@pytest.mark.parametrize("shape", SHAPES, ids=["square", "speech", "text"])
def test_the_peak_of_an_update_is_predicted(model, has_checkpointing, shape):
    recipe = replace(PLAIN, has_checkpointing=has_checkpointing)
    assert ratio(WIDE, recipe, build(WIDE, recipe, model.prompt), shape) == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize("has_checkpointing", [False, True], ids=["kept", "checkpointed"])
@pytest.mark.parametrize(
    "change",
    [
        {"has_dropout": True},
        {"trains_encoder": False},
        {"decoder": "full"},
        {"decoder": "none"},
        {"decoder_bytes": 2},
        {"decoder_bytes": 2, "has_autocast": True},
    ],
    ids=["dropout", "frozen_encoder", "full_decoder", "frozen_decoder", "half_decoder", "autocast"],
)
def test_the_peak_is_predicted_for_other_recipes(model, has_checkpointing, change):
    recipe = replace(PLAIN, has_checkpointing=has_checkpointing, **change)
    assert ratio(WIDE, recipe, build(WIDE, recipe, model.prompt), SHAPES[0]) == pytest.approx(1, abs=0.15)


def test_the_peak_is_predicted_where_the_encoder_makes_it(model):
    sizes = replace(WIDE, encoder_width=256, hidden_size=64, intermediate_size=64, num_layers=1)
    recipe = replace(PLAIN, has_checkpointing=True)
    assert ratio(sizes, recipe, build(sizes, recipe, model.prompt), SHAPES[1]) == pytest.approx(1, abs=0.15)


def kept_bytes(module, *inputs, **options):
    """What autograd keeps of a forward, each storage once, weights left out."""
    weights = {tensor.untyped_storage().data_ptr() for tensor in module.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # alive, or its address is used again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module(*inputs, **options)
    return sum(num_bytes for num_bytes, _ in kept.values())


@pytest.mark.parametrize("has_dropout", [False, True])
def test_a_block_keeps_what_is_counted(model, has_dropout):
    recipe = replace(PLAIN, has_dropout=has_dropout)
    block = build(WIDE, recipe, model.prompt).encoder.layer_stack[0]
    hidden, positions = torch.randn(3, 50, 128, requires_grad=True), torch.randn(1, 99, 128)
    kept = kept_bytes(block, hidden, positions, torch.ones(3, 50, dtype=torch.bool))
    kept -= positions.nbytes  # a view of the table
    # Left out: two numbers per frame for each of eight norms, and flags; 0.3 %.
    assert encoder_block_bytes(WIDE, Work(3, 50, 3, 0, 0), recipe, CPU) == pytest.approx(kept, rel=0.005)


@pytest.mark.parametrize("change", [{}, {"has_dropout": True}, {"decoder": "full"}, {"decoder": "none"}])
def test_a_layer_keeps_what_is_counted(model, change):
    recipe = replace(PLAIN, **change)
    policy = build(WIDE, recipe, model.prompt).causal_lm.model
    hidden = torch.randn(2, 60, 256, requires_grad=True)
    angles = policy.rotary_emb(hidden, torch.arange(60).expand(2, -1))
    mask = torch.zeros(2, 1, 60, 60)
    kept = kept_bytes(policy.layers[0], hidden, attention_mask=mask, position_embeddings=angles)
    kept -= sum(tensor.nbytes for tensor in (mask, *angles))  # shared by all layers
    assert decoder_layer_bytes(WIDE, Work(2, 0, 2, 60, 0), recipe, CPU) == pytest.approx(kept, rel=0.005)


@pytest.mark.parametrize("decoder", ["lora", "full"])
def test_the_peak_is_predicted_where_logits_make_it(model, decoder):
    sizes = replace(WIDE, vocab_size=30_000)
    recipe = replace(PLAIN, has_checkpointing=True, decoder=decoder, max_logits=30_000 * 100)
    assert ratio(sizes, recipe, build(sizes, recipe, model.prompt), SHAPES[0]) == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize("has_checkpointing", [False, True], ids=["kept", "checkpointed"])
def test_the_peak_is_predicted_for_the_demo(has_checkpointing):
    policy = load_firered(DEMO, lora_start="merge", lora_rank=16, lora_alpha=32)
    block = policy.encoder.layer_stack[0]
    llm = policy.causal_lm.config
    sizes = ModelSizes(
        encoder_width=len(block.layer_norm.weight),
        encoder_heads=block.mhsa.num_heads,
        encoder_layers=len(policy.encoder.layer_stack),
        kernel_size=block.conv.depthwise_conv.kernel_size[0],
        hidden_size=llm.hidden_size,
        num_heads=llm.num_attention_heads,
        num_key_value_heads=llm.num_key_value_heads,
        intermediate_size=llm.intermediate_size,
        num_layers=llm.num_hidden_layers,
        vocab_size=llm.vocab_size,
    )
    recipe = replace(PLAIN, has_checkpointing=has_checkpointing)
    if has_checkpointing:
        policy.enable_gradient_checkpointing()
    set_dropout(policy, False)
    shape = {"num_utterances": 4, "num_frames": 300, "num_generations": 8, "num_tokens": 12}
    assert ratio(sizes, recipe, policy.train(), shape) == pytest.approx(1, abs=0.15)


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    "sizes", [WIDE, replace(WIDE, is_tied=True), ModelSizes()], ids=["wide", "tied", "L"]
)
def test_parameters_are_those_of_the_built_model(sizes):
    with torch.device("meta"):
        encoder, decoder = build_encoder(sizes), build_decoder(sizes)
        projector = Projector(sizes.encoder_width, sizes.hidden_size)
        assert (sizes.encoder, sizes.projector) == (count(encoder), count(projector))
        assert sizes.encoder_block == count(encoder.layer_stack[0])
        assert (sizes.decoder, sizes.decoder_layer) == (count(decoder), count(decoder.model.layers[0]))
        llm = attach_lora(decoder, rank=12, alpha=1, dropout=0.0)
    trained = Recipe(trains_encoder=False, trains_projector=False, lora_rank=12).trained(sizes)
    assert trained == sum(parameter.numel() for parameter in llm.parameters() if parameter.requires_grad)


def test_a_backend_cuts_what_it_says():
    # 710,543,968 + 22,027,264 + 161,480,704 trained weights; a frozen decoder in two bytes and a table of
    # 9999 x 1280 in four.
    trained, frozen = 4 * 894_051_936, 2 * 7_615_616_512 + 4 * 12_798_720
    expected = {
        "ddp": (frozen, trained, trained, 2 * trained),
        "zero1": (frozen, trained, trained, 3 * trained // 8),
        "zero2": (frozen, trained, trained // 8, 3 * trained // 8),
        "zero3": (frozen // 8, trained // 8, trained // 8, 3 * trained // 8),
        "fsdp2": (frozen // 8, trained // 8, trained // 8, 2 * trained // 8),
    }
    # DDP's buckets hold all gradients once more. A layer in two bytes and its LoRA are the largest unit.
    unit = 2 * 233_057_792 + 4 * 161_480_704 // 28
    gathered = 2 * 3584 * (2 * 152_064 + 1) + 4 * 22_027_264 + 2 * unit
    buffers = {
        "ddp": trained,
        "zero1": 2 * 10**9,
        "zero2": 2 * 10**9,
        "zero3": 2 * 10**9 + gathered,
        "fsdp2": gathered,
    }
    for backend, sizes in expected.items():
        found = static_bytes(ModelSizes(), Recipe(), backend=backend, num_ranks=8)
        assert tuple(found.values()) == (*sizes, buffers[backend])
    assert static_bytes(ModelSizes(), Recipe(), backend="ddp", num_ranks=1)["buffers"] == 0


def test_the_cache_is_the_decoders(model):
    cache = DynamicCache()
    positions = torch.arange(7).expand(3, -1)
    with torch.no_grad():
        model.decoder(torch.randn(3, 7, 64), None, positions, cache)
    held = sum(part.nbytes for layer in cache.layers for part in (layer.keys, layer.values))
    sizes = ModelSizes(hidden_size=64, num_heads=4, num_key_value_heads=2, num_layers=2)
    assert rollout_bytes(sizes, Work(1, 20, 3, 7, 0), PLAIN).cache == held


def test_a_forward_is_cut_like_a_step():
    shape = {"num_rows": 16, "num_generations": 8, "num_frames": 100, "num_prompt": 64, "num_tokens": 20}
    # Half of 8 x 20 tokens are nodes: 64 + 80 positions for each of two utterances.
    whole = update_work(**shape, unique_share=0.5, layout="tree", max_positions=None)
    assert whole == Work(2, 100, 2, 144, 160)
    assert update_work(**shape, unique_share=0.5, layout="tree", max_positions=287) == Work(
        1, 100, 1, 144, 80
    )
    # What does not fit is cut into rows, down to a single one.
    assert update_work(**shape, unique_share=0.5, layout="tree", max_positions=50) == Work(1, 100, 1, 84, 20)
    rows = update_work(**shape, unique_share=0.5, layout="replicas", max_positions=300)
    assert rows == Work(3, 100, 3, 84, 60)


def test_attention_weights_cost_a_matrix_per_head_where_a_kernel_keeps_them():
    work = Work(1, 10, 2, 50, 10)
    plain, saving = (
        decoder_layer_bytes(WIDE, work, PLAIN, GPU._replace(decoder_saves_attention=saves))
        for saves in (False, True)
    )
    # 2 rows, 8 heads, 50 x 50 floats; otherwise one normaliser per query.
    assert saving - plain == 4 * 2 * 8 * (50 * 50 - 50)
