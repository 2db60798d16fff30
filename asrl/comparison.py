"""This module is the only place that compares two transcriptions of the same set."""

from collections.abc import Sequence
from dataclasses import dataclass

from asrl.bootstrap import paired_bootstrap
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
    """Compare two transcriptions of the same set."""
    interval = paired_bootstrap([t.counts for t in before], [t.counts for t in after])
    return Comparison(
        split, mode, summarise(before), summarise(after), interval.difference, interval.low, interval.high
    )
