"""This module is the only place that turns a FireRedASR-LLM directory into a model, and a model into one."""

import argparse
import os
import shutil
from pathlib import Path

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import Qwen2ForCausalLM

from asrl.errors import UserError
from asrl.models.conformer import ConformerEncoder
from asrl.models.lora import attach_lora, folded_state_dict
from asrl.models.projector import Projector
from asrl.models.prompt import build_prompt, load_tokenizer
from asrl.models.released_decoder import check_decoder, load_decoder
from asrl.models.released_files import (
    CMVN_FILE,
    CONFIG_FILE,
    ENCODER_FILE,
    MODEL_FILE,
    CheckpointArgs,
    check_files,
    check_shapes,
    copy_decoder,
    read_field,
    read_package,
    write_decoder,
    write_package,
)
from asrl.models.released_lora import (
    LORA_PREFIX,
    RELEASED_ALPHA,
    RELEASED_RANK,
    copy_released,
    export_lora,
    fold_released,
    released_shapes,
)
from asrl.models.speech_llm import SpeechLLM
from asrl.models.trainable import set_trainable

ENCODER_PREFIX = "encoder."
PROJECTOR_PREFIX = "encoder_projector."
POSITIONAL_TABLE = "encoder.positional_encoding.pe"


def _read_count(args: argparse.Namespace, name: str, path: Path) -> int:
    value = read_field(args, name, path)
    if not value >= 1 or value % 1:
        raise UserError(f"{path}: args.{name} must be a whole number above 0, got {value}")
    return int(value)


def _read_rate(args: argparse.Namespace, name: str, path: Path) -> float:
    value = read_field(args, name, path)
    if not 0 <= value <= 1:
        raise UserError(f"{path}: args.{name} must be from 0 to 1, got {value}")
    return float(value)


def _build_encoder(args: argparse.Namespace, path: Path, length_rule: str) -> ConformerEncoder:
    def number(name: str) -> int:
        return _read_count(args, name, path)

    return ConformerEncoder(
        idim=number("idim"),
        num_layers=number("n_layers_enc"),
        num_heads=number("n_head"),
        d_model=number("d_model"),
        kernel_size=number("kernel_size"),
        residual_dropout=_read_rate(args, "residual_dropout", path),
        dropout_rate=_read_rate(args, "dropout_rate", path),
        length_rule=length_rule,
    )


def _shapes(state: dict[str, Tensor], prefix: str = "") -> dict[str, list[int]]:
    return {prefix + name: list(tensor.shape) for name, tensor in state.items()}


def _expected_shapes(encoder: nn.Module, projector: nn.Module, llm: nn.Module) -> dict[str, list[int]]:
    """Everything that model.pth.tar may hold, in the released order."""
    return {
        **_shapes(encoder.state_dict(), ENCODER_PREFIX),
        **released_shapes(llm),
        **_shapes(projector.state_dict(), PROJECTOR_PREFIX),
    }


def _read_state(path: Path, expected: dict[str, list[int]]) -> tuple[argparse.Namespace, dict[str, Tensor]]:
    """Read model.pth.tar; the LoRA tensors may be absent together, the positional table by itself."""
    package = read_package(path)
    state = package.get("model_state_dict")
    if not isinstance(state, dict) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise UserError(f"{path}: must hold tensors by name under 'model_state_dict'; use a released file")
    optional = [POSITIONAL_TABLE]
    if not any(name.startswith(LORA_PREFIX) for name in state):
        optional += [name for name in expected if name.startswith(LORA_PREFIX)]
    check_shapes(_shapes(state), expected, optional=optional, place=path)
    return package["args"], state


