from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import DynamicCache

from asrl.errors import UserError
from asrl.models.firered import load_firered
from asrl.models.lora import lora_layers
from asrl.models.speech_llm import cache_argument
from asrl.models.trainable import set_dropout, set_trainable

TOKENS = torch.tensor([[361, 427, 431, 602, 600], [490, 520, 473, 515, 602]])
MASK = torch.tensor([[True, True, True, True, False], [True] * 5])


def score(model, batch, tokens=TOKENS, mask=MASK, **options):
    with torch.no_grad():
        return model(batch, tokens, mask, temperature=1.0, **options)


def decode_greedily(model, features, num_steps):
    """Token by token without a cache: the last position predicts the next token."""
    prompt = model.prompts(model.encode(features[None], torch.tensor([len(features)]))).embeddings
    tokens = []
    for _ in range(num_steps):
        embeddings = torch.cat([prompt, model.embed(torch.tensor([tokens], dtype=torch.long))], dim=1)
        hidden = model.decoder(embeddings, None, torch.arange(embeddings.shape[1])[None])
        tokens.append(int(model.head(hidden[:, -1]).argmax()))
    return tokens


@torch.no_grad()
def test_greedy_token_is_the_most_probable_one_under_forward(model, features, make_batch):
    greedy = decode_greedily(model, features[0], 2)
    tokens = torch.tensor(greedy).repeat(640, 1)
    for step in range(2):
        alternatives = tokens.clone()
        alternatives[:, step] = torch.arange(640)
        logps = []
        for rows in alternatives[:, : step + 1].split(160):
            mask = torch.ones_like(rows, dtype=torch.bool)
            logps.append(score(model, make_batch([0], [0] * len(rows)), rows, mask).logps[:, step])
        logps = torch.cat(logps)
        assert int(logps.argmax()) == greedy[step]
        # The alternatives are the whole vocabulary.
        torch.testing.assert_close(logps.exp().sum(), torch.tensor(1.0), rtol=0, atol=1e-5)


def test_an_utterance_alone_scores_as_inside_a_padded_batch(model, make_batch):
    together = score(model, make_batch([0, 1], [0, 1]))
    for row, num_tokens in enumerate((4, 5)):
        alone = score(
            model,
            make_batch([row], [0]),
            TOKENS[row : row + 1, :num_tokens],
            MASK[row : row + 1, :num_tokens],
        )
        # Log-probs near -15 in float32: an error of 1e-6 of that after two blocks and two layers.
        torch.testing.assert_close(together.logps[row, :num_tokens], alone.logps[0], rtol=0, atol=2e-5)
        torch.testing.assert_close(together.entropy[row, :num_tokens], alone.entropy[0], rtol=0, atol=2e-5)


def test_rows_take_the_utterance_they_name(model, make_batch):
    straight = score(model, make_batch([0, 1], [0, 1]))
    crossed = score(model, make_batch([1, 0], [1, 0]))
    torch.testing.assert_close(crossed.logps, straight.logps, rtol=0, atol=2e-5)
    swapped = score(model, make_batch([1, 0], [0, 1]))
    assert (swapped.logps - straight.logps)[MASK].abs().max() > 1


def test_scores_are_zero_and_padding_is_ignored_where_the_mask_is_false(model, make_batch):
    batch = make_batch([0, 1], [0, 1])
    expected = score(model, batch)
    assert expected.logps[0, 4] == expected.entropy[0, 4] == 0
    garbage = TOKENS.masked_fill(~MASK, -1)
    assert torch.equal(score(model, batch, garbage).logps, expected.logps)


def test_temperature_divides_the_logits(model, features, make_batch):
    batch = make_batch([0], [0])
    with torch.no_grad():
        prompts = model.prompts(model.encode(features[0][None], torch.tensor([80])))
        hidden = model.decoder(prompts.embeddings, None, torch.arange(24)[None])
        expected = (model.head(hidden[:, -1]) / 0.5).log_softmax(-1)[0, 361]
        logps = model(batch, TOKENS[:1, :1], MASK[:1, :1], temperature=0.5).logps
    torch.testing.assert_close(logps[0, 0], expected, rtol=0, atol=2e-5)


