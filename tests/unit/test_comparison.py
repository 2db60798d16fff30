import pytest

from asrl.comparison import compare
from asrl.errors import UserError
from asrl.evaluate import Transcription


def transcription(place, transcript, hypothesis):
    return Transcription(place, f"u{place}", transcript, hypothesis, False)


BEFORE = [transcription(0, "天气很好", "天汽很好"), transcription(1, "你好", "你好")]
AFTER = [transcription(0, "天气很好", "天气很好"), transcription(1, "你好", "你好吗呢")]


def test_a_comparison_holds_both_rates_and_their_difference():
    comparison = compare("dev", "greedy", BEFORE, AFTER)
    # Of six characters: one substituted before, two inserted after.
    assert comparison.before["cer"] == pytest.approx(1 / 6)
    assert comparison.after["cer"] == pytest.approx(2 / 6)
    assert comparison.difference == pytest.approx(1 / 6)
    # Drawn twice: the first (-2 of 8) in a quarter of the resamples, the second (+4 of 4) in another.
    assert (comparison.low, comparison.high) == (-1 / 4, 1.0)


def test_comparing_other_utterances_is_refused():
    with pytest.raises(UserError, match="same utterances"):
        compare("dev", "greedy", BEFORE, AFTER[:1])


def test_other_utterances_in_as_many_lines_are_refused_by_name():
    with pytest.raises(UserError, match="'u0' and 'u1'"):
        compare("dev", "greedy", BEFORE, AFTER[::-1])
