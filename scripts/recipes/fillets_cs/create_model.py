"""Train a tokenizer on the Czech training text and write a small random model around it.

Example:
    python scripts/recipes/fillets_cs/create_model.py --corpus build/fillets_cs --output build/fillets_cs/init
"""

import argparse
from collections.abc import Iterable
from pathlib import Path

import torch
from init_model import ENCODER_ARGUMENTS, write_model
from tokenizer import train_tokenizer
from tokenizers import Tokenizer

from asrl.data.manifest import read_manifest
from asrl.errors import exit_with_one_line
from asrl.models.prompt import PREFIX, SUFFIX, clean_text

ENCODER = ENCODER_ARGUMENTS | {"d_model": 128, "d_inner": 512}
NUM_TOKENS = 640


def build_czech_tokenizer(texts: Iterable[str], *, num_tokens: int = NUM_TOKENS) -> Tokenizer:
    """Pieces of Czech words, whatever the bytes of their letters.

    The prompt, which precedes every utterance and is written in Chinese and English, is repeated until its
    words are frequent enough to become one token each.
    """
    texts = [clean_text(text) for text in texts]
    return train_tokenizer([*texts, *[PREFIX + SUFFIX] * len(texts)], num_tokens=num_tokens)


def main() -> None:
    """Write the checkpoint directory."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, required=True, help="folder that speak_corpus.py wrote")
    parser.add_argument("--output", type=Path, required=True, help="checkpoint directory to write")
    parser.add_argument("--seed", type=int, default=0, help="of the weights")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    utterances = read_manifest(options.corpus / "pretrain.jsonl", check_audio=False)
    tokenizer = build_czech_tokenizer(utterance.transcript for utterance in utterances)
    write_model(options.output, tokenizer, options.corpus / "cmvn.ark", encoder=ENCODER)


if __name__ == "__main__":
    exit_with_one_line(main)
