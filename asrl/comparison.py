"""This module is the only place that compares two transcriptions of the same set."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from asrl.bootstrap import paired_bootstrap
from asrl.errors import UserError
from asrl.evaluate import Transcription, summarise


@dataclass(frozen=True)
class Comparison:
    """One held-out set, decoded one way, before and after.

    Attributes:
        split: Name of the set.
        mode: ``greedy`` or ``sampled``.
        before: Rates of ``evaluate.summarise``.
        after: Likewise.
        difference: Of the error rates, after minus before.
        low: Lower end of its 95 % interval (paired bootstrap over utterances).
        high: Upper end.
    """

    split: str
    mode: str
    before: dict[str, float]
    after: dict[str, float]
    difference: float
    low: float
    high: float


def compare(
    split: str, mode: str, before: Sequence[Transcription], after: Sequence[Transcription]
) -> Comparison:
    """Compare two transcriptions of the same set.

    Raises:
        UserError: They are of different utterances.
    """
    pairs = zip_longest(before, after)
    odd = next((pair for pair in pairs if None in pair or pair[0].key != pair[1].key), None)
    if odd is not None:
        keys = " and ".join(repr(line.key) if line else "nothing" for line in odd)
        raise UserError(f"{split}, {mode}: before and after are not of the same utterances: {keys}")
    interval = paired_bootstrap([t.counts for t in before], [t.counts for t in after])
    return Comparison(
        split, mode, summarise(before), summarise(after), interval.difference, interval.low, interval.high
    )
