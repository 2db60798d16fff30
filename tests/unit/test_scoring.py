import json
import sys
from pathlib import Path

import pytest

from asrl.alignment import count_steps
from asrl.errors import UserError
from asrl.scoring import RULES, numbers_to_chinese, units_v1, units_v2
from asrl.text import ErrorCounts, error_counts

CASES = json.loads((Path(__file__).parents[1] / "data/golden/text_cases.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES["wer_tokens"], ids=lambda case: case["text"])
def test_units_are_those_of_upstream(case):
    assert units_v1(case["text"]) == case["v1"]
    assert units_v2(case["text"]) == case["v2"]


@pytest.mark.parametrize("case", CASES["wer_counts_v1"], ids=lambda case: case["ref"])
def test_counts_are_those_of_upstream(case):
    counts = count_steps(RULES["upstream-v1"].steps(case["ref"], case["hyp"]))
    assert counts == ErrorCounts(case["cor"], case["sub"], case["del"], case["ins"])
    assert (counts.errors, counts.num_reference_tokens) == (case["err"], case["n_ref"])
    assert 100 * counts.rate == pytest.approx(case["wer"])


def test_tags_are_removed_from_both_texts_and_separate_words():
    assert units_v1("<|zh|>你好<|en|>hello<|x|>world") == ["你", "好", "HELLO", "WORLD"]
    assert count_steps(RULES["upstream-v1"].steps("<|zh|>你好", "你好<|nospeech|>")).errors == 0


def test_six_letters_apart_are_a_spelling_and_five_are_a_word():
    assert units_v2("a b c d e") == ["ABCDE"]
    assert units_v2("a b c d e f") == ["A", "B", "C", "D", "E", "F"]


def test_our_own_rules_are_those_of_the_error_rate():
    reference, hypothesis = "Ｈello，３.５度", "hello 35度"
    assert count_steps(RULES["asrl"].steps(reference, hypothesis)) == error_counts(reference, hypothesis)


def test_numbers_become_chinese():
    pytest.importorskip("cn2an")
    assert numbers_to_chinese("播放第23集") == "播放第二十三集"


def test_without_cn2an_the_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cn2an", None)
    with pytest.raises(UserError, match="pip install cn2an"):
        numbers_to_chinese("3")
