"""This module is the only place that builds tokenizers in Qwen2's format, for models trained from nothing."""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# The stock pre-tokeniser of Qwen2; transformers builds its Qwen2 tokenizer with it whatever the file says.
_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def build_tokenizer(units: Iterable[str]) -> Tokenizer:
    """Byte-level BPE in which every unit (a character, or a word of the prompt) is exactly one token.

    The units are trained apart from each other and the first byte of a character is never the end of a merge,
    so no merge crosses two characters even where the pre-tokeniser leaves them together.
    """
    # So many tokens are never reached: training ends when every unit is one.
    return train_tokenizer(sorted(set(units)), num_tokens=100_000)


def train_tokenizer(texts: Iterable[str], *, num_tokens: int) -> Tokenizer:
    """Byte-level BPE as Qwen2 has it, with merges learned from texts, and Qwen2's special tokens.

    Args:
        texts: What merges are counted in.
        num_tokens: Size of the vocabulary without special tokens, 256 bytes included.
    """
    tokenizer = Tokenizer(models.BPE(fuse_unk=False, byte_fallback=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = BpeTrainer(
        vocab_size=num_tokens,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    return tokenizer


def _config(tokenizer: Tokenizer) -> dict[str, object]:
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    return {
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(tokenizer.token_to_id(token)): {"content": token, **flags} for token in SPECIAL_TOKENS
        },
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "bos_token": None,
        "chat_template": _CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 32768,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Write the four files of a Qwen2 tokenizer; ``<speech>`` is added at load time and not stored."""
    tokenizer.save(str(directory / "tokenizer.json"))
    tokenizer.model.save(str(directory))
    text = json.dumps(_config(tokenizer), ensure_ascii=False, indent=2)
    (directory / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
