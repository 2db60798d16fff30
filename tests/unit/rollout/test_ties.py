"""The tests of the drafted engine forgive ties; these make sure that they forgive nothing else."""

import pytest
import torch
from ties import TIE, margin

from asrl.rollout.settings import SamplingSettings, greedy

# Probabilities 0.1, 0.2, 0.7 at temperature 1.
LOGITS = torch.tensor([1.0, 2, 7]).double().log()


def settings(top_k=0, top_p=1.0):
    return SamplingSettings(temperature=1.0, top_k=top_k, top_p=top_p, max_new_tokens=1, seed=0)


@pytest.mark.parametrize(
    ("uniform", "drawn", "expected"),
    [
        (0.25, (1, 2), 0.05),
        (0.31, (2, 1), 0.01),
        (0.1 + 1e-9, (1, 0), 1e-9),
        (0.3 - 1e-8, (1, 2), 1e-8),
        (0.1 + 1e-9, (1, 2), 0.2),  # on a boundary, but not of the two
        (0.1 + 1e-9, (0, 2), 0.2),
    ],
)
def test_two_draws_are_apart_by_the_distance_to_the_interval_of_the_other(uniform, drawn, expected):
    assert margin(LOGITS, uniform, drawn, settings()) == pytest.approx(expected, rel=1e-4)


def test_a_token_that_is_not_kept_is_no_tie():
    assert margin(LOGITS, 0.0, (1, 0), settings(top_k=2)) == pytest.approx(0.6931, abs=1e-4)  # of top-k
    assert margin(LOGITS, 0.0, (1, 0), settings(top_p=0.89)) == pytest.approx(0.01)  # of 0.89 and 0.9


def test_a_greedy_draw_hangs_by_the_gap_of_its_logits():
    assert margin(LOGITS, 0.5, (1, 0), greedy(1)) == pytest.approx(0.6931, abs=1e-4)  # log(2 / 1)


def test_a_draw_may_hang_by_which_tokens_are_kept():
    # Top-p: 0.7 alone reaches 0.7 or just does not. The boundary at 0.5 of the draw is far away.
    assert margin(LOGITS, 0.5, (1, 2), settings(top_p=0.7)) < TIE
    assert margin(LOGITS, 0.5, (1, 2), settings(top_p=0.8)) == pytest.approx(0.1)  # of 0.7 and 0.9
    tied = torch.tensor([1.0, 1 + 1e-9, 7]).double().log()
    assert margin(tied, 0.5, (0, 1), settings(top_k=2)) < TIE
    # 2 and 7 of 9 are kept: the boundary is at 0.2222, and 1 is far below 2.
    assert margin(LOGITS, 0.5, (1, 2), settings(top_k=2)) == pytest.approx(0.5 - 2 / 9)
