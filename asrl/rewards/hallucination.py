"""This module is the only place that says what text a model made up: loops, endless text, unrelated text."""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from asrl.errors import UserError
from asrl.rewards.base import REWARDS, RewardFunction, check_number
from asrl.text import error_counts, text_units
from asrl.utterance import Utterance

_MAX_PERIOD = 128  # characters; bounds the time, and covers sentences that repeat
_SURPLUS_COPIES = 3  # copies beyond the reference's from which a repeat is a loop


@REWARDS.register("hallucination")
def hallucination(
    *, loop: float | int = 1.0, truncation: float | int = 1.0, length_ratio: float | int = 1.0
) -> RewardFunction:
    """Minus what looks made up; in [-1, 0], and 0 for any plausible transcript, right or wrong.

    The weighted sum of three parts in [0, 1], bounded by 1: the share of the text in loops; 1 if the text was
    cut at the token limit; how far it is from half to twice as long as the reference.

    Args:
        loop: Weight of ``loop_share``.
        truncation: Weight of being cut at the token limit.
        length_ratio: Weight of ``length_excess``.

    Raises:
        UserError: A weight is negative or not finite.
    """
    weights = {"loop": loop, "truncation": truncation, "length_ratio": length_ratio}
    for name, weight in weights.items():
        if check_number(name, weight) < 0:
            raise UserError(f"{name} must be a weight of at least 0, got {weight}; 0 switches the part off")

    def score(
        hypotheses: Sequence[str],
        utterances: Sequence[Utterance],
        *,
        is_truncated: Sequence[bool] | None = None,
    ) -> list[float | None]:
        rewards: list[float | None] = []
        truncated = [False] * len(hypotheses) if is_truncated is None else is_truncated
        for hypothesis, utterance, is_cut in zip(hypotheses, utterances, truncated, strict=True):
            penalty = loop * loop_share(hypothesis, utterance.transcript)
            penalty += length_ratio * length_excess(hypothesis, utterance.transcript)
            penalty += truncation * bool(is_cut)
            rewards.append(0.0 - min(1.0, penalty))
        return rewards

    return score


def is_hallucination(reference: str, hypothesis: str) -> bool:
    """Longer than 1.5 times the reference in characters, with fewer than a fifth of its units right."""
    counts = error_counts(reference, hypothesis)
    overlap = counts.hits / max(counts.num_reference_tokens, 1)
    return len(_characters(hypothesis)) > 1.5 * len(_characters(reference)) and overlap < 0.2


def length_excess(hypothesis: str, reference: str) -> float:
    """How many octaves the ratio of character counts is outside [1/2, 2], at most 1 (reached at 1/4 and 4).

    An empty reference counts as one character.
    """
    num_reference = max(len(_characters(reference)), 1)
    num_hypothesis = len(_characters(hypothesis))
    if num_hypothesis == 0:
        return 1.0 if _characters(reference) else 0.0
    return min(1.0, max(0.0, abs(math.log2(num_hypothesis / num_reference)) - 1))


@lru_cache(maxsize=4096)
def loop_share(hypothesis: str, reference: str) -> float:
    """Share of the hypothesis's characters that are surplus repeats, in [0, 1].

    A loop is a block of up to 128 characters of which the hypothesis has at least three copies in a row more
    than the reference has anywhere: a block that the reference lacks is one from its third copy on. As many
    copies as the reference has are not surplus. Texts are normalised and spaces ignored.

    Example:
        The reference ``你好`` has one copy. Of the four in ``你好你好你好你好吗`` three are surplus: 6 of 9
        characters.
    """
    text, allowed_text = _characters(hypothesis), _characters(reference)
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    is_surplus = np.zeros(len(codes), dtype=bool)
    is_known_loop = np.zeros(len(codes), dtype=bool)
    for start, end, period in _repeats(codes):
        if is_known_loop[start:end].all():  # a period that is a multiple of one already found
            continue
        copies = (end - start) // period
        allowed = _copies_in(allowed_text, text[start : start + period], at_most=copies)
        if copies - allowed >= _SURPLUS_COPIES:
            is_known_loop[start:end] = True
            is_surplus[start + allowed * period : end] = True
    return float(is_surplus.mean()) if len(codes) else 0.0


def _characters(text: str) -> str:
    return "".join(text_units(text))


def _repeats(codes: NDArray[np.uint32]) -> Iterator[tuple[int, int, int]]:
    """Start, end and period of every stretch that is as long as a loop must be, shortest period first."""
    for period in range(1, min(_MAX_PERIOD, len(codes) // _SURPLUS_COPIES) + 1):
        is_repeat = np.zeros(len(codes) - period + 2, dtype=np.int8)
        is_repeat[1:-1] = codes[period:] == codes[:-period]
        edges = np.diff(is_repeat)
        starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
        is_long = ends - starts >= (_SURPLUS_COPIES - 1) * period
        for start, end in zip(starts[is_long].tolist(), ends[is_long].tolist(), strict=True):
            yield start, end + period, period


@lru_cache(maxsize=4096)
def _copies_in(text: str, block: str, *, at_most: int) -> int:
    """Most copies in a row that the text has of the block, wherever in the block they start."""
    rotations = {block[shift:] + block[:shift] for shift in range(len(block))}
    low, high = 0, min(at_most, len(text) // len(block))
    while low < high:  # bisection: a text with k copies has k - 1
        middle = (low + high + 1) // 2
        if any(rotation * middle in text for rotation in rotations):
            low = middle
        else:
            high = middle - 1
    return low
