"""The released sizes: names, shapes and counts at full depth, and one layer of each that really computes."""

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from asrl.models.conformer import ConformerEncoder
from asrl.models.firered import _expected_shapes
from asrl.models.lora import attach_lora
from asrl.models.projector import Projector
from asrl.models.prompt import build_prompt, load_tokenizer
from asrl.models.released_lora import export_lora
from asrl.models.speech_llm import SpeechLLM
from asrl.models.trainable import set_trainable
from asrl.types import SpeechBatch

WIDTH, HEADS, KERNEL, BLOCKS = 1280, 20, 33, 16
HIDDEN, INTERMEDIATE, LAYERS, VOCABULARY = 3584, 18944, 28, 152064
KEY_WIDTH = 4 * 128  # 4 key/value heads of 128


def build_encoder(num_layers=BLOCKS):
    return ConformerEncoder(
        idim=80, num_layers=num_layers, num_heads=HEADS, d_model=WIDTH, kernel_size=KERNEL
    )


def build_decoder(num_layers=LAYERS, vocabulary=VOCABULARY):
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=num_layers,
        num_attention_heads=28,
        num_key_value_heads=4,
        tie_word_embeddings=False,
    )
    return Qwen2ForCausalLM(config)


@pytest.fixture(scope="module")
def real():
    """Encoder, projector and plain decoder of FireRedASR-LLM-L, without memory behind their tensors."""
    with torch.device("meta"):
        return build_encoder(), Projector(WIDTH, HIDDEN), build_decoder()


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def shapes(module):
    return {name: list(tensor.shape) for name, tensor in module.state_dict().items()}


def block_shapes(prefix):
    """One Conformer block, written out from the specification of the checkpoint."""
    norm = {"weight": [1280], "bias": [1280]}
    square = [1280, 1280]
    feed_forward = {
        **{f"net.0.{name}": shape for name, shape in norm.items()},
        **{"net.1.weight": [5120, 1280], "net.1.bias": [5120]},
        **{"net.4.weight": [1280, 5120], "net.4.bias": [1280]},
    }
    attention = {
        **{"pos_bias_u": [20, 64], "pos_bias_v": [20, 64]},
        **{f"{name}.weight": square for name in ("w_qs", "w_ks", "w_vs", "fc", "linear_pos")},
        **{f"layer_norm_{part}.{name}": shape for part in "qkv" for name, shape in norm.items()},
    }
    convolution = {
        **{f"pre_layer_norm.{name}": shape for name, shape in norm.items()},
        **{"pointwise_conv1.weight": [5120, 1280, 1], "depthwise_conv.weight": [2560, 1, 33]},
        **{"batch_norm.weight": [2560], "batch_norm.bias": [2560]},
        **{"pointwise_conv2.weight": [1280, 2560, 1]},
    }
    parts = {"ffn1": feed_forward, "mhsa": attention, "conv": convolution, "ffn2": feed_forward}
    parts["layer_norm"] = norm
    return {
        f"{prefix}{part}.{name}": shape for part, tensors in parts.items() for name, shape in tensors.items()
    }


def test_the_encoder_has_the_released_names_and_shapes(real):
    expected = {
        "input_preprocessor.conv.0.weight": [32, 1, 3, 3],
        "input_preprocessor.conv.0.bias": [32],
        "input_preprocessor.conv.2.weight": [32, 32, 3, 3],
        "input_preprocessor.conv.2.bias": [32],
        "input_preprocessor.out.weight": [1280, 608],  # 32 channels x 19 bins
        "input_preprocessor.out.bias": [1280],
        "positional_encoding.pe": [1, 9999, 1280],
    }
    for block in range(16):
        expected |= block_shapes(f"layer_stack.{block}.")
    assert shapes(real[0]) == expected
    assert len(expected) == 551


