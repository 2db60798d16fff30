"""This module is the only place that sums up what a data set holds."""

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from asrl.data.inspection import Finding, Kind, Problem
from asrl.data.lines import ManifestLines
from asrl.data.manifest import find_duplicates

EDGES = (0.0, 1.0, 2.0, 3.0, 5.0, 10.0, 15.0, 20.0, 30.0, np.inf)  # seconds
# Text and audio that do not belong together read much faster or slower than the rest.
OUTLIER_FACTOR = 2.0
OUTLIER_DEVIATIONS = 4.0
MAD_TO_DEVIATION = 1.4826  # of a normal distribution


@dataclass(frozen=True)
class Survey:
    """A data set as a whole.

    Attributes:
        seconds: Audio of each line; NaN if it cannot be read.
        num_characters: Of each transcript.
        problems: Sorted by line.
        hotwords: How many lines list each hotword.
        num_with_hotwords: Lines that list any.
    """

    seconds: Float64[np.ndarray, " lines"]
    num_characters: Int64[np.ndarray, " lines"]
    problems: tuple[Problem, ...]
    hotwords: Counter[str]
    num_with_hotwords: int

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def bad_lines(self) -> set[int]:
        """Positions of the lines with a problem."""
        return {problem.index for problem in self.problems}

    @property
    def measured(self) -> Float64[np.ndarray, " measured"]:
        """Seconds of the lines whose audio can be read."""
        return self.seconds[~np.isnan(self.seconds)]

    @property
    def rates(self) -> Float64[np.ndarray, " lines"]:
        """Characters per second of each line; NaN where there is no audio or no text."""
        has_both = (self.seconds > 0) & (self.num_characters > 0)
        return np.divide(
            self.num_characters, self.seconds, out=np.full(len(self.seconds), np.nan), where=has_both
        )

    def histogram(self) -> list[tuple[float, float, int]]:
        """Lower end, upper end and number of lines of each class of durations."""
        counts, _ = np.histogram(self.measured, bins=EDGES)
        return list(zip(EDGES[:-1], EDGES[1:], counts.tolist(), strict=True))

    def outliers(self) -> list[int]:
        """Lines whose characters per second differ most from the median, the strangest first.

        By a factor of ``OUTLIER_FACTOR``, and by ``OUTLIER_DEVIATIONS`` standard deviations of the logarithm,
        estimated from the median absolute deviation.
        """
        with np.errstate(invalid="ignore"):
            logs = np.log(self.rates)
        if np.isnan(logs).all():
            return []
        distances = np.abs(logs - np.nanmedian(logs))
        deviation = MAD_TO_DEVIATION * np.nanmedian(distances)
        limit = max(np.log(OUTLIER_FACTOR), OUTLIER_DEVIATIONS * deviation)
        strange = np.flatnonzero(distances > limit)
        return strange[np.argsort(-distances[strange], kind="stable")].tolist()

    def by_kind(self) -> dict[Kind, list[Problem]]:
        """The problems of each kind that occurs."""
        kinds: dict[Kind, list[Problem]] = {}
        for problem in self.problems:
            kinds.setdefault(problem.kind, []).append(problem)
        return kinds


def survey(lines: ManifestLines, findings: Iterable[Finding]) -> Survey:
    """Sum up the findings on every line of a manifest, in their order, and find keys that repeat."""
    seconds, num_characters, hashes = array("d"), array("q"), array("q")
    problems: list[Problem] = []
    hotwords: Counter[str] = Counter()
    num_with_hotwords = 0
    for finding in findings:
        seconds.append(finding.seconds)
        num_characters.append(finding.num_characters)
        # A line without a key must not be like another.
        hashes.append(finding.key_hash or finding.index)
        problems += finding.problems
        hotwords.update(set(finding.hotwords))
        num_with_hotwords += bool(finding.hotwords)
    bad_lines = {problem.index for problem in problems if problem.kind is Kind.LINE}
    problems += _repeated_keys(lines, np.array(hashes, dtype=np.int64), bad_lines)
    return Survey(
        seconds=np.array(seconds, dtype=np.float64),
        num_characters=np.array(num_characters, dtype=np.int64),
        problems=tuple(sorted(problems, key=lambda problem: problem.index)),
        hotwords=hotwords,
        num_with_hotwords=num_with_hotwords,
    )


def _repeated_keys(
    lines: ManifestLines, hashes: Int64[np.ndarray, " lines"], bad_lines: set[int]
) -> Iterable[Problem]:
    for earlier, later in find_duplicates(hashes):
        if {earlier, later} & bad_lines or lines.read(earlier).key != lines.read(later).key:
            continue
        place = f"{lines.place(later)}: key {lines.read(later).key!r}"
        yield Problem(later, Kind.KEY, f"{place} was already used at {lines.place(earlier)}")


def to_json(result: Survey, lines: ManifestLines) -> dict[str, Any]:
    """The survey as numbers and lists for JSON."""
    measured, rates = result.measured, result.rates
    return {
        "utterances": len(result),
        "hours": float(measured.sum() / 3600),
        "seconds": _quantiles(measured),
        "characters_per_second": _quantiles(rates[~np.isnan(rates)]),
        "durations": [
            {"from": low, "to": None if np.isinf(high) else high, "utterances": count}
            for low, high, count in result.histogram()
        ],
        "hotwords": {"utterances": result.num_with_hotwords, "different": len(result.hotwords)},
        "num_problems": {kind.value: len(problems) for kind, problems in result.by_kind().items()},
        "problems": [{"kind": problem.kind.value, "message": problem.message} for problem in result.problems],
        "outliers": [
            {"place": lines.place(index), "characters_per_second": float(rates[index])}
            for index in result.outliers()
        ],
    }


def _quantiles(values: Float64[np.ndarray, " values"]) -> dict[str, float]:
    if not len(values):
        return {}
    names = {"min": 0.0, "p05": 0.05, "median": 0.5, "p95": 0.95, "max": 1.0}
    return {"mean": float(values.mean())} | {name: float(np.quantile(values, q)) for name, q in names.items()}
