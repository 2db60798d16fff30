"""Rewards worked out by hand from the number of errors."""

import math

import pytest

from asrl.errors import UserError
from asrl.rewards.accuracy import accuracy
from asrl.utterance import Utterance


def reward(reference: str, hypothesis: str, **options) -> float | None:
    (value,) = accuracy(**options)([hypothesis], [Utterance("u", "u.wav", reference)])
    return value


def test_one_error_in_nine_units():
    assert reward("今天天气真的很不错", "今天天气真的很不粗") == pytest.approx(8 / 9, abs=1e-12)


def test_punctuation_and_case_are_no_errors():
    assert reward("打开 WiFi，谢谢。", "打开wifi谢谢") == 1.0


@pytest.mark.parametrize(
    ("options", "expected"),
    # 2 units, 10 insertions: rate 5
    [({}, -1.0), ({"floor": None}, -4.0), ({"floor": -2.5}, -2.5), ({"floor": 0}, 0.0)],
)
def test_the_floor_bounds_a_long_hypothesis(options, expected):
    assert reward("你好", "你好" + "啊" * 10, **options) == expected


@pytest.mark.parametrize(
    ("hypothesis", "expected"),
    [("你好", 1.0), ("你坏", math.exp(-1)), ("你好啊啊啊啊", math.exp(-4)), ("", math.exp(-2))],
)
def test_exp_is_positive_and_orders_beyond_rate_one(hypothesis, expected):
    # rates 0, 1/2, 2, 1
    assert reward("你好", hypothesis, shape="exp") == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("shape", ["linear", "exp"])
@pytest.mark.parametrize(
    ("hypothesis", "expected"),
    [("", 1.0), ("。！", 1.0), ("嗯", -0.1), ("hello 你好", -0.7), ("啊" * 10, -1.0), ("啊" * 50, -1.0)],
)
def test_an_empty_reference_costs_a_tenth_per_character(hypothesis, expected, shape):
    assert reward("…", hypothesis, shape=shape, floor=None) == pytest.approx(expected, abs=1e-12)


def test_each_row_is_scored_against_its_own_utterance():
    utterances = [Utterance("a", "a.wav", "你好"), Utterance("b", "b.wav", "再见")]
    assert accuracy()(["你好", "你好"], utterances) == [1.0, 0.0]


@pytest.mark.parametrize("floor", [1.0, 2.0, math.inf, math.nan, -math.inf])
def test_an_impossible_floor_is_refused(floor):
    with pytest.raises(UserError, match="floor must be"):
        accuracy(floor=floor)


def test_characters_tell_a_nearly_right_word_from_a_wrong_one():
    # "žluťoučký kůň" has 13 characters, its space included. Two are wrong, both in the second of two words.
    assert reward("Žluťoučký kůň.", "žluťoučký kun", unit="character") == pytest.approx(11 / 13, abs=1e-12)
    assert reward("Žluťoučký kůň.", "žluťoučký kun") == 0.5


def test_in_characters_a_lost_space_is_one_error():
    assert reward("co je to", "coje to", unit="character") == pytest.approx(7 / 8, abs=1e-12)


def test_an_unknown_unit_names_the_nearest():
    with pytest.raises(UserError, match="unknown unit 'characters'; did you mean 'character'"):
        accuracy(unit="characters")


def test_an_unknown_shape_names_the_nearest():
    with pytest.raises(UserError, match="unknown shape 'linaer'; did you mean 'linear'"):
        accuracy(shape="linaer")
