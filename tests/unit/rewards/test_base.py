"""A reward function that fails is named with the row it fails on; its values are checked."""

import re

import numpy as np
import pytest

from asrl.errors import UserError
from asrl.rewards.base import WeightedReward
from asrl.utterance import Utterance

UTTERANCE = Utterance("utt1", "utt1.wav", "你好")


@pytest.mark.parametrize("value", [1, 1.0, np.float32(1.0), np.int64(1), True])
def test_numbers_of_any_kind_become_floats(value):
    (checked,) = WeightedReward("mine", 1.0, lambda hypotheses, utterances: [value])(["你好"], [UTTERANCE])
    assert checked == 1.0
    assert type(checked) is float


def test_an_array_is_a_list_of_values():
    reward = WeightedReward("mine", 1.0, lambda hypotheses, utterances: np.array([0.5, 0.25]))
    assert reward(["a", "b"], [UTTERANCE] * 2) == [0.5, 0.25]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "0.5", [0.5], 1j, "x" * 999])
def test_a_value_that_is_no_finite_number_is_refused(value):
    reward = WeightedReward("mine", 1.0, lambda hypotheses, utterances: [None, value])
    with pytest.raises(UserError, match=r"reward\.mine: .*utterance 'utt1', hypothesis '坏\\n的'"):
        reward(["好", "坏\n的"], [UTTERANCE] * 2)


@pytest.mark.parametrize("returned", [[1.0], [1.0] * 3, None, 1.0, "ab", {0: 1.0, 1: 1.0}, {0.5, 1.0}])
def test_not_one_value_per_row_is_refused(returned):
    reward = WeightedReward("mine", 1.0, lambda hypotheses, utterances: returned)
    with pytest.raises(
        UserError, match=r"reward\.mine: a reward returns one float or None per row, got .* for 2 rows"
    ):
        reward(["a", "b"], [UTTERANCE] * 2)


def fail_on_b(hypotheses, utterances):
    return [1 / (hypothesis != "b") for hypothesis in hypotheses]


def fail_late(hypotheses, utterances):
    yield from fail_on_b(hypotheses, utterances)


def fail_on_several(hypotheses, utterances):
    if len(hypotheses) > 1:
        raise KeyError("two\nlines")
    return [1.0]


ROWS = (["a", "b", "b"], [Utterance(key, f"{key}.wav", "x") for key in ("utt1", "utt2", "utt3")])


@pytest.mark.parametrize("function", [fail_on_b, fail_late])
def test_a_function_that_fails_is_named_with_the_first_row_it_fails_on(function):
    line = fail_on_b.__code__.co_firstlineno + 1
    with pytest.raises(UserError) as caught:
        WeightedReward("mine", 1.0, function)(*ROWS)
    assert str(caught.value) == (
        f"reward.mine: the function failed with ZeroDivisionError: division by zero at {__file__}:{line} "
        "for utterance 'utt2', hypothesis 'b'; any string is a legal hypothesis: fix the function"
    )
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_function_that_fails_only_on_several_rows_is_named_without_one():
    with pytest.raises(UserError, match=re.escape("KeyError: 'two\\nlines' at")) as caught:
        WeightedReward("mine", 1.0, fail_on_several)(*ROWS)
    assert "for 3 rows together, though for none of them alone" in str(caught.value)


def test_a_function_that_fails_on_a_truncated_row_gets_that_row_as_truncated():
    def fail_on_truncated(hypotheses, utterances, *, is_truncated):
        return [1 / (not is_cut) for is_cut in is_truncated]

    with pytest.raises(UserError, match="for utterance 'utt3', hypothesis 'b'"):
        WeightedReward("mine", 1.0, fail_on_truncated)(*ROWS, is_truncated=[False, False, True])
