"""This module is the only place that switches on and off what is trained, and dropout."""

from dataclasses import replace
from typing import Literal

from peft import PeftModel
from torch import nn

from asrl.errors import UserError
from asrl.models.lora import ADAPTER
from asrl.models.speech_llm import SpeechLLM


def set_dropout(model: SpeechLLM, enabled: bool) -> None:
    """Switch every dropout of encoder, projector, LoRA and decoder on or off, in train mode.

    The decoder's attention dropout is a plain number in each attention module. Call again after adding an
    adapter.
    """
    for name, module in model.named_modules():
        attribute = "p" if isinstance(module, nn.Dropout) else "attention_dropout"
        if not isinstance(getattr(module, attribute, None), float):
            continue
        if enabled:
            setattr(module, attribute, model.dropout_rates.get(name, getattr(module, attribute)))
        else:
            model.dropout_rates.setdefault(name, getattr(module, attribute))
            setattr(module, attribute, 0.0)


def set_trainable(
    model: SpeechLLM, *, encoder: bool, projector: bool, decoder: Literal["lora", "full", "none"]
) -> None:
    """Choose what the optimizer sees; what is trained is float32, a frozen decoder keeps its type.

    Raises:
        UserError: LoRA is asked for and there is none, or the full decoder while there is LoRA.
    """
    has_lora = isinstance(model.llm, PeftModel)
    if decoder == "lora" and not has_lora:
        raise UserError(
            "training LoRA needs a decoder with LoRA, this one has none; use lora.start continue or merge"
        )
    if decoder == "full" and has_lora:
        raise UserError("training the full decoder needs a decoder without LoRA; use lora.start none")
    model.encoder.requires_grad_(encoder)
    model.projector.requires_grad_(projector)
    for name, parameter in model.llm.named_parameters():
        is_lora = f".{ADAPTER}." in name
        parameter.requires_grad_(decoder == "full" or (decoder == "lora" and is_lora))
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    if decoder == "full" and model.checkpoint_args is not None:
        model.checkpoint_args = replace(model.checkpoint_args, is_decoder_unchanged=False)
    model.train(model.training)
