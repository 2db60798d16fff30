"""Write a tiny FireRedASR-LLM directory with random weights, in the layout of the released checkpoint.

Example:
    python scripts/demo/init_model.py --corpus build/demo-corpus --output build/demo-init
"""

import argparse
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grammar
import torch
from safetensors.torch import save_file
from tokenizer import SPECIAL_TOKENS, build_tokenizer, save_tokenizer
from tokenizers import Tokenizer
from transformers import Qwen2Config, Qwen2ForCausalLM

from asrl.data.features import read_cmvn
from asrl.errors import UserError
from asrl.models.conformer import ConformerEncoder
from asrl.models.projector import Projector
from asrl.models.prompt import SUFFIX

# Upstream looks for the decoder under this name.
DECODER_FOLDER = "Qwen2-7B-Instruct"
ENCODER_ARGUMENTS = {
    "idim": 80,
    "n_layers_enc": 3,
    "n_head": 4,
    "d_model": 96,
    "d_inner": 384,
    "kernel_size": 15,
    "residual_dropout": 0.1,
    "dropout_rate": 0.1,
    "pe_maxlen": 5000,
    # Upstream builds an attention decoder from these and throws it away; without them it fails.
    "n_layers_dec": 1,
    "odim": 32,
    "sos_id": 3,
    "eos_id": 4,
    "pad_id": 2,
}
MODEL_ARGUMENTS = {
    "input_length_max": 30.0,
    "input_length_min": 0.1,
    "output_length_max": 150,
    "output_length_min": 1,
    "freeze_encoder": 0,
    "encoder_downsample_rate": 2,
    "freeze_llm": 0,
    "use_flash_attn": 0,
    "use_lora": 1,
    "unk": "<unk>",
    "use_fp16": 0,
}


def decoder_settings(tokenizer: Tokenizer) -> dict[str, object]:
    """Content of the decoder's ``config.json``, in the wording that every transformers since 4.37 reads."""
    # One more id than the files hold: <speech> is added when the tokenizer is loaded.
    num_tokens = tokenizer.get_vocab_size() + 1
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": tokenizer.token_to_id("<|endoftext|>"),
        "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
        "hidden_act": "silu",
        "hidden_size": 128,
        "initializer_range": 0.02,
        "intermediate_size": 384,
        "max_position_embeddings": 2048,
        "max_window_layers": 2,
        "model_type": "qwen2",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": -(-num_tokens // 8) * 8,
    }


def generation_settings(tokenizer: Tokenizer) -> dict[str, object]:
    """Content of ``generation_config.json``, with the sampling options that Qwen2 ships."""
    pad, _, end = map(tokenizer.token_to_id, SPECIAL_TOKENS)
    return {
        "bos_token_id": pad,
        "pad_token_id": pad,
        "eos_token_id": [end, pad],
        "do_sample": True,
        "repetition_penalty": 1.05,
        "temperature": 0.7,
        "top_p": 0.8,
        "top_k": 20,
    }


def write_json(path: Path, content: dict[str, object]) -> None:
    """Write settings the way Hugging Face folders hold them."""
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def write_decoder(directory: Path, tokenizer: Tokenizer) -> int:
    """Write a Qwen2 folder with random weights; returns the number of parameters."""
    directory.mkdir(parents=True, exist_ok=True)
    save_tokenizer(tokenizer, directory)
    settings = decoder_settings(tokenizer)
    write_json(directory / "config.json", settings)
    write_json(directory / "generation_config.json", generation_settings(tokenizer))
    decoder = Qwen2ForCausalLM(Qwen2Config.from_dict(settings))
    # The output layer is the embedding table: files of tied models leave it out.
    weights = {name: tensor for name, tensor in decoder.state_dict().items() if name != "lm_head.weight"}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return sum(tensor.numel() for tensor in weights.values())


def write_speech(directory: Path, shape: Mapping[str, Any] = ENCODER_ARGUMENTS) -> int:
    """Write both ``.pth.tar`` files with a random encoder and projector; returns the number of parameters.

    No ``llm.`` key: an absent adapter counts as one whose output is zero. The positional table is left out,
    every loader computes it.
    """
    encoder = ConformerEncoder(
        idim=shape["idim"],
        num_layers=shape["n_layers_enc"],
        num_heads=shape["n_head"],
        d_model=shape["d_model"],
        kernel_size=shape["kernel_size"],
        residual_dropout=shape["residual_dropout"],
        dropout_rate=shape["dropout_rate"],
    )
    decoder = json.loads((directory / DECODER_FOLDER / "config.json").read_text(encoding="utf-8"))
    projector = Projector(
        shape["d_model"], decoder["hidden_size"], MODEL_ARGUMENTS["encoder_downsample_rate"]
    )
    weights = {f"encoder.{name}": parameter.data for name, parameter in encoder.named_parameters()}
    weights |= {
        f"encoder_projector.{name}": parameter.data for name, parameter in projector.named_parameters()
    }
    torch.save({"args": argparse.Namespace(**shape)}, directory / "asr_encoder.pth.tar")
    package = {"args": argparse.Namespace(**MODEL_ARGUMENTS), "model_state_dict": weights}
    torch.save(package, directory / "model.pth.tar")
    return sum(tensor.numel() for tensor in weights.values())


def write_model(
    directory: Path,
    tokenizer: Tokenizer,
    statistics: Path,
    *,
    encoder: Mapping[str, Any] = ENCODER_ARGUMENTS,
) -> None:
    """Write every file of a checkpoint directory; ``statistics`` is the ``cmvn.ark`` that it gets."""
    read_cmvn(statistics)
    directory.mkdir(parents=True, exist_ok=True)
    decoder_size = write_decoder(directory / DECODER_FOLDER, tokenizer)
    speech_size = write_speech(directory, encoder)
    shutil.copyfile(statistics, directory / "cmvn.ark")
    (directory / "config.yaml").touch()
    print(f"{directory}: {speech_size:,} parameters before the decoder, {decoder_size:,} in it")


def parse_arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description="Write the demo's checkpoint directory with random weights.")
    parser.add_argument("--corpus", type=Path, required=True, help="folder that build_corpus.py wrote")
    parser.add_argument("--output", type=Path, required=True, help="checkpoint directory to write")
    parser.add_argument("--seed", type=int, default=0, help="seeds the weights")
    return parser.parse_args()


def main() -> None:
    """Write the demo's model."""
    arguments = parse_arguments()
    torch.manual_seed(arguments.seed)
    prompt = SUFFIX.partition("<")[0]
    tokenizer = build_tokenizer([*grammar.characters(), *prompt, "user", "assistant"])
    write_model(arguments.output, tokenizer, arguments.corpus / "cmvn.ark")


if __name__ == "__main__":
    try:
        main()
    except (UserError, OSError) as error:
        sys.exit(f"init_model: {error}")
