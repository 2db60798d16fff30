"""This module is the only place that attaches, folds and switches off LoRA on the decoder."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import Qwen2ForCausalLM

ADAPTER = "default"
LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def attach_lora(llm: Qwen2ForCausalLM, *, rank: int, alpha: int | float, dropout: float) -> PeftModel:
    """Wrap the decoder with a fresh adapter (float32, B = 0) on every attention and feed-forward projection.

    The decoder's weights are frozen, and its modules are changed in place.
    """
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules=list(LORA_TARGETS),
        bias="none",
        use_rslora=False,
        use_dora=False,
    )
    with warnings.catch_warnings():
        # peft asks for a property that transformers renamed in 5.24; both names work.
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*", category=FutureWarning)
        return get_peft_model(llm, config, adapter_name=ADAPTER)


def fold_lora(
    weight: Float[Tensor, "outputs inputs"],
    lora_a: Float[Tensor, "rank inputs"],
    lora_b: Float[Tensor, "outputs rank"],
    scale: float,
) -> Float[Tensor, "outputs inputs"]:
    """``W + scale * B A`` in float32."""
    return weight.float() + scale * (lora_b.float() @ lora_a.float())


def lora_layers(llm: nn.Module) -> dict[str, LoraLayer]:
    """LoRA layers by the projection's name in the plain decoder (``model.layers.0.self_attn.q_proj``)."""
    return {
        name.removeprefix("base_model.model."): module
        for name, module in llm.named_modules()
        if isinstance(module, LoraLayer)
    }


@torch.no_grad()
def folded_state_dict(
    llm: Qwen2ForCausalLM | PeftModel, *, dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """Weights of the plain decoder with the adapter folded in; the model itself is left as it is.

    Args:
        llm: The decoder, with or without LoRA.
        dtype: Type of the result; the fold is computed in float32 before it is rounded to it.
    """
    layers = lora_layers(llm)
    plain = llm.get_base_model() if isinstance(llm, PeftModel) else llm
    state = {}
    for name, weight in plain.state_dict().items():
        if ".lora_" in name:
            continue
        plain_name = name.replace(".base_layer.", ".")
        layer = layers.get(plain_name.removesuffix(".weight"))
        folded = weight
        if layer is not None and plain_name.endswith(".weight"):
            pair = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
            folded = fold_lora(weight, *pair, layer.scaling[ADAPTER])
        state[plain_name] = folded.to(dtype or weight.dtype)
    return state


@contextmanager
def adapter_disabled(llm: PeftModel) -> Iterator[None]:
    """Run the decoder without its adapter.

    peft's own switch turns ``requires_grad`` off and then on for the active adapter, whatever it was before;
    here every flag comes back as it was, also when the body raises.
    """
    assert isinstance(llm, PeftModel), "the decoder has no adapter to switch off"
    layers = list(lora_layers(llm).values())
    were_disabled = [layer.disable_adapters for layer in layers]
    flags = [(parameter, parameter.requires_grad) for parameter in llm.parameters()]
    try:
        for layer in layers:
            layer.enable_adapters(False)
        yield
    finally:
        for layer, was_disabled in zip(layers, were_disabled, strict=True):
            layer.enable_adapters(not was_disabled)
        for parameter, requires_grad in flags:
            parameter.requires_grad_(requires_grad)
