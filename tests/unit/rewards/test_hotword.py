"""Presence of each term read off by hand."""

import pytest

from asrl.errors import UserError
from asrl.rewards.hotword import HotwordCounts, hotword, hotword_counts
from asrl.utterance import Utterance


def utterance(
    transcript: str, hotwords: tuple[str, ...] = (), distractors: tuple[str, ...] = ()
) -> Utterance:
    return Utterance("u", "u.wav", transcript, hotwords=hotwords, distractors=distractors)


CALL = utterance("给张伟打电话", ("张伟",), ("章薇",))


@pytest.mark.parametrize(
    ("hypothesis", "counts"),
    [
        ("给张伟打电话", HotwordCounts(hits=1, misses=0, false_insertions=0, correct_rejections=1)),
        ("给张威打电话", HotwordCounts(hits=0, misses=1, false_insertions=0, correct_rejections=1)),
        ("给张伟章薇打电话", HotwordCounts(hits=1, misses=0, false_insertions=1, correct_rejections=0)),
        ("给章薇打电话", HotwordCounts(hits=0, misses=1, false_insertions=1, correct_rejections=0)),
        # said twice is still one term that came out right
        ("给张伟张伟打电话", HotwordCounts(hits=1, misses=0, false_insertions=0, correct_rejections=1)),
    ],
)
def test_counts_by_hand(hypothesis, counts):
    assert hotword_counts(hypothesis, CALL) == counts


def test_making_a_word_up_costs_as_much_as_losing_one():
    values = hotword()(["给张伟打电话", "给张威打电话", "给张伟章薇打电话", "给章薇打电话"], [CALL] * 4)
    assert values == [1.0, 0.5, 0.5, 0.0]


@pytest.mark.parametrize(
    ("form", "expected"),
    # rows: right, lost, made up besides, swapped
    [
        ("recall", [1.0, 0.0, 1.0, 0.0]),
        ("precision", [1.0, 1.0, 0.5, 0.0]),
        ("f1", [1.0, 0.0, 2 / 3, 0.0]),
    ],
)
def test_other_forms_by_hand(form, expected):
    rows = ["给张伟打电话", "给张威打电话", "给张伟章薇打电话", "给章薇打电话"]
    assert hotword(form=form)(rows, [CALL] * 4) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("form", ["agreement", "recall", "precision", "f1"])
def test_rows_without_terms_have_no_reward(form):
    assert hotword(form=form)(["你好"], [utterance("你好")]) == [None]
    assert hotword(form=form)(["你好"], [utterance("你好", ("。",))]) == [None]


@pytest.mark.parametrize(
    ("form", "clean", "injected"),
    [("agreement", 1.0, 0.5), ("recall", None, None), ("precision", 1.0, 0.0), ("f1", 1.0, 0.0)],
)
def test_distractors_alone_punish_injection(form, clean, injected):
    row = utterance("今天下雨", (), ("张伟", "李雷"))
    assert hotword(form=form)(["今天下雨", "今天张伟"], [row, row]) == [clean, injected]


def test_part_of_a_longer_term_does_not_count_as_present():
    row = utterance("去上海南站", ("上海南站",), ("上海", "南站", "海南"))
    assert hotword_counts("去上海南站", row) == HotwordCounts(1, 0, 0, 3)
    # elsewhere in the same text the short term counts
    assert hotword_counts("从海南去上海南站", row) == HotwordCounts(1, 0, 1, 2)


def test_terms_that_overlap_without_containment_are_both_present():
    assert hotword_counts("甲乙丙", utterance("甲乙丙", ("甲乙", "乙丙"))) == HotwordCounts(2, 0, 0, 0)


def test_a_term_inside_a_word_is_not_present():
    row = utterance("start the art class", ("art",))
    assert hotword_counts("start the class", row) == HotwordCounts(0, 1, 0, 0)


def test_terms_are_normalised_and_counted_once():
    row = utterance("打开ResNet模型", ("ResNet", "resnet"), ("ＲＥＳＮＥＴ",))
    assert hotword_counts("打开 resnet 模型", row) == HotwordCounts(1, 0, 0, 0)


def test_a_listed_hotword_that_the_transcript_lacks_is_an_injection():
    assert hotword_counts("找张伟", utterance("找人", ("张伟",))) == HotwordCounts(0, 0, 1, 0)


def test_corpus_ratios_are_of_the_sums():
    total = sum([HotwordCounts(3, 1, 0, 4), HotwordCounts(0, 0, 2, 0)], HotwordCounts(0, 0, 0, 0))
    assert total == HotwordCounts(3, 1, 2, 4)
    assert total.recall == 3 / 4
    assert total.precision == 3 / 5
    assert total.f1 == 6 / 9
    assert total.agreement == 7 / 10


def test_ratios_without_a_denominator_are_none():
    nothing = HotwordCounts(0, 0, 0, 0)
    assert (nothing.recall, nothing.precision, nothing.f1, nothing.agreement) == (None, None, None, None)


def test_an_unknown_form_names_the_nearest():
    with pytest.raises(UserError, match="unknown form 'recal'; did you mean 'recall'"):
        hotword(form="recal")


@pytest.mark.parametrize(
    ("hypothesis", "is_found"),
    [
        ("vidím kapitána silvera", True),
        ("vidím Kapita\u0301na, SILVERA!", True),  # decomposed, capitals, punctuation
        ("vidím kapitana silvera", False),  # the accent is part of the word
        ("vidím kapitán silver", False),  # another case of the same name is another word
        ("vidím kapitánasilvera", False),
    ],
)
def test_a_czech_name_is_found_in_the_case_in_which_it_is_listed(hypothesis, is_found):
    row = utterance("Vidím kapitána Silvera.", ("kapitána Silvera",))
    assert hotword_counts(hypothesis, row).hits == is_found
