"""This module is the only place that knows the prompt around the speech and how text becomes tokens."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import AddedToken, AutoTokenizer, PreTrainedTokenizerBase

from asrl.errors import UserError

SPEECH_TOKEN = "<speech>"
PAD_TOKEN = "<|endoftext|>"
START_TOKEN = "<|im_start|>"
END_TOKEN = "<|im_end|>"
PREFIX = f"{START_TOKEN}user\n"
SUFFIX = f"请转写音频为文字{END_TOKEN}\n{START_TOKEN}assistant\n"

_DELETED = str.maketrans("", "", "，。？！,.!?《》（）·“”、/")
_HAN = re.compile("([\u3400-\u4dbf\u4e00-\u9fff])")


def clean_text(text: str) -> str:
    """Clean a manifest transcript the way the released model's training text was cleaned.

    Deletes common punctuation (every "." too: "3.5" becomes "35"), collapses whitespace, removes it between
    Han characters, lower-cases. Source: FireRedTeam/FireRedASR at commit 834635e.
    """
    text = re.sub(r"\s+", " ", text.translate(_DELETED)).strip()
    pieces = [piece for piece in _HAN.split(text) if piece.strip()]
    return "".join(piece.strip() if _HAN.match(piece) else piece for piece in pieces).strip().lower()


def load_tokenizer(directory: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a Qwen2 folder and add ``<speech>``, which released folders do not contain.

    Raises:
        UserError: The folder holds no tokenizer, or one without Qwen2's chat tokens.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"{directory}: no usable tokenizer ({reason}); copy the Qwen2 folder again"
        ) from error
    # transformers makes an empty tokenizer of a folder that has none.
    unknown = [token for token in (PAD_TOKEN, START_TOKEN, END_TOKEN) if token not in tokenizer.get_vocab()]
    if unknown:
        raise UserError(
            f"{directory}: no usable tokenizer (it lacks {', '.join(unknown)}); copy the Qwen2 folder again"
        )
    tokenizer.add_tokens([AddedToken(SPEECH_TOKEN, special=True, normalized=False)], special_tokens=True)
    return tokenizer


@dataclass(frozen=True)
class PromptTemplate:
    """Token ids around the speech embeddings, and the tokenizer that made them.

    Attributes:
        prefix_ids: Before the speech.
        suffix_ids: After the speech; the completion follows.
        end_id: Ends a completion.
        pad_id: Fills unused positions; never part of a completion.
        tokenizer: With ``<speech>`` added.
    """

    prefix_ids: tuple[int, ...]
    suffix_ids: tuple[int, ...]
    end_id: int
    pad_id: int
    tokenizer: PreTrainedTokenizerBase

    def encode_transcript(self, text: str) -> list[int]:
        """Turn text into completion tokens, the end token included.

        The text is taken as it is (see ``clean_text``); a special token spelled out in it stays plain text.
        """
        tokens = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return [*tokens, self.end_id]

    def decode(self, tokens: Sequence[int]) -> str:
        """Turn completion tokens into text; special tokens and ids beyond the vocabulary leave nothing."""
        return self.tokenizer.decode(
            list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )


def build_prompt(tokenizer: PreTrainedTokenizerBase) -> PromptTemplate:
    """Tokenise the fixed prompt; released models were trained with this one and follow no other."""
    return PromptTemplate(
        prefix_ids=tuple(tokenizer(PREFIX, add_special_tokens=False)["input_ids"]),
        suffix_ids=tuple(tokenizer(SUFFIX, add_special_tokens=False)["input_ids"]),
        end_id=tokenizer.convert_tokens_to_ids(END_TOKEN),
        pad_id=tokenizer.convert_tokens_to_ids(PAD_TOKEN),
        tokenizer=tokenizer,
    )
