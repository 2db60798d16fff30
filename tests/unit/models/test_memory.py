"""Memory of scoring and its gradient, beyond the weights."""

import pytest
import torch
from live_memory import peak_bytes
from torch import nn

from asrl.models.trainable import set_dropout
from asrl.models.vocabulary import VocabularyHead

NUM_ROWS, NUM_TOKENS = 6, 40


@pytest.fixture
def step(model, make_batch):
    """Scores rows of one utterance with a vocabulary of a given size, and computes a gradient."""
    set_dropout(model, False)
    generator = torch.Generator().manual_seed(1)

    def run(tokens, vocabulary=640):
        head = nn.Linear(64, vocabulary, bias=False).requires_grad_(False)
        model.causal_lm.lm_head = VocabularyHead(head.weight)
        model.causal_lm.config.vocab_size = vocabulary
        model.zero_grad()
        batch = make_batch([0], [0] * len(tokens))
        mask = torch.ones_like(tokens, dtype=torch.bool)
        return lambda: model(batch, tokens, mask, temperature=1.0).logps.sum().backward()

    run.model = model
    run.tokens = torch.randint(600, (NUM_ROWS, NUM_TOKENS), generator=generator)
    return run


def test_the_peak_does_not_grow_with_the_vocabulary(step):
    # 240 tokens: two chunks of 110 and a rest at 76 k, five of 55 at 152 k.
    step.model.max_logits = 2**23
    small, large = (peak_bytes(step(step.tokens, size)) for size in (76_000, 152_000))
    # A chunk and its exponentials, in float32: beyond them nothing is as large.
    assert small > 2 * 4 * 2**23
    assert large < 1.1 * small


def saved_bytes(run):
    """Bytes that the forward pass keeps for the backward pass, each tensor once."""
    saved = {}

    def pack(tensor):
        if not isinstance(tensor, nn.Parameter):
            storage = tensor.untyped_storage()
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return sum(saved.values())


@pytest.mark.parametrize("measure", [peak_bytes, saved_bytes])
def test_identical_transcripts_cost_the_memory_of_one(step, measure):
    one, sixteen = (measure(step(step.tokens[:1].repeat(num_rows, 1))) for num_rows in (1, 16))
    # What is left are integers, flags and log-probs of the rows themselves: some 8-byte numbers per token.
    assert sixteen - one < 15 * NUM_TOKENS * 8 * 10
    assert sixteen < 1.05 * one
    step.model.layout = "replicas"
    assert measure(step(step.tokens[:1].repeat(16, 1))) > 5 * one