def _part(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def _check_options(lora_start: str, lora_rank: int, train_decoder: bool) -> None:
    if lora_start not in ("continue", "merge", "none"):
        raise UserError(f"lora.start is continue, merge or none, got {lora_start!r}")
    if lora_start == "merge" and lora_rank < 1:
        raise UserError(f"lora.rank must be at least 1, got {lora_rank}; for no LoRA use lora.start none")
    if train_decoder and lora_start != "none":
        raise UserError(f"training the whole decoder needs lora.start none, got {lora_start!r}")


def _start_lora(
    llm: Qwen2ForCausalLM,
    state: dict[str, Tensor],
    lora_start: str,
    *,
    rank: int,
    alpha: int | float,
    dropout: float,
) -> Qwen2ForCausalLM | PeftModel:
    """Attach the adapter to train on; the checkpoint's own goes into that or into the weights."""
    if lora_start == "continue":
        wrapped = attach_lora(llm, rank=RELEASED_RANK, alpha=RELEASED_ALPHA, dropout=dropout)
        copy_released(wrapped, state)
        return wrapped
    fold_released(llm, state)
    return llm if lora_start == "none" else attach_lora(llm, rank=rank, alpha=alpha, dropout=dropout)


def load_firered(
    directory: str | Path,
    *,
    lora_start: str = "merge",
    lora_rank: int = RELEASED_RANK,
    lora_alpha: int | float = RELEASED_ALPHA,
    lora_dropout: float = 0.05,
    length_rule: str = "stride",
    decoder_dtype: torch.dtype = torch.float32,
    train_decoder: bool = False,
) -> SpeechLLM:
    """Load a released (or exported) FireRedASR-LLM directory, on the CPU, in eval mode.

    Encoder and projector are float32 and trainable, and so is LoRA.

    Args:
        directory: See ``released_files`` for the layout.
        lora_start: ``continue`` trains the checkpoint's own LoRA on; ``merge`` folds it into the decoder and
            starts a fresh one; ``none`` folds it and goes without.
        lora_rank: Of a fresh LoRA.
        lora_alpha: Of a fresh LoRA; its scale is alpha / rank.
        lora_dropout: In training, of either LoRA.
        length_rule: ``stride`` is what the released weights were trained with.
        decoder_dtype: Of the frozen decoder. float16 overflows.
        train_decoder: Train every weight of the decoder, in float32; needs ``lora_start`` none.

    Raises:
        UserError: A file is missing or damaged, or its keys and shapes are not the model's.
    """
    _check_options(lora_start, lora_rank, train_decoder)
    directory = Path(directory)
    decoder_folder = check_files(directory)
    encoder_path, model_path = directory / ENCODER_FILE, directory / MODEL_FILE
    encoder_args = read_package(encoder_path)["args"]
    downsample = _read_count(read_package(model_path)["args"], "encoder_downsample_rate", model_path)
    check_decoder(decoder_folder)
    prompt = build_prompt(load_tokenizer(decoder_folder))
    llm = load_decoder(decoder_folder, torch.float32 if train_decoder else decoder_dtype)
    encoder = _build_encoder(encoder_args, encoder_path, length_rule)
    projector = Projector(int(encoder_args.d_model), llm.config.hidden_size, downsample)
    model_args, state = _read_state(model_path, _expected_shapes(encoder, projector, llm))
    has_lora = any(name.startswith(LORA_PREFIX) for name in state)
    if lora_start == "continue" and not has_lora:
        raise UserError(f"{model_path}: no LoRA to train on (lora.start continue); use lora.start merge")
    encoder.load_state_dict(encoder.state_dict() | _part(state, ENCODER_PREFIX))
    projector.load_state_dict(_part(state, PROJECTOR_PREFIX))
    llm = _start_lora(llm, state, lora_start, rank=lora_rank, alpha=lora_alpha, dropout=lora_dropout)
    model = SpeechLLM(encoder, projector, llm, prompt)
    model.checkpoint_args = CheckpointArgs(
        directory=directory,
        decoder=decoder_folder,
        encoder=encoder_args,
        model=model_args,
        is_decoder_unchanged=lora_start == "continue" or not has_lora,
    )
    trained_part = "full" if train_decoder else "none" if lora_start == "none" else "lora"
    set_trainable(model, encoder=True, projector=True, decoder=trained_part)
    return model.eval()


def _model_state(model: SpeechLLM, *, merge_lora: bool, with_positional_table: bool) -> dict[str, Tensor]:
    """Weights for model.pth.tar, in the released order."""
    lora = export_lora(model.llm) if isinstance(model.llm, PeftModel) and not merge_lora else {}
    state = {
        **{ENCODER_PREFIX + name: tensor for name, tensor in model.encoder.state_dict().items()},
        **lora,
        **{PROJECTOR_PREFIX + name: tensor for name, tensor in model.projector.state_dict().items()},
    }
    if not with_positional_table:
        del state[POSITIONAL_TABLE]
    return {name: tensor.detach().float().cpu().contiguous() for name, tensor in state.items()}


def _write_decoder(model: SpeechLLM, folder: Path, *, merge_lora: bool, dtype: torch.dtype | None) -> None:
    source = model.checkpoint_args.decoder
    if not merge_lora:
        copy_decoder(source, folder)
        return
    state = folded_state_dict(model.llm, dtype=dtype)
    if model.causal_lm.config.tie_word_embeddings:
        del state["lm_head.weight"]
    write_decoder(source, folder, state)


def _check_export(model: SpeechLLM, directory: Path, *, merge_lora: bool, link_decoder: bool) -> None:
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UserError(f"{directory}: already exists; export to a new directory")
    if merge_lora and link_decoder:
        raise UserError(
            "a merged export writes a decoder of its own, it cannot link one; leave link_decoder off"
        )
    if not merge_lora and not model.checkpoint_args.is_decoder_unchanged:
        raise UserError(
            "an unmerged export needs the decoder weights of the checkpoint that was loaded, but they were "
            "changed (by folding its LoRA, lora.start merge or none, or by training); export merged"
        )
    check_files(model.checkpoint_args.directory)


def save_firered(
    model: SpeechLLM,
    directory: str | Path,
    *,
    merge_lora: bool,
    with_positional_table: bool = True,
    link_decoder: bool = False,
    decoder_dtype: torch.dtype | None = None,
) -> None:
    """Export a model as a directory that upstream FireRedASR reads; it appears complete or not at all.

    Args:
        model: Loaded by ``load_firered``; it is left as it is.
        directory: Must not exist, or be empty.
        merge_lora: Fold LoRA into new decoder weights; otherwise write it at the released rank and scale,
            beside the decoder of the source, on which it must have been trained.
        with_positional_table: Upstream rebuilds the table if it is absent; released files hold it.
        link_decoder: Link the source's Qwen2 folder instead of copying it; unmerged only.
        decoder_dtype: Of merged decoder weights; None keeps the type in memory. bfloat16 rounds the fold.

    Raises:
        UserError: The directory is in use, the source is gone, or the options do not fit the model.
    """
    directory, origin = Path(directory).absolute(), model.checkpoint_args
    _check_export(model, directory, merge_lora=merge_lora, link_decoder=link_decoder)
    state = _model_state(model, merge_lora=merge_lora, with_positional_table=with_positional_table)
    has_lora = any(name.startswith(LORA_PREFIX) for name in state)
    args = argparse.Namespace(**{**vars(origin.model), "use_lora": int(has_lora)})
    partial = directory.with_name(f".{directory.name}.partial-{os.getpid()}")
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"{directory}: cannot be created ({error.strerror}); export elsewhere") from error
    try:
        write_package(partial / ENCODER_FILE, origin.encoder)
        write_package(partial / MODEL_FILE, args, state)
        shutil.copyfile(origin.directory / CMVN_FILE, partial / CMVN_FILE)
        (partial / CONFIG_FILE).touch()
        folder = partial / origin.decoder.name
        if link_decoder:
            folder.symlink_to(origin.decoder.resolve(), target_is_directory=True)
        else:
            _write_decoder(model, folder, merge_lora=merge_lora, dtype=decoder_dtype)
        _read_state(partial / MODEL_FILE, _expected_shapes(model.encoder, model.projector, model.causal_lm))
        check_decoder(folder)
        partial.replace(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