def test_the_parts_have_the_published_numbers_of_parameters(real):
    encoder, projector, decoder = real
    assert count(encoder) == 710_543_968
    # [3584, 2560] and [3584, 3584] with biases.
    assert count(projector) == 22_027_264
    # Qwen2-7B: two embeddings of 152,064 x 3,584, the last norm, and 28 layers of 233,057,792.
    assert count(decoder) == 2 * 152_064 * 3584 + 3584 + 28 * 233_057_792 == 7_615_616_512


def test_lora_trains_the_published_number_of_parameters():
    with torch.device("meta"):
        llm = attach_lora(build_decoder(), rank=64, alpha=16, dropout=0.05)
    assert sum(parameter.numel() for parameter in llm.parameters() if parameter.requires_grad) == 161_480_704


def test_the_released_layout_at_full_depth(real):
    layout = _expected_shapes(*real)
    # name of a projection: width of its output and of its input
    projections = {
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (KEY_WIDTH, HIDDEN),
        "self_attn.v_proj": (KEY_WIDTH, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj": (HIDDEN, INTERMEDIATE),
    }
    lora = {}
    for layer in range(28):
        for name, (num_outputs, num_inputs) in projections.items():
            stem = f"llm.base_model.model.model.layers.{layer}.{name}"
            lora[f"{stem}.lora_A.default.weight"] = [64, num_inputs]
            lora[f"{stem}.lora_B.default.weight"] = [num_outputs, 64]
    projector = {
        "encoder_projector.linear1.weight": [3584, 2560],
        "encoder_projector.linear1.bias": [3584],
        "encoder_projector.linear2.weight": [3584, 3584],
        "encoder_projector.linear2.bias": [3584],
    }
    assert layout == {f"encoder.{name}": shape for name, shape in shapes(real[0]).items()} | lora | projector
    # Encoder, LoRA, projector: the order in the file.
    assert [name.split(".")[0] for name in layout] == ["encoder"] * 551 + ["llm"] * 392 + [
        "encoder_projector"
    ] * 4
    # All float32, 3.627 GB of a file of 3.63 GB: parameters, positional table, projector and LoRA.
    num_floats = sum(torch.Size(shape).numel() for shape in layout.values())
    assert num_floats == 710_543_968 + 9999 * 1280 + 22_027_264 + 161_480_704 == 906_850_656


def test_an_exported_adapter_has_the_released_layout():
    with torch.device("meta"):
        plain = build_decoder()
        expected = _expected_shapes(build_encoder(1), Projector(WIDTH, HIDDEN), plain)
        exported = export_lora(attach_lora(plain, rank=16, alpha=32, dropout=0.0))
    found = {name: list(tensor.shape) for name, tensor in exported.items()}
    assert found == {name: shape for name, shape in expected.items() if name.startswith("llm.")}


def test_one_layer_of_each_real_width_scores_and_learns(golden):
    """2 s of noise, a bfloat16 decoder with a small vocabulary, to spare memory."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        llm = build_decoder(num_layers=1, vocabulary=640)
    finally:
        torch.set_default_dtype(torch.float32)
    llm = attach_lora(llm, rank=64, alpha=16, dropout=0.0)
    prompt = build_prompt(load_tokenizer(golden / "FireRedASR-LLM-tiny" / "Qwen2-7B-Instruct"))
    model = SpeechLLM(build_encoder(1), Projector(WIDTH, HIDDEN), llm, prompt)
    set_trainable(model, encoder=False, projector=True, decoder="lora")
    rows = torch.zeros(2, dtype=torch.long)
    batch = SpeechBatch((), torch.randn(1, 200, 80), torch.tensor([200]), rows, torch.arange(2), rows, rows)
    tokens = torch.tensor([[7, 8, 9, 5], [7, 8, 10, 5]])
    scores = model(batch, tokens, torch.ones_like(tokens, dtype=torch.bool), temperature=1.0)
    # Random weights give each of 640 tokens about 1 / 640.
    assert scores.logps.isfinite().all()
    assert (scores.entropy - torch.tensor(640.0).log()).abs().max() < 1.5
    scores.logps.sum().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.requires_grad]
    assert all(gradient.isfinite().all() for gradient in gradients)
