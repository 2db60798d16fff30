import pytest

from asrl.alignment import Step, align, align_diagonal_first, count_steps, show
from asrl.text import ErrorCounts, error_counts, text_units


def kinds(steps):
    return "".join(step.kind[0] for step in steps)


@pytest.mark.parametrize("aligned", [align, align_diagonal_first])
def test_units_are_lined_up(aligned):
    # Three steps with one error each; no other alignment has so few.
    steps = aligned("打开空调吗", "打空条吗啊")
    assert steps == [
        Step("hit", "打", "打"),
        Step("deletion", "开", ""),
        Step("hit", "空", "空"),
        Step("substitution", "调", "条"),
        Step("hit", "吗", "吗"),
        Step("insertion", "", "啊"),
    ]


@pytest.mark.parametrize("aligned", [align, align_diagonal_first])
@pytest.mark.parametrize(
    ("reference", "hypothesis", "expected"), [("", "", ""), ("", "ab", "ii"), ("ab", "", "dd")]
)
def test_an_empty_side_leaves_deletions_or_insertions(aligned, reference, hypothesis, expected):
    assert kinds(aligned(tuple(reference), tuple(hypothesis))) == expected


def test_of_equally_good_alignments_upstream_takes_the_diagonal():
    # "ab" against "bc": two substitutions, or a deletion of "a" and an insertion of "c".
    assert kinds(align_diagonal_first("ab", "bc")) == "ss"


def test_of_equally_good_alignments_upstream_then_takes_a_deletion():
    # Three errors, no diagonal of lowest cost at the end of "aba" against "ccab": delete the last "a", hit
    # "ab", insert "cc"; or insert the last "b", hit "a", substitute twice.
    assert kinds(align_diagonal_first("aba", "ccab")) == "iihhd"


def test_counts_of_an_alignment_are_those_of_the_error_rate():
    reference, hypothesis = "我有的时候 hello world", "我有时候啊 hello 的 wold"
    steps = align(text_units(reference), text_units(hypothesis))
    assert count_steps(steps) == error_counts(reference, hypothesis)
    assert count_steps([]) == ErrorCounts(0, 0, 0, 0)


def test_a_view_keeps_columns_of_wide_and_narrow_characters_in_line():
    steps = align(text_units("打开空调 hello world"), text_units("打空条 hello 的 wold"))
    assert show(steps).splitlines() == [
        "REF  打 开 空 调 hello    world",
        "HYP  打    空 条 hello 的 wold",
        "        D     S        I  S",
    ]


def test_a_wide_view_is_broken_into_blocks():
    steps = align("abcd", "abxd")
    # 5 columns of margin, then 2 for each letter: two letters fit into 9.
    assert show(steps, width=9).splitlines() == [
        "REF  a b",
        "HYP  a b",
        "",
        "REF  c d",
        "HYP  x d",
        "     S",
    ]