def test_scoring_in_chunks_changes_nothing(model, make_batch):
    batch = make_batch([0, 1], [0, 1])
    whole = score(model, batch)
    model.max_logits = 2 * 640
    # Matrix products of other sizes may add in another order.
    torch.testing.assert_close(score(model, batch).logps, whole.logps, rtol=0, atol=1e-5)


def test_without_adapter_scores_are_those_of_the_plain_decoder(checkpoint, model, make_batch):
    batch = make_batch([0, 1], [0, 1])
    with_adapter = score(model, batch)
    without = score(model, batch, with_adapter=False)
    for layer in lora_layers(model.llm).values():
        nn.init.zeros_(layer.lora_B["default"].weight)
    torch.testing.assert_close(without.logps, score(model, batch).logps, rtol=0, atol=1e-6)
    assert (without.logps - with_adapter.logps).abs().max() > 0.1


def test_cached_decoding_equals_the_full_forward(model, features):
    with torch.no_grad():
        prompts = model.prompts(model.encode(features[0][None], torch.tensor([80])))
        full = torch.cat([prompts.embeddings, model.embed(TOKENS[:1])], dim=1)
        positions = torch.arange(full.shape[1])[None]
        expected = model.decoder(full, None, positions)
        cache = DynamicCache()
        visible = torch.ones(1, full.shape[1], dtype=torch.bool)
        first = model.decoder(full[:, :24], visible[:, :24], positions[:, :24], cache)
        second = model.decoder(full[:, 24:], visible, positions[:, 24:], cache)
    torch.testing.assert_close(torch.cat([first, second], dim=1), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_the_cache_goes_under_the_name_that_transformers_uses(model, name):
    def with_new_name(inputs_embeds=None, cache=None):
        raise NotImplementedError

    def with_old_name(inputs_embeds=None, past_key_values=None):
        raise NotImplementedError

    forward = {"cache": with_new_name, "past_key_values": with_old_name}[name]
    assert cache_argument(forward) == name

    received = {}

    def record(**options):
        received.update(options)
        return SimpleNamespace(last_hidden_state=options["inputs_embeds"])

    model._cache_argument = name
    model.causal_lm.model.forward = record
    cache = DynamicCache()
    model.decoder(torch.zeros(1, 2, 64), None, torch.arange(2)[None], cache)
    assert received[name] is cache


def test_audio_too_short_for_an_embedding_scores_as_an_empty_prompt(model, make_batch):
    # 4 frames: ceil(4 / 4) // 2 = 0 embeddings.
    batch = make_batch([0], [0])
    short = type(batch)(**{**vars(batch), "features": batch.features[:, :4], "num_frames": torch.tensor([4])})
    speech = model.encode(short.features, short.num_frames)
    assert speech.num_tokens.tolist() == [0]
    assert score(model, short, TOKENS[:1, :4], MASK[:1, :4]).logps.isfinite().all()


def dropout_settings(model):
    return {
        name: module.p if isinstance(module, nn.Dropout) else module.attention_dropout
        for name, module in model.named_modules()
        if isinstance(module, nn.Dropout) or hasattr(module, "attention_dropout")
    }


@pytest.fixture
def dropping_model(model):
    """Every dropout at 0.5, the decoder's attention (0 in the checkpoint) too, in train mode."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
        elif hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.5
    return model.train()


def test_with_dropout_off_train_mode_leaves_scores_unchanged(dropping_model, make_batch):
    batch = make_batch([0, 1], [0, 1])
    expected = score(dropping_model.eval(), batch)
    set_dropout(dropping_model, False)
    assert torch.equal(score(dropping_model.train(), batch).logps, expected.logps)


@pytest.mark.parametrize(
    "part",
    ["encoder.dropout", "encoder.layer_stack.1.ffn1", "mhsa", "conv.dropout", "lora_dropout", "self_attn"],
)
def test_each_dropout_changes_scores_when_it_alone_is_on(dropping_model, make_batch, part):
    batch = make_batch([0, 1], [0, 1])
    expected = score(dropping_model.eval(), batch)
    set_dropout(dropping_model, False)
    for name, module in dropping_model.named_modules():
        if part in name and (isinstance(module, nn.Dropout) or hasattr(module, "attention_dropout")):
            setattr(module, "p" if isinstance(module, nn.Dropout) else "attention_dropout", 0.5)
    assert (score(dropping_model.train(), batch).logps - expected.logps).abs().max() > 1e-3


def test_switching_dropout_off_twice_and_on_restores_every_rate(model):
    before = dropout_settings(model)
    set_dropout(model, False)
    assert set(dropout_settings(model).values()) == {0.0}
    set_dropout(model, False)
    set_dropout(model, True)
    assert dropout_settings(model) == before
    assert set(before.values()) == {0.0, 0.05, 0.1}


def test_replicas_of_one_utterance_have_dropout_masks_of_their_own(model, make_batch):
    model.layout = "replicas"
    batch = make_batch([0], [0, 0])
    tokens, mask = TOKENS[[1, 1]], MASK[[1, 1]]
    same = score(model, batch, tokens, mask).logps
    torch.testing.assert_close(same[0], same[1], rtol=0, atol=1e-5)
    for layer in lora_layers(model.llm).values():
        layer.lora_dropout["default"].p = 0.0  # leaves the encoder's
    different = score(model.train(), batch, tokens, mask).logps
    assert (different[0] - different[1]).abs().max() > 1e-3


def test_frozen_encoder_has_no_dropout_in_training(model):
    set_trainable(model, encoder=False, projector=True, decoder="lora")
    model.train()
    assert not any(module.training for module in model.encoder.modules())
    assert model.projector.training
    set_trainable(model, encoder=True, projector=True, decoder="lora")
    model.train()
    assert model.encoder.layer_stack[0].training


def test_gradients_reach_encoder_projector_and_lora_and_nothing_else(model, make_batch):
    model.train()
    model(make_batch([0, 1], [0, 1]), TOKENS, MASK, temperature=1.0).logps.sum().backward()
    with_gradient = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    expected = {
        name
        for name, _ in model.named_parameters()
        if name.startswith(("encoder.", "projector.")) or ".lora_" in name
    }
    assert with_gradient == expected
    assert all(parameter.grad.any() for parameter in model.parameters() if parameter.grad is not None)


def test_recomputed_activations_give_the_same_gradients(model, make_batch):
    gradients = []
    for with_checkpointing in (False, True):
        if with_checkpointing:
            model.enable_gradient_checkpointing()
        model.zero_grad()
        torch.manual_seed(3)
        scores = model.train()(make_batch([0, 1], [0, 1]), TOKENS, MASK, temperature=1.0)
        scores.logps.sum().backward()
        gradients.append(
            {
                name: parameter.grad.clone()
                for name, parameter in model.named_parameters()
                if parameter.requires_grad
            }
        )
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("parts", "trained"),
    [
        ({"encoder": True, "projector": False, "decoder": "none"}, {"encoder"}),
        ({"encoder": False, "projector": True, "decoder": "none"}, {"projector"}),
        ({"encoder": False, "projector": False, "decoder": "lora"}, {"lora"}),
    ],
)
def test_trainable_parts_are_those_asked_for(model, parts, trained):
    set_trainable(model, **parts)
    found = {
        "lora" if ".lora_" in name else name.split(".")[0]
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    assert found == trained


def test_full_decoder_training_makes_every_weight_float32(checkpoint):
    model = load_firered(checkpoint, lora_start="none", decoder_dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in model.llm.parameters()} == {torch.bfloat16}
    set_trainable(model, encoder=False, projector=False, decoder="full")
    assert all(
        parameter.requires_grad and parameter.dtype == torch.float32 for parameter in model.llm.parameters()
    )


def test_parts_that_do_not_exist_cannot_be_trained(checkpoint, model):
    with pytest.raises(UserError, match=r"lora.start none"):
        set_trainable(model, encoder=True, projector=True, decoder="full")
    plain = load_firered(checkpoint, lora_start="none")
    with pytest.raises(UserError, match=r"lora.start continue or merge"):
        set_trainable(plain, encoder=True, projector=True, decoder="lora")
