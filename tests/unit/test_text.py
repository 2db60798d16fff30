"""Expected texts and counts are written out by hand, from the rules in the docstrings."""

import subprocess
import sys

import jiwer
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asrl.text import (
    ErrorCounts,
    character_error_counts,
    error_counts,
    error_counts_batch,
    normalize_text,
    text_units,
    tokenize,
)

# Everything, lone surrogates too, with the characters that have rules of their own drawn often.
ANY_TEXT = st.text(
    st.one_of(
        st.characters(exclude_categories=()), st.sampled_from("aB3.'’ \u0301\u200d\ufe0f，中の\x00\ufffdΣİ")
    )
)
PROPERTY = settings(max_examples=300, deadline=None, derandomize=True, database=None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("你好，世界！", "你好世界"),
        ("我 用 iPhone 打 电话。", "我用 iphone 打电话"),
        ("ＡＢＣ　１２３", "abc 123"),
        ("Hello,world", "hello world"),
        ("  a \t\n b  ", "a b"),
        ("卡尔·马克思", "卡尔马克思"),
        ("他说‘你好’吗", "他说你好吗"),
        ("well-known_word", "well known word"),
        ("ｶﾞｷﾞ の コ", "ガギのコ"),
        ("", ""),
        ("。…！ +", ""),
    ],
)
def test_normal_form_by_hand(text, expected):
    assert normalize_text(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't", "don't"),
        ("DON’T", "don't"),
        ("rock'n'roll", "rock'n'roll"),
        ("'hello'", "hello"),
        ("dogs' bone", "dogs bone"),
        ("a''b", "a b"),
        ("你'a", "你 a"),
    ],
)
def test_an_apostrophe_stays_only_inside_a_word(text, expected):
    assert normalize_text(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3.5", "3.5"),
        ("３．５", "3.5"),
        ("12.5.", "12.5"),
        ("a.b", "a b"),
        ("3..5", "3 5"),
        (".5", "5"),
        ("3,5", "3 5"),
    ],
)
def test_a_point_stays_only_between_digits_and_digits_never_merge(text, expected):
    assert normalize_text(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Příliš ŽLUŤOUČKÝ kůň", "příliš žluťoučký kůň"),
        ("e\u0301te\u0301", "été"),
        ("हिन्दी", "हिन्दी"),
        # x with an acute has no composed form: the mark stays with its letter.
        ("X\u0301y", "x\u0301y"),
    ],
)
def test_accents_and_combining_marks_survive(text, expected):
    assert normalize_text(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("葛\U000e0100飾", "葛飾"),  # variation selector
        ("soft\u00adhyphen\ufeff", "softhyphen"),
        ("e\u200d\u0301", "é"),  # the letter meets its accent when the joiner goes
        ("it´s", "it s"),  # NFKC makes of the spacing acute a space and a mark without a letter
        ("a\x00b", "a b"),
    ],
)
def test_invisible_characters_go(text, expected):
    assert normalize_text(text) == expected


def test_undecodable_characters_stay_as_errors():
    assert normalize_text("你\ufffd好\ud800\ue000") == "你\ufffd好\ufffd\ufffd"
    # Two units are right, one was inserted.
    assert error_counts("你好", "你好\ufffd") == ErrorCounts(2, 0, 0, 1)


@PROPERTY
@given(ANY_TEXT)
def test_normalising_twice_changes_nothing(text):
    once = normalize_text(text)
    assert normalize_text(once) == once


@PROPERTY
@given(ANY_TEXT)
def test_units_are_the_normal_form_without_spaces(text):
    normal = normalize_text(text)
    units = tokenize(normal)
    assert "".join(units) == normal.replace(" ", "")
    assert not any(character.isspace() for unit in units for character in unit)
    assert all(units)


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("打开wifi 3.5次", ["打", "开", "wifi", "3.5", "次"]),
        ("𠮷野家", ["𠮷", "野", "家"]),  # extension B
        ("\U000323b0中", ["\U000323b0", "中"]),  # extension J, unassigned in older Unicode versions
        ("コーヒー", ["コ", "ー", "ヒ", "ー"]),
        ("人々〇", ["人", "々", "〇"]),
        ("don't stop", ["don't", "stop"]),
        ("žluťoučký kůň", ["žluťoučký", "kůň"]),
        ("한국어 말", ["한국어", "말"]),
        ("", []),
    ],
)
def test_units_by_hand(text, units):
    assert tokenize(text) == units
    assert text_units(text) == tuple(units)


