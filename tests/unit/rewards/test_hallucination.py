"""Loops, lengths and overlaps counted by hand."""

import random
import sys
from collections.abc import Callable

import pytest

from asrl.errors import UserError
from asrl.rewards import hallucination as module
from asrl.rewards.hallucination import hallucination, is_hallucination, length_excess, loop_share
from asrl.utterance import Utterance


@pytest.mark.parametrize(
    ("hypothesis", "reference", "share"),
    [
        ("今天天气很好", "今天天气很好", 0.0),
        ("", "你好", 0.0),
        ("哈哈", "你好", 0.0),  # two copies are no loop
        ("哈哈哈", "你好", 1.0),
        ("你好你好你好", "你好", 0.0),  # two more than the reference
        ("你好你好你好你好吗", "你好吗", 6 / 9),
        ("今天下雨下雨下雨", "今天很好", 6 / 8),
        ("今天哈哈哈天气呵呵呵", "今天天气", 6 / 10),  # two loops
        ("the the the the", "a cat", 1.0),
        ("好你好你好你好你", "很好", 1.0),  # four copies of 好你
        ("你好你好你好你", "很好", 1.0),  # a cut last copy belongs to the loop
    ],
)
def test_share_of_loops_by_hand(hypothesis, reference, share):
    assert loop_share(hypothesis, reference) == pytest.approx(share, abs=1e-12)


@pytest.mark.parametrize(
    ("hypothesis", "reference", "share"),
    [
        ("二二二二二", "二二二二二", 0.0),
        ("二二二二二二", "二二二二", 0.0),  # two more
        ("二二二二二二二二", "二二二二", 4 / 8),
        ("你好你好你好你好", "好你好你好你好你", 0.0),  # the same four copies, begun elsewhere
        ("你好你好你好你好你好", "好你好你好你", 0.0),  # two more than its three of 好你
        ("一二一二一二一二", "一二三四一二五六", 6 / 8),  # the reference never has two in a row
    ],
)
def test_repeats_of_the_reference_are_no_loops(hypothesis, reference, share):
    assert loop_share(hypothesis, reference) == pytest.approx(share, abs=1e-12)


def test_a_sentence_that_repeats_is_a_loop():
    sentence = "".join(chr(0x4E00 + n) for n in range(100))
    # one of twenty copies is the reference's
    assert loop_share(sentence * 20, sentence) == pytest.approx(19 / 20, abs=1e-12)


def test_a_longer_period_does_not_count_a_loop_twice():
    # 12 a: surplus is all but the reference's 4; read as "aa" six times it would be the same 8
    assert loop_share("甲" * 12, "甲" * 4) == pytest.approx(8 / 12, abs=1e-12)
    assert loop_share("甲" * 12, "甲" * 5) == pytest.approx(7 / 12, abs=1e-12)


@pytest.mark.parametrize(
    ("num_hypothesis", "num_reference", "excess"),
    [
        (4, 4, 0.0),
        (8, 4, 0.0),
        (2, 4, 0.0),
        (16, 4, 1.0),  # four times as long: two octaves, one more than allowed
        (1, 4, 1.0),
        (400, 4, 1.0),
        (0, 4, 1.0),
        (0, 0, 0.0),
        (2, 0, 0.0),
        (4, 0, 1.0),
    ],
)
def test_length_excess_in_octaves(num_hypothesis, num_reference, excess):
    assert length_excess("甲" * num_hypothesis, "乙" * num_reference) == excess


def test_length_excess_grows_between_two_and_four_times():
    # log2(3) - 1
    assert length_excess("甲" * 6, "乙乙") == pytest.approx(0.5849625007, abs=1e-9)


def reward(hypothesis: str, reference: str, *, is_truncated: bool = False, **options) -> float | None:
    row = [Utterance("u", "u.wav", reference)]
    (value,) = hallucination(**options)([hypothesis], row, is_truncated=[is_truncated])
    return value


def test_a_plausible_transcript_costs_nothing():
    assert reward("今天天汽很好", "今天天气很好") == 0.0


def test_parts_add_up_to_at_most_one():
    # loop share 6/8, length 8/4 inside
    assert reward("今天下雨下雨下雨", "今天很好") == pytest.approx(-0.75, abs=1e-12)
    assert reward("今天下雨下雨下雨", "今天很好", is_truncated=True) == -1.0
    assert reward("今天很好", "今天很好", is_truncated=True) == -1.0


def test_weights_scale_their_part():
    options = {"loop": 0.2, "truncation": 0.5, "length_ratio": 0.0}
    # 0.2 * 6/8 + 0.5
    assert reward("今天下雨下雨下雨", "今天很好", is_truncated=True, **options) == pytest.approx(
        -0.65, abs=1e-12
    )
    assert reward("", "今天很好", **options) == 0.0
    assert reward("", "今天很好", length_ratio=0.25) == -0.25


def test_truncation_is_optional():
    assert hallucination()(["你好"], [Utterance("u", "u.wav", "你好")]) == [0.0]


def test_a_negative_weight_is_refused():
    with pytest.raises(UserError, match="loop must be a weight of at least 0, got -1"):
        hallucination(loop=-1.0)
    with pytest.raises(UserError, match="truncation must be a finite number"):
        hallucination(truncation=float("nan"))


@pytest.mark.parametrize(
    ("reference", "hypothesis", "expected"),
    [
        ("今天天气很好", "谢谢观看请订阅我的频道", True),  # 11 > 9 characters, nothing right
        ("今天天气很好", "谢谢观看请订阅我的", False),  # 9 is not longer than 9
        ("今天天气很好", "今天天气很好谢谢观看请订阅", False),  # all of the reference is there
        ("一二三四五", "一乙丙丁戊己庚辛壬癸", False),  # one right in five is not below a fifth
        ("", "谢谢", True),
        ("", "", False),
    ],
)
def test_hallucination_by_hand(reference, hypothesis, expected):
    assert is_hallucination(reference, hypothesis) is expected


def count_lines(function: Callable[[], object]) -> int:
    """Lines of the module that a call executes."""
    num_lines = 0

    def trace(frame, event, _):
        nonlocal num_lines
        if frame.f_code.co_filename != module.__file__:
            return None
        num_lines += event == "line"
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(previous)
    return num_lines


@pytest.mark.parametrize("alphabet", ["甲", "甲乙", "甲乙丙", "一二三四五六七八九十"])
def test_the_work_grows_no_faster_than_the_text(alphabet):
    text = "".join(random.Random(0).choices(alphabet, k=20_000))
    short = count_lines(lambda: loop_share(text[:5_000], "甲乙丙甲乙丙甲甲甲"))
    long = count_lines(lambda: loop_share(text, "甲乙丙甲乙丙甲甲甲"))
    # Four times the text; every line handles whole arrays of at most the text's size, 128 times.
    assert long < 5 * short
