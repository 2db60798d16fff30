import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from asrl.models.lora import adapter_disabled, attach_lora, fold_lora, folded_state_dict, lora_layers


@pytest.fixture
def plain():
    config = Qwen2Config(
        vocab_size=11,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    return Qwen2ForCausalLM(config).eval()


@pytest.fixture
def wrapped(plain):
    llm = attach_lora(plain, rank=2, alpha=6, dropout=0.0).eval()
    for layer in lora_layers(llm).values():
        torch.nn.init.normal_(layer.lora_B["default"].weight)
    return llm


def test_fold_by_hand():
    # W + 0.5 * B A with B A = [[1], [2]] [[3, 4]] = [[3, 4], [6, 8]].
    weight = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    folded = fold_lora(weight, torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0], [2.0]]), 0.5)
    assert folded.tolist() == [[2.5, 2.0], [3.0, 5.0]]


def test_every_projection_of_every_layer_gets_an_adapter(wrapped):
    layer = "model.layers.0."
    assert set(lora_layers(wrapped)) == {
        *(f"{layer}self_attn.{name}_proj" for name in "qkvo"),
        *(f"{layer}mlp.{name}_proj" for name in ("gate", "up", "down")),
    }
    assert all(layer.scaling["default"] == 3.0 for layer in lora_layers(wrapped).values())  # 6 / 2


def test_fresh_adapter_changes_nothing(plain):
    tokens = torch.tensor([[1, 2, 3]])
    before = plain(tokens).logits
    after = attach_lora(plain, rank=2, alpha=6, dropout=0.0).eval()(tokens).logits
    assert torch.equal(before, after)


def test_folded_weights_give_the_same_logits_and_leave_the_model_alone(wrapped):
    tokens = torch.tensor([[1, 2, 3]])
    expected = wrapped(tokens).logits
    folded = Qwen2ForCausalLM(wrapped.get_base_model().config).eval()
    folded.load_state_dict(folded_state_dict(wrapped))
    torch.testing.assert_close(folded(tokens).logits, expected, rtol=0, atol=1e-6)
    assert torch.equal(wrapped(tokens).logits, expected)


def test_fold_is_rounded_once():
    # Steps of bfloat16 near 1 are 2^-7. W + B A = 1 + 2^-9 + 2^-8 is beyond the middle between 1 and 1 + 2^-7
    # and must round up; W rounded first would be 1, and 1 + 2^-8 is a tie that goes to 1.
    llm = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=3,
            hidden_size=2,
            intermediate_size=2,
            num_hidden_layers=1,
            num_attention_heads=1,
            num_key_value_heads=1,
        )
    )
    wrapped = attach_lora(llm, rank=1, alpha=1, dropout=0.0)
    layer = lora_layers(wrapped)["model.layers.0.mlp.up_proj"]
    with torch.no_grad():
        layer.base_layer.weight.fill_(1 + 2**-9)
        layer.lora_A["default"].weight.fill_(1)
        layer.lora_B["default"].weight.fill_(2**-8)
    folded = folded_state_dict(wrapped, dtype=torch.bfloat16)["model.layers.0.mlp.up_proj.weight"]
    assert folded.dtype == torch.bfloat16
    assert folded.tolist() == [[1 + 2**-7] * 2] * 2


def test_disabled_adapter_is_the_decoder_without_lora(wrapped):
    tokens = torch.tensor([[1, 2, 3]])
    with_adapter = wrapped(tokens).logits
    with adapter_disabled(wrapped):
        without = wrapped(tokens).logits
    raw = Qwen2ForCausalLM(wrapped.get_base_model().config).eval()
    raw.load_state_dict(
        {
            name.replace(".base_layer.", "."): weight
            for name, weight in wrapped.get_base_model().state_dict().items()
            if ".lora_" not in name
        }
    )
    torch.testing.assert_close(without, raw(tokens).logits, rtol=0, atol=1e-6)
    assert torch.equal(wrapped(tokens).logits, with_adapter)
    assert not torch.allclose(without, with_adapter)


@pytest.mark.parametrize("is_trainable", [True, False])
def test_adapter_and_gradient_flags_come_back_after_an_error(wrapped, is_trainable):
    for layer in lora_layers(wrapped).values():
        layer.lora_A["default"].weight.requires_grad_(is_trainable)
    before = {name: parameter.requires_grad for name, parameter in wrapped.named_parameters()}

    def fail():
        with adapter_disabled(wrapped):
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        fail()
    assert {name: parameter.requires_grad for name, parameter in wrapped.named_parameters()} == before
    assert not any(layer.disable_adapters for layer in lora_layers(wrapped).values())


def test_disabling_may_be_nested(wrapped):
    with adapter_disabled(wrapped):
        with adapter_disabled(wrapped):
            pass
        assert all(layer.disable_adapters for layer in lora_layers(wrapped).values())
    assert not any(layer.disable_adapters for layer in lora_layers(wrapped).values())