@pytest.mark.parametrize(
    ("reference", "hypothesis", "counts"),
    [
        # equal after normalisation: 4 Han characters and 1 word
        ("打开 WiFi，好的", "打开wifi好的", ErrorCounts(5, 0, 0, 0)),
        ("今天天气", "今天天汽", ErrorCounts(3, 1, 0, 0)),
        ("今天天气", "今天气", ErrorCounts(3, 0, 1, 0)),
        ("今天天气", "今天天气啊", ErrorCounts(4, 0, 0, 1)),
        # one Latin word is one unit, however many of its letters are wrong
        ("用 python 写", "用 java 写", ErrorCounts(2, 1, 0, 0)),
        ("今天", "", ErrorCounts(0, 0, 2, 0)),
        ("", "今天 ok", ErrorCounts(0, 0, 0, 3)),
        ("", "。", ErrorCounts(0, 0, 0, 0)),
    ],
)
def test_error_counts_by_hand(reference, hypothesis, counts):
    assert error_counts(reference, hypothesis) == counts


def test_rate_divides_by_the_reference():
    # 1 + 2 + 3 errors in 4 + 1 + 2 = 7 reference units
    counts = ErrorCounts(hits=4, substitutions=1, deletions=2, insertions=3)
    assert counts.errors == 6
    assert counts.num_reference_tokens == 7
    assert counts.rate == 6 / 7


def test_an_empty_reference_counts_as_one_unit_in_the_rate():
    assert error_counts("", "三个字").rate == 3.0
    assert error_counts("", "").rate == 0.0


def test_the_corpus_rate_is_of_the_sums_not_the_mean_of_rates():
    # 0 errors in 3 units and 1 error in 1 unit: 1/4, where the mean of the rates would be 1/2
    counts = error_counts_batch(["一二三", "四"], ["一二三", "五"])
    assert sum(counts, ErrorCounts(0, 0, 0, 0)) == ErrorCounts(3, 1, 0, 0)
    assert sum(counts, ErrorCounts(0, 0, 0, 0)).rate == 0.25


def test_a_batch_needs_as_many_hypotheses_as_references():
    with pytest.raises(ValueError, match="shorter"):
        error_counts_batch(["一", "二"], ["一"])


@PROPERTY
@given(ANY_TEXT, ANY_TEXT)
def test_counts_add_up_to_the_lengths_of_both_texts(reference, hypothesis):
    counts = error_counts(reference, hypothesis)
    assert counts.num_reference_tokens == len(text_units(reference))
    assert counts.hits + counts.substitutions + counts.insertions == len(text_units(hypothesis))


def test_equal_pairs_are_aligned_once(monkeypatch):
    calls = []
    process_words = jiwer.process_words
    monkeypatch.setattr(jiwer, "process_words", lambda *pair: calls.append(pair) or process_words(*pair))
    error_counts_batch(["只对齐一次的句子"] * 8, ["只对齐一次的橘子"] * 8)
    assert len(calls) == 1


def test_text_and_rewards_do_not_import_torch():
    code = "import asrl.bootstrap, asrl.rewards, asrl.text, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # r and c with a combining caron, u with a combining ring: one letter each once composed
        ("r\u030cec\u030c, du\u030am", "řeč dům"),
        ("PŘÍLIŠ Žluťoučký KŮŇ!", "příliš žluťoučký kůň"),
        ("„Chceš-li…“ – řekl: ‚ne‘;", "chceš li řekl ne"),
        ("O’Connor d'Artagnan", "o'connor d'artagnan"),
        ("Krrr... Silverrr!", "krrr silverrr"),
        ("C:\\WINDOWS\\CONFIG", "c windows config"),
    ],
)
def test_czech_by_hand(text, expected):
    assert normalize_text(text) == expected
    assert text_units(text) == tuple(expected.split())


def test_letters_that_differ_by_an_accent_differ():
    assert error_counts("být", "byt") == ErrorCounts(0, 1, 0, 0)
    assert character_error_counts("být", "byt") == ErrorCounts(2, 1, 0, 0)


def test_composed_and_decomposed_letters_are_the_same_text():
    assert character_error_counts("kůň", "ku\u030an\u030c") == ErrorCounts(3, 0, 0, 0)


def test_character_errors_count_spaces():
    # n-e-v-í-m space j-á: the space and the accent are wrong
    assert character_error_counts("Nevím, já", "nevímja") == ErrorCounts(6, 1, 1, 0)


def test_character_errors_of_empty_texts():
    assert character_error_counts("", "ne") == ErrorCounts(0, 0, 0, 2)
    assert character_error_counts("ne", "...") == ErrorCounts(0, 0, 2, 0)
