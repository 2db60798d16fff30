"""This module is the only place that says how sure a difference of two error rates is; it needs no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asrl.errors import UserError
from asrl.text import ErrorCounts


@dataclass(frozen=True)
class BootstrapInterval:
    """A difference of corpus error rates, after minus before (negative: better), and its interval."""

    difference: float
    low: float
    high: float


def paired_bootstrap(
    before: Sequence[ErrorCounts],
    after: Sequence[ErrorCounts],
    *,
    num_resamples: int = 2000,
    seed: int = 0,
    confidence: float = 0.95,
) -> BootstrapInterval:
    """The difference of two corpus error rates, with a percentile interval over resampled utterances.

    Each resample draws as many utterances as there are, with replacement, the same ones before and after.
    Source: Bisani and Ney, "Bootstrap estimates for confidence intervals in ASR performance evaluation",
    ICASSP 2004.

    Raises:
        UserError: The two do not count the same utterances, or there are none.
        ValueError: ``num_resamples`` is below 1 or ``confidence`` is outside (0, 1).
    """
    num_tokens = _reference_tokens(before, after)
    if num_resamples < 1:
        raise ValueError(f"num_resamples must be at least 1, got {num_resamples}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}; 0.95 is usual")
    # Both rates share the denominator, so the difference of the errors is all that has to be resampled.
    errors = np.array([new.errors - old.errors for old, new in zip(before, after, strict=True)])
    generator = np.random.default_rng(seed)
    differences = np.empty(num_resamples)
    for resample in range(num_resamples):
        drawn = generator.integers(len(errors), size=len(errors))
        differences[resample] = _rate(errors[drawn], num_tokens[drawn])
    tail = (1 - confidence) / 2
    low, high = np.quantile(differences, [tail, 1 - tail])
    return BootstrapInterval(difference=_rate(errors, num_tokens), low=float(low), high=float(high))


def _reference_tokens(before: Sequence[ErrorCounts], after: Sequence[ErrorCounts]) -> NDArray[np.int64]:
    if len(before) != len(after) or not before:
        raise UserError(
            f"a paired comparison needs the same utterances before and after, at least one; "
            f"got {len(before)} and {len(after)}: compare two evaluations of one manifest"
        )
    for position, (old, new) in enumerate(zip(before, after, strict=True)):
        if old.num_reference_tokens != new.num_reference_tokens:
            raise UserError(
                f"a paired comparison needs the same references in the same order; at position {position} "
                f"they have {old.num_reference_tokens} and {new.num_reference_tokens} units: "
                "compare two evaluations of one manifest"
            )
    return np.array([counts.num_reference_tokens for counts in before], dtype=np.int64)


def _rate(errors: NDArray[np.int64], num_tokens: NDArray[np.int64]) -> float:
    return float(errors.sum() / max(num_tokens.sum(), 1))
