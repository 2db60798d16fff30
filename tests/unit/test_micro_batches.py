from itertools import groupby, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asrl.micro_batches import cut_rows, replica_positions, rows_with_signal, tree_positions

# Transcripts of two utterances with prompts of 10 and 20 tokens (0 is the end token).
TRANSCRIPTS = [[1, 2, 3, 0], [1, 2, 4, 0], [1, 2, 3, 0], [5, 0], [0]]
ROW_UTTERANCE = [0, 0, 0, 1, 1]
NUM_PROMPT = [10, 20]


def tokens_in(transcripts):
    """Count the tokens of rows."""
    return lambda rows: sum(transcripts[row] for row in rows)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([0], 10 + 3),  # 1 2 3
        ([0, 1], 10 + 4),  # 1 2 3 4
        ([0, 1, 2], 10 + 4),
        ([4], 20),  # the end token alone
        ([3, 4], 20 + 1),
        ([0, 3], 2 * 21),  # two rows as long as the longer one
    ],
)
def test_a_tree_counts_its_prompt_and_every_beginning_once(rows, expected):
    assert tree_positions(TRANSCRIPTS, ROW_UTTERANCE, NUM_PROMPT)(rows) == expected


@pytest.mark.parametrize(
    ("rows", "expected"), [([0], 10 + 4), ([0, 1, 2], 3 * 14), ([4], 20 + 1), ([0, 3], 2 * 22)]
)
def test_a_replica_counts_its_prompt_and_its_transcript(rows, expected):
    assert replica_positions(TRANSCRIPTS, ROW_UTTERANCE, NUM_PROMPT)(rows) == expected


def test_rows_are_cut_at_the_number_of_rows_between_utterances():
    count = tokens_in([1] * 6)
    cut = {n: cut_rows([0, 0, 1, 1, 2, 2], max_rows=n, max_positions=None, count=count) for n in (6, 5, 4, 2)}
    assert cut[6] == [[0, 1, 2, 3, 4, 5]]
    assert cut[5] == cut[4] == [[0, 1, 2, 3], [4, 5]]
    assert cut[2] == [[0, 1], [2, 3], [4, 5]]


def test_an_utterance_of_more_rows_than_fit_is_cut_too():
    count = tokens_in([1] * 6)
    assert cut_rows([0] * 5, max_rows=2, max_positions=None, count=count) == [[0, 1], [2, 3], [4]]
    # Its rows fill up what came before, and its last ones leave room for what follows.
    assert cut_rows([0, 1, 1, 1, 1, 2], max_rows=3, max_positions=None, count=count) == [[0, 1, 2], [3, 4, 5]]


def test_rows_are_cut_at_the_number_of_positions():
    count = tokens_in([3, 3, 2, 2, 9])
    assert cut_rows([0, 0, 1, 1, 2], max_rows=9, max_positions=10, count=count) == [[0, 1, 2, 3], [4]]
    assert cut_rows([0, 0, 1, 1, 2], max_rows=9, max_positions=9, count=count) == [[0, 1], [2, 3], [4]]


def test_a_row_too_long_for_any_part_is_a_part_of_its_own():
    count = tokens_in([1, 50, 1, 1])
    assert cut_rows([0, 0, 0, 0], max_rows=9, max_positions=5, count=count) == [[0], [1], [2, 3]]


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=6),  # rows of each utterance
    st.data(),
    st.integers(1, 8),
    st.one_of(st.none(), st.integers(1, 60)),
)
def test_parts_respect_both_bounds_and_keep_utterances_together(num_rows, data, max_rows, max_positions):
    row_utterance = [utterance for utterance, num in enumerate(num_rows) for _ in range(num)]
    transcripts = data.draw(
        st.lists(
            st.lists(st.integers(1, 3), min_size=1, max_size=8),
            min_size=len(row_utterance),
            max_size=len(row_utterance),
        )
    )
    num_prompt = data.draw(st.lists(st.integers(1, 9), min_size=len(num_rows), max_size=len(num_rows)))
    count = tree_positions(transcripts, row_utterance, num_prompt)

    def fits(rows):
        return len(rows) <= max_rows and (max_positions is None or count(rows) <= max_positions)

    parts = cut_rows(row_utterance, max_rows=max_rows, max_positions=max_positions, count=count)
    assert [row for part in parts for row in part] == list(range(len(row_utterance)))
    assert all(part and (fits(part) or len(part) == 1) for part in parts)
    # An utterance that fits into a part is in one.
    for _, rows in groupby(range(len(row_utterance)), key=lambda row: row_utterance[row]):
        block = list(rows)
        assert not fits(block) or any(set(block) <= set(part) for part in parts)
    # No part could have taken the utterance (or the row) that begins the next one.
    for part, following in pairwise(parts):
        block = [row for row in following if row_utterance[row] == row_utterance[following[0]]]
        whole = [row for row, other in enumerate(row_utterance) if other == row_utterance[following[0]]]
        piece = block if fits(whole) else following[:1]
        assert not fits(part + piece)


def test_rows_of_an_utterance_with_any_advantage_have_signal():
    # Utterance 1 has one row off the mean; utterances 0 and 2 have none.
    advantages = torch.tensor([0.0, 0, 0, -1e-9, 0, 0, 0])
    has_signal = rows_with_signal(advantages, torch.tensor([0, 0, 1, 1, 1, 2, 2]))
    assert has_signal.tolist() == [False, False, True, True, True, False, False]


def test_an_advantage_that_is_not_a_number_is_not_hidden():
    has_signal = rows_with_signal(torch.tensor([float("nan"), 0.0]), torch.tensor([1, 0]))
    assert has_signal.tolist() == [True, False]
