"""This module is the only place that says what the synthesiser reads out.

Half are clauses of proverbs and quotations, half are new combinations of what the supervised scenes say.
"""

import random
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from splits import spoken_text

NUM_LETTERS = (8, 60)
_CLAUSE_END = re.compile(r"(?:[.!?:;,–]|\s-)\s")
_SLOVAK = "-sk"


def clauses(text: str) -> Iterator[str]:
    """The parts of a text between punctuation marks, as they are spoken."""
    for part in _CLAUSE_END.split(" ".join(text.split()) + " "):
        spoken = spoken_text(part)
        if spoken:
            yield spoken


def fortunes(folder: Path) -> Iterator[str]:
    """Entries of the Czech files of ``fortunes-cs``, without the lines that say who said it."""
    for path in sorted(folder.glob("*.u8")):
        if path.stem.endswith(_SLOVAK):
            continue
        for entry in path.read_text(encoding="utf-8", errors="replace").split("\n%\n"):
            yield "\n".join(line for line in entry.splitlines() if not line.strip().startswith("--"))


def choose_texts(
    quotations: Iterable[str],
    subtitles: Iterable[str],
    *,
    num_texts: int,
    forbidden: Collection[str],
    seed: int,
) -> list[str]:
    """Distinct texts of 8 to 60 letters: half of them clauses of quotations, half two clauses of subtitles.

    Args:
        quotations: Each is cut into clauses.
        subtitles: Of the training scenes.
        num_texts: Fewer come back if the quotations do not suffice.
        forbidden: Normalised texts that must not be among them: those of the held-out scenes.
        seed: Of the choice and the order.
    """
    generator = random.Random(seed)
    candidates = {clause for text in quotations for clause in clauses(text) if _has_length(clause)}
    chosen = sorted(candidates - set(forbidden))
    generator.shuffle(chosen)
    texts = dict.fromkeys(chosen[: num_texts // 2])
    spoken = sorted({clause for text in subtitles for clause in clauses(text)})
    for pair in _pairs(spoken, generator, num_pairs=10 * num_texts):
        if len(texts) == num_texts:
            break
        if _has_length(pair) and pair not in forbidden:
            texts[pair] = None
    result = list(texts)
    generator.shuffle(result)
    return result


def _has_length(text: str) -> bool:
    return NUM_LETTERS[0] <= len(text) <= NUM_LETTERS[1]


def _pairs(clauses_: Sequence[str], generator: random.Random, *, num_pairs: int) -> Iterator[str]:
    for _ in range(num_pairs):
        yield " ".join(generator.sample(clauses_, 2))
