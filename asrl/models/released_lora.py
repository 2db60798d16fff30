"""This module is the only place that knows how released checkpoints name, shape and scale their LoRA."""

from pathlib import Path

import torch
import torch.nn.functional as F
from peft import PeftModel
from torch import Tensor, nn
from transformers import Qwen2ForCausalLM

from asrl.errors import UserError
from asrl.models.lora import ADAPTER, LORA_TARGETS, fold_lora, lora_layers
from asrl.models.released_files import read_package

RELEASED_RANK = 64  # upstream can read no other
RELEASED_ALPHA = 16
RELEASED_SCALE = RELEASED_ALPHA / RELEASED_RANK
LORA_PREFIX = "llm."


def _keys(projection: str) -> tuple[str, str]:
    stem = f"{LORA_PREFIX}base_model.model.{projection}"
    return f"{stem}.lora_A.{ADAPTER}.weight", f"{stem}.lora_B.{ADAPTER}.weight"


def released_shapes(llm: nn.Module) -> dict[str, list[int]]:
    """Keys and shapes of the released LoRA for a plain decoder."""
    shapes = {}
    for name, module in llm.named_modules():
        if name.split(".")[-1] in LORA_TARGETS:
            key_a, key_b = _keys(name)
            shapes[key_a] = [RELEASED_RANK, module.in_features]
            shapes[key_b] = [module.out_features, RELEASED_RANK]
    return shapes


def has_released_lora(path: Path) -> bool:
    """Whether a model.pth.tar holds LoRA; a merged one does not.

    Raises:
        UserError: As ``read_package``.
    """
    state = read_package(path).get("model_state_dict")
    return isinstance(state, dict) and any(str(name).startswith(LORA_PREFIX) for name in state)


@torch.no_grad()
def fold_released(llm: Qwen2ForCausalLM, state: dict[str, Tensor]) -> None:
    """Add the LoRA of a checkpoint, if it has one, to the decoder's weights in place."""
    for name, module in llm.named_modules():
        key_a, key_b = _keys(name)
        if key_a in state:
            module.weight.copy_(fold_lora(module.weight, state[key_a], state[key_b], RELEASED_SCALE))


@torch.no_grad()
def copy_released(llm: PeftModel, state: dict[str, Tensor]) -> None:
    """Put the LoRA of a checkpoint into the decoder's adapter."""
    for name, layer in lora_layers(llm).items():
        key_a, key_b = _keys(name)
        layer.lora_A[ADAPTER].weight.copy_(state[key_a])
        layer.lora_B[ADAPTER].weight.copy_(state[key_b])


def export_lora(llm: PeftModel) -> dict[str, Tensor]:
    """Write the adapter at the released rank and scale: zeros fill A and B, and B takes up the other scale.

    Raises:
        UserError: The adapter's rank exceeds the released one.
    """
    state = {}
    for name, layer in lora_layers(llm).items():
        lora_a, lora_b = layer.lora_A[ADAPTER].weight.detach(), layer.lora_B[ADAPTER].weight.detach()
        num_missing = RELEASED_RANK - len(lora_a)
        if num_missing < 0:
            raise UserError(
                f"an unmerged export holds LoRA of rank {RELEASED_RANK} at most, got {len(lora_a)}; "
                "export merged"
            )
        key_a, key_b = _keys(name)
        state[key_a] = F.pad(lora_a.float(), (0, 0, 0, num_missing))
        state[key_b] = F.pad(lora_b.float() * (layer.scaling[ADAPTER] / RELEASED_SCALE), (0, num_missing))
    return state
