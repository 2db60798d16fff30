import pytest
import torch

from asrl.statistics import (
    completion_statistics,
    diversity_statistics,
    reward_statistics,
    text_statistics,
)

NAN = float("nan")


def test_reward_statistics_by_hand():
    values = torch.tensor([[1.0, NAN], [3.0, NAN], [2.0, 5.0], [2.0, 7.0]])
    totals = torch.tensor([1.0, 3.0, 4.5, 4.5])
    advantages = torch.tensor([-0.7, 0.7, 0.0, 0.0])
    statistics = reward_statistics(values, totals, advantages, ["accuracy", "hotword"], 2)
    assert statistics == pytest.approx(
        {
            "reward/mean": 13 / 4,
            "reward/std_within_group": 2**0.5 / 2,  # sqrt((1 + 1) / 1) and 0
            "reward/frac_zero_std": 0.5,
            "advantage/abs_mean": 0.35,
            "reward/accuracy": 2.0,
            "reward/hotword": 6.0,  # of the two rows it applies to
        },
        abs=1e-6,
    )


def test_a_reward_that_applies_to_no_row_is_left_out():
    statistics = reward_statistics(
        torch.tensor([[NAN], [NAN]]), torch.zeros(2), torch.zeros(2), ["hotword"], 2
    )
    assert "reward/hotword" not in statistics


def test_equal_rewards_are_flat_although_their_std_is_not_zero():
    # In float32 eight times 0.9 have a standard deviation of 6e-8.
    totals = torch.full((8,), 0.9)
    statistics = reward_statistics(totals[:, None], totals, torch.zeros(8), ["accuracy"], 8)
    assert statistics["reward/frac_zero_std"] == 1


def test_diversity_ignores_what_stands_in_the_padding():
    tokens = torch.tensor([[5, 9, 1], [5, 9, 2], [5, 9, 3], [6, 9, 0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 0], [1, 1, 1], [1, 1, 0]]).bool()
    # First group: 5 9 twice. Second: 5 9 3 and 6 9.
    assert diversity_statistics(tokens, mask, 2) == {
        "group/unique_transcripts": 1.5,
        "group/frac_identical": 0.5,
        "group/tree_share": pytest.approx(7 / 9),  # nodes 5, 59; 5, 59, 593, 6, 69 for 2 + 2 + 3 + 2 tokens
    }


def test_completion_statistics_by_hand():
    mask = torch.tensor([[1, 0, 0], [1, 1, 1], [1, 1, 0], [1, 1, 0]]).bool()
    is_finished = torch.tensor([True, False, True, True])
    assert completion_statistics(mask, is_finished) == {
        "completion/num_tokens_mean": 2.0,
        "completion/num_tokens_max": 3.0,
        "completion/frac_truncated": 0.25,
    }


def test_text_statistics_by_hand():
    # errors, reference tokens, loop, hotword hits, misses, insertions
    counts = torch.tensor([[2.0, 5, 0, 1, 0, 0], [4.0, 3, 1, 0, 2, 1]])
    assert text_statistics(counts) == {
        "cer": 6 / 8,  # of the corpus; the mean of the rows' rates would be 0.87
        "loop_rate": 0.5,
        "hotword/false_insertions": 0.5,
        "hotword/recall": 1 / 3,
    }


def test_recall_is_left_out_without_hotwords():
    assert "hotword/recall" not in text_statistics(torch.tensor([[0.0, 5, 0, 0, 0, 1]]))


def test_a_reference_without_tokens_does_not_divide_by_zero():
    assert text_statistics(torch.tensor([[3.0, 0, 0, 0, 0, 0]]))["cer"] == 3
