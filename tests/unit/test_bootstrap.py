"""Intervals that can be worked out by hand."""

import pytest

from asrl.bootstrap import BootstrapInterval, paired_bootstrap
from asrl.errors import UserError
from asrl.text import ErrorCounts


def counts(num_errors: int, num_tokens: int = 10) -> ErrorCounts:
    return ErrorCounts(hits=num_tokens - num_errors, substitutions=num_errors, deletions=0, insertions=0)


def test_equal_gains_leave_no_uncertainty():
    # Every utterance goes from 3 to 1 errors in 10 units, so every resample differs by -0.2.
    interval = paired_bootstrap([counts(3)] * 5, [counts(1)] * 5)
    assert interval.difference == pytest.approx(-0.2, abs=1e-12)
    assert interval.low == pytest.approx(-0.2, abs=1e-12)
    assert interval.high == pytest.approx(-0.2, abs=1e-12)


def test_pairing_removes_what_the_utterances_have_in_common():
    # Hard and easy utterances all gain one error in 10: unpaired resamples would differ by up to 0.9.
    before = [counts(9), counts(1), counts(5), counts(2)]
    after = [counts(8), counts(0), counts(4), counts(1)]
    interval = paired_bootstrap(before, after)
    assert (interval.low, interval.high) == pytest.approx((-0.1, -0.1), abs=1e-12)


def test_the_difference_is_of_corpus_rates():
    # 2 errors fewer in 10 + 30 units: -2/40, where the mean of the rates would say (-2/10 + 0) / 2.
    interval = paired_bootstrap([counts(4), counts(5, 30)], [counts(2), counts(5, 30)])
    assert interval.difference == pytest.approx(-0.05, abs=1e-12)


def test_insertions_and_deletions_count():
    before = [ErrorCounts(hits=8, substitutions=0, deletions=2, insertions=1)]
    after = [ErrorCounts(hits=10, substitutions=0, deletions=0, insertions=0)]
    assert paired_bootstrap(before, after).difference == pytest.approx(-0.3, abs=1e-12)


def test_interval_of_a_binomial():
    # 100 utterances of one unit, 50 of them mended: a resample differs by -Binomial(100, 1/2) / 100, whose
    # 2.5 % and 97.5 % quantiles are 40 and 60. The quantile of 20,000 resamples is within one count of them.
    interval = paired_bootstrap(
        [counts(1, 1)] * 100, [counts(0, 1)] * 50 + [counts(1, 1)] * 50, num_resamples=20_000, seed=3
    )
    assert interval.difference == pytest.approx(-0.5, abs=1e-12)
    assert interval.low == pytest.approx(-0.60, abs=0.0101)
    assert interval.high == pytest.approx(-0.40, abs=0.0101)


def test_a_resample_divides_by_its_own_units():
    # One error more in the utterance of 1 unit, none in that of 99. A resample takes the first twice (2/2),
    # once (1/100) or not at all (0), with chances 1/4, 1/2, 1/4: the outer 2.5 % are 0 and 1.
    interval = paired_bootstrap([counts(0, 1), counts(9, 99)], [counts(1, 1), counts(9, 99)])
    assert interval == BootstrapInterval(difference=0.01, low=0.0, high=1.0)


def test_less_confidence_is_a_narrower_interval():
    # 80 % of a binomial with standard deviation 5 in 100: +- 1.28 x 0.05 = 0.064 around -0.5, to a count.
    interval = paired_bootstrap(
        [counts(1, 1)] * 100,
        [counts(0, 1)] * 50 + [counts(1, 1)] * 50,
        num_resamples=20_000,
        confidence=0.8,
    )
    assert interval.low == pytest.approx(-0.564, abs=0.0101)
    assert interval.high == pytest.approx(-0.436, abs=0.0101)


def test_the_seed_decides_the_resamples():
    before, after = [counts(n % 7) for n in range(40)], [counts(n % 5) for n in range(40)]
    assert paired_bootstrap(before, after, seed=1) == paired_bootstrap(before, after, seed=1)
    assert paired_bootstrap(before, after, seed=1) != paired_bootstrap(before, after, seed=2)


def test_empty_references_are_legal():
    nothing = ErrorCounts(0, 0, 0, 0)
    assert paired_bootstrap([nothing], [nothing]) == BootstrapInterval(0.0, 0.0, 0.0)


def test_different_utterances_are_refused():
    with pytest.raises(UserError, match="at least one; got 1 and 2"):
        paired_bootstrap([counts(1)], [counts(1), counts(1)])
    with pytest.raises(UserError, match="got 0 and 0"):
        paired_bootstrap([], [])
    with pytest.raises(UserError, match="at position 1 they have 10 and 9 units"):
        paired_bootstrap([counts(1), counts(1)], [counts(1), counts(1, 9)])


@pytest.mark.parametrize("wrong", [{"num_resamples": 0}, {"confidence": 1.0}, {"confidence": 0.0}])
def test_impossible_intervals_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        paired_bootstrap([counts(1)], [counts(1)], **wrong)
