"""This module is the only place that says when two transcripts are the same text and how far apart they are.

Rewards, evaluation and reports all go through it, and it needs no torch.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import jiwer

# Characters that are a unit of their own: Han (with all of the ideographic planes 2 and 3, so that extensions
# newer than this Python's Unicode count too), kana, and the stand-in for text that could not be decoded.
_SINGLE = (
    "\u3005-\u3007\u3021-\u3029\u3038-\u303b\u3040-\u3098\u309b-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U0001aff0-\U0001b16f\U00020000-\U0003ffff\ufffd"
)
_IS_SINGLE = re.compile(f"[{_SINGLE}]")
# Of what the character table lets through, only combining marks are none of these.
_MARK = rf"[^\w\s'.{_SINGLE}]"
_ORPHAN_MARKS = re.compile(rf"(?:^|(?<=[\s'.])){_MARK}+")
_APOSTROPHE_OUTSIDE_WORD = rf"(?<![^\s'.{_SINGLE}])'|'(?![^\s'.{_SINGLE}])"
_POINT_OUTSIDE_NUMBER = r"(?<!\d)\.|\.(?!\d)"
_OUTSIDE_WORD = re.compile(f"{_APOSTROPHE_OUTSIDE_WORD}|{_POINT_OUTSIDE_NUMBER}")
_SPACE_BETWEEN_SINGLES = re.compile(f"(?<=[{_SINGLE}]) (?=[{_SINGLE}])")
_UNITS = re.compile(rf"[{_SINGLE}]{_MARK}*|[^\s{_SINGLE}]+")
# Marks that are never seen nor heard: variation selectors and the grapheme joiner.
_INVISIBLE_MARKS = {0x034F, *range(0x180B, 0x180E), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)}


class _CharacterTable(dict[int, str]):
    """What becomes of each character, for ``str.translate``; filled as characters are met."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        category = unicodedata.category(character)
        if category == "Cf" or code in _INVISIBLE_MARKS:
            replacement = ""
        elif category[0] in "PSZ" or category == "Cc":
            replacement = " "
        elif category[0] == "C" and not _IS_SINGLE.match(character):
            replacement = "\ufffd"
        else:
            replacement = character
        self[code] = replacement
        return replacement


_TABLE = _CharacterTable({ord(apostrophe): "'" for apostrophe in "'’‘ʼ"} | {ord("."): ".", 0xFFFD: "\ufffd"})


def normalize_text(text: str) -> str:
    """The form in which texts are compared; normalising it again changes nothing.

    - NFKC and lower case: full-width letters, ligatures and half-width kana lose their form, accents stay.
    - Punctuation and symbols become a space, with two exceptions: an apostrophe between two letters or digits
      stays (``don't``, typographic or not, so that ``we'll`` is not ``well``), and so does a point between
      two digits (``3.5`` is not 35). A comma between digits is a space: it may be a decimal sign, a thousands
      separator or a list.
    - Spaces between Han characters or kana are removed, other white space becomes one space.
    - Invisible characters (joiners, variation selectors, marks without a letter) are removed.
    - Surrogates, private and unassigned characters become U+FFFD, which stays: bytes that a tokenizer could
      not decode are an error of the hypothesis, not punctuation.
    """
    text = unicodedata.normalize("NFKC", text).lower()
    # Once more: lower case and removed joiners can leave a letter beside an accent that composes with it.
    text = unicodedata.normalize("NFKC", text.translate(_TABLE))
    text = _OUTSIDE_WORD.sub(" ", _ORPHAN_MARKS.sub("", text))
    return _SPACE_BETWEEN_SINGLES.sub("", " ".join(text.split()))


def tokenize(text: str) -> list[str]:
    """The units of a normalised text that error rates count: each Han or kana character, each other word.

    Example:
        ``tokenize("打开wifi 3.5次")`` is ``["打", "开", "wifi", "3.5", "次"]``.
    """
    return _UNITS.findall(text)


@lru_cache(maxsize=4096)
def text_units(text: str) -> tuple[str, ...]:
    """The units of a text that is not normalised yet, remembered: every reward asks for the same ones."""
    return tuple(tokenize(normalize_text(text)))


@dataclass(frozen=True)
class ErrorCounts:
    """An alignment of hypothesis and reference with the fewest errors, counted in units.

    Counts add up to those of a corpus: ``sum(counts, ErrorCounts(0, 0, 0, 0))``.
    """

    hits: int
    substitutions: int
    deletions: int
    insertions: int

    @property
    def errors(self) -> int:
        """Substitutions, deletions and insertions together."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def num_reference_tokens(self) -> int:
        """Units of the reference."""
        return self.hits + self.substitutions + self.deletions

    @property
    def rate(self) -> float:
        """Errors per unit of the reference, above 1 with many insertions; an empty one counts as one unit."""
        return self.errors / max(self.num_reference_tokens, 1)

    def __add__(self, other: "ErrorCounts") -> "ErrorCounts":
        return ErrorCounts(
            hits=self.hits + other.hits,
            substitutions=self.substitutions + other.substitutions,
            deletions=self.deletions + other.deletions,
            insertions=self.insertions + other.insertions,
        )


@lru_cache(maxsize=4096)
def error_counts(reference: str, hypothesis: str) -> ErrorCounts:
    """Hits and errors of a hypothesis, both texts normalised; their rate is the mixed error rate.

    Remembered: most transcripts drawn for an utterance are equal, and several rewards count the same ones.
    """
    return _counts(jiwer.process_words(" ".join(text_units(reference)), " ".join(text_units(hypothesis))))


@lru_cache(maxsize=4096)
def character_error_counts(reference: str, hypothesis: str) -> ErrorCounts:
    """Hits and errors in characters, a space between two words being one; both texts normalised.

    Their rate is the character error rate of languages that are written in words, for which the rate of
    ``error_counts`` is the word error rate.
    """
    return _counts(jiwer.process_characters(normalize_text(reference), normalize_text(hypothesis)))


def _counts(aligned: jiwer.WordOutput | jiwer.CharacterOutput) -> ErrorCounts:
    return ErrorCounts(
        hits=aligned.hits,
        substitutions=aligned.substitutions,
        deletions=aligned.deletions,
        insertions=aligned.insertions,
    )


def error_counts_batch(references: Sequence[str], hypotheses: Sequence[str]) -> list[ErrorCounts]:
    """``error_counts`` of every pair.

    Raises:
        ValueError: There are not as many hypotheses as references.
    """
    return [error_counts(*pair) for pair in zip(references, hypotheses, strict=True)]
