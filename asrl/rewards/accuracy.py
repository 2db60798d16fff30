"""This module is the only place that turns an error rate into a reward."""

import math
from collections.abc import Callable, Sequence

from asrl.errors import UserError
from asrl.rewards.base import REWARDS, RewardFunction, check_choice, check_number
from asrl.text import ErrorCounts, character_error_counts, error_counts, text_units
from asrl.utterance import Utterance

_UNITS: dict[str, Callable[[str, str], ErrorCounts]] = {
    "mixed": error_counts,
    "character": character_error_counts,
}
_SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda rate: 1 - rate,
    "exp": lambda rate: math.exp(-2 * rate),
}


@REWARDS.register("accuracy")
def accuracy(
    *, floor: float | int | None = -1.0, shape: str = "linear", unit: str = "mixed"
) -> RewardFunction:
    """One minus the error rate, or a shape of it; in [floor, 1].

    An empty reference has no rate: 1 if the hypothesis is empty too, else -min(1, characters / 10).

    Args:
        floor: Lower bound; None leaves it unbounded, and one endless hypothesis then flattens its group.
        shape: ``linear``: 1 - rate. ``exp``: exp(-2 rate), in (0, 1], which orders hypotheses beyond rate 2.
        unit: What errors are counted in. ``mixed``: each Han or kana character, each other word.
            ``character``: each character and space, which tells nearly right words from wrong ones.

    Raises:
        UserError: The floor is not below 1, or the shape or the unit is unknown.
    """
    count = check_choice("unit", unit, _UNITS)
    reward_of_rate = check_choice("shape", shape, _SHAPES)
    bound = -math.inf if floor is None else check_number("floor", floor)
    if bound >= 1:
        raise UserError(f"floor must be below 1, the best reward, got {floor}; null removes the bound")

    def score_one(hypothesis: str, transcript: str) -> float:
        if text_units(transcript):
            return reward_of_rate(count(transcript, hypothesis).rate)
        num_characters = sum(map(len, text_units(hypothesis)))
        return -min(1.0, num_characters / 10) if num_characters else 1.0

    def score(hypotheses: Sequence[str], utterances: Sequence[Utterance]) -> list[float | None]:
        rows = zip(hypotheses, utterances, strict=True)
        return [max(bound, score_one(hypothesis, row.transcript)) for hypothesis, row in rows]

    return score
