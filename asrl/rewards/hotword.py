"""This module is the only place that says whether a text contains a hotword."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from asrl.rewards.base import REWARDS, RewardFunction, check_choice
from asrl.text import text_units
from asrl.utterance import Utterance

Units = tuple[str, ...]


@dataclass(frozen=True)
class HotwordCounts:
    """How the terms of an utterance (hotwords and distractors) fared; each term counts once per utterance.

    Counts add up to those of a corpus: ``sum(counts, HotwordCounts(0, 0, 0, 0))``.
    A ratio without a denominator is None.

    Attributes:
        hits: Terms that reference and hypothesis both contain.
        misses: Terms of the reference that the hypothesis lacks.
        false_insertions: Terms of the hypothesis that the reference lacks.
        correct_rejections: Terms that neither contains.
    """

    hits: int
    misses: int
    false_insertions: int
    correct_rejections: int

    @property
    def agreement(self) -> float | None:
        """Share of the terms that are in both texts or in neither."""
        total = self.hits + self.misses + self.false_insertions + self.correct_rejections
        return (self.hits + self.correct_rejections) / total if total else None

    @property
    def recall(self) -> float | None:
        """Share of the reference's terms that the hypothesis contains."""
        total = self.hits + self.misses
        return self.hits / total if total else None

    @property
    def precision(self) -> float | None:
        """Share of the hypothesis's terms that the reference contains."""
        total = self.hits + self.false_insertions
        return self.hits / total if total else None

    @property
    def f1(self) -> float | None:
        """Harmonic mean of precision and recall."""
        total = 2 * self.hits + self.misses + self.false_insertions
        return 2 * self.hits / total if total else None

    def __add__(self, other: "HotwordCounts") -> "HotwordCounts":
        return HotwordCounts(
            hits=self.hits + other.hits,
            misses=self.misses + other.misses,
            false_insertions=self.false_insertions + other.false_insertions,
            correct_rejections=self.correct_rejections + other.correct_rejections,
        )


def hotword_counts(hypothesis: str, utterance: Utterance) -> HotwordCounts:
    """Compare which of the utterance's hotwords and distractors the hypothesis and the transcript contain.

    Terms are found as runs of whole units, so ``art`` is not in ``start``.
    """
    terms = {text_units(term) for term in (*utterance.hotwords, *utterance.distractors)} - {()}
    in_reference = _present(terms, text_units(utterance.transcript))
    in_hypothesis = _present(terms, text_units(hypothesis))
    return HotwordCounts(
        hits=len(in_reference & in_hypothesis),
        misses=len(in_reference - in_hypothesis),
        false_insertions=len(in_hypothesis - in_reference),
        correct_rejections=len(terms - in_reference - in_hypothesis),
    )


def _present(terms: Collection[Units], text: Units) -> set[Units]:
    """The terms with an occurrence in the text that is not part of an occurrence of a longer term."""
    sizes = sorted({len(term) for term in terms}, reverse=True)
    found = set()
    covered_until = 0  # furthest end of the occurrences that start here or before
    for start in range(len(text)):
        for end in (start + size for size in sizes if start + size <= len(text)):
            if end > covered_until and text[start:end] in terms:
                found.add(text[start:end])
                covered_until = end
    return found


def _or_one(ratio: float | None) -> float:
    return 1.0 if ratio is None else ratio


# Recall is the only form that an utterance with terms can lack, and it lacks it whatever the hypothesis says.
_FORMS: dict[str, Callable[[HotwordCounts], float | None]] = {
    "agreement": lambda counts: counts.agreement,
    "recall": lambda counts: counts.recall,
    "precision": lambda counts: _or_one(counts.precision),
    "f1": lambda counts: _or_one(counts.f1),
}


@REWARDS.register("hotword")
def hotword(*, form: str = "agreement") -> RewardFunction:
    """Whether the hotwords came out and the distractors did not; in [0, 1].

    None for an utterance with neither hotwords nor distractors.

    Args:
        form: ``agreement``: share of the terms that are in both texts or in neither, so that a word made up
            costs as much as a word lost. ``recall`` (None if the transcript has no term), ``precision`` (1 if
            the hypothesis has no term) and ``f1`` (1 if neither has one) are the usual ratios.

    Raises:
        UserError: The form is unknown.
    """
    ratio = check_choice("form", form, _FORMS)
    nothing = HotwordCounts(0, 0, 0, 0)

    def score(hypotheses: Sequence[str], utterances: Sequence[Utterance]) -> list[float | None]:
        counts = [hotword_counts(*row) for row in zip(hypotheses, utterances, strict=True)]
        return [None if count == nothing else ratio(count) for count in counts]

    return score
