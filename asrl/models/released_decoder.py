"""This module is the only place that opens the Qwen2 folder of a FireRedASR-LLM directory."""

import json
from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled

from asrl.errors import UserError
from asrl.models.released_files import check_shapes, read_decoder_shapes

# What transformers raises at sizes that it cannot build.
UNBUILDABLE = (StrictDataclassError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)


def check_decoder(folder: Path) -> None:
    """Check config, keys and shapes of a Qwen2 folder.

    Raises:
        UserError: A file is damaged, or they do not fit each other.
    """
    config_path = folder / "config.json"
    try:
        config = json.loads(config_path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{config_path}: not valid JSON; copy the Qwen2 folder again") from error
    model_type = config.get("model_type") if isinstance(config, dict) else None
    if model_type != "qwen2":
        raise UserError(f"{config_path}: model_type must be 'qwen2', got {model_type!r}; use a Qwen2 folder")
    try:
        with torch.device("meta"):
            skeleton = Qwen2ForCausalLM(Qwen2Config.from_pretrained(folder))
    except UNBUILDABLE as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{config_path}: describes no Qwen2 ({reason}); copy the Qwen2 folder again"
        ) from error
    needed = {name: list(tensor.shape) for name, tensor in skeleton.state_dict().items()}
    optional = ["lm_head.weight"] if skeleton.config.tie_word_embeddings else []
    check_shapes(read_decoder_shapes(folder), needed, optional=optional, place=folder)


def load_decoder(folder: Path, dtype: torch.dtype) -> Qwen2ForCausalLM:
    """Load the decoder of a folder that was checked."""
    had_bar = is_progress_bar_enabled()
    disable_progress_bar()  # one bar for every process, finished at once
    try:
        return Qwen2ForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="sdpa", local_files_only=True, use_safetensors=True
        )
    finally:
        if had_bar:
            enable_progress_bar()
