import math

import pytest
import torch

from asrl.advantages import advantages, combine_rewards, gdpo_advantages, group_advantages
from asrl.errors import UserError

NAN = math.nan
SINGLE = ["grpo", "rloo", "reinforce_plus_plus"]
SCALES = ["group", "batch", "none"]


def close(actual, expected, atol=1e-6):
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), atol=atol, rtol=0)


def test_one_hit_in_four_by_hand():
    # Mean 1/4; squared deviations 9/16 + 3/16 = 3/4, over 3: std 1/2 (over 4 it would be 0.433).
    # 0.75 / 0.5001 = 1.49970 and -0.25 / 0.5001 = -0.49990.
    result = group_advantages(torch.tensor([1.0, 0.0, 0.0, 0.0]), 4)
    close(result, [0.75 / 0.5001] + [-0.25 / 0.5001] * 3)


def test_the_reference_experiments_eight_rewards():
    # Mean 0.9723 and std 0.0514 are six transcripts of 1.000 and two of 0.889:
    # (6 + 2 * 0.889) / 8 = 0.97225, sqrt((6 * 0.02775^2 + 2 * 0.08325^2) / 7) = 0.05138.
    rewards = torch.tensor([1.0] * 6 + [0.889] * 2)
    assert rewards.mean().item() == pytest.approx(0.9723, abs=5.1e-5)
    assert rewards.std().item() == pytest.approx(0.0514, abs=5e-5)
    close(group_advantages(rewards, 8), [0.539] * 6 + [-1.617] * 2, atol=5e-4)


def test_one_outlier_in_eight_squeezes_the_rest():
    # With 7 equal rewards and one far off, (R - mean) / std is 1 / sqrt(8) and -7 / sqrt(8).
    rewards = torch.tensor([0.93, 1.0, 0.97, -200.0, 1.0, 0.95, 0.99, 1.0])
    result = group_advantages(rewards, 8)
    assert result[3].item() == pytest.approx(-7 / math.sqrt(8), abs=1e-3)
    assert torch.cat([result[:3], result[4:]]).sub(1 / math.sqrt(8)).abs().max() < 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("estimator", SINGLE)
@pytest.mark.parametrize("scale_rewards", SCALES)
def test_equal_rewards_give_exactly_zero(dtype, estimator, scale_rewards):
    # The mean of equal floats often differs from them. Every reward k/n with n <= 50, for each group size, in
    # a batch with one group that does have signal.
    fractions = torch.tensor(sorted({k / n for n in range(1, 51) for k in range(n + 1)}), dtype=dtype)
    for num_generations in range(2, 17):
        equal = fractions.repeat_interleave(num_generations)
        signal = torch.arange(num_generations, dtype=dtype)
        result = group_advantages(
            torch.cat([signal, equal]), num_generations, scale_rewards=scale_rewards, estimator=estimator
        )
        assert (result[num_generations:] == 0).all()
        assert (result[:num_generations] != 0).any()
        alone = group_advantages(equal, num_generations, scale_rewards=scale_rewards, estimator=estimator)
        assert (alone == 0).all()


def test_equal_rewards_give_exactly_zero_under_gdpo():
    fractions = torch.tensor(sorted({k / n for n in range(1, 51) for k in range(n + 1)}))
    for num_generations in (2, 3, 7, 8, 16):
        equal = torch.stack([fractions, fractions.flip(0)], 1).repeat_interleave(num_generations, 0)
        signal = torch.arange(2.0 * num_generations).view(-1, 2)
        result = gdpo_advantages(torch.cat([signal, equal]), torch.tensor([0.7, 0.4]), num_generations)
        assert (result[num_generations:] == 0).all()
        assert (result[:num_generations] != 0).any()


def test_scaling_by_group_batch_and_none_by_hand():
    # Groups (0, 2) and (0, 4): centred -1 1 -2 2; stds sqrt(2) and sqrt(8).
    # Batch 0 2 0 4: mean 1.5, squares 2.25 + 0.25 + 2.25 + 6.25 = 11, over 3: std sqrt(11/3) = 1.914854.
    rewards = torch.tensor([0.0, 2.0, 0.0, 4.0])
    close(group_advantages(rewards, 2, scale_rewards="none"), [-1.0, 1.0, -2.0, 2.0], atol=0)
    a, b = 1 / (math.sqrt(2) + 1e-4), 2 / (math.sqrt(8) + 1e-4)
    close(group_advantages(rewards, 2, scale_rewards="group"), [-a, a, -b, b])
    c = 1 / (math.sqrt(11 / 3) + 1e-4)
    close(group_advantages(rewards, 2, scale_rewards="batch"), [-c, c, -2 * c, 2 * c])


def test_rloo_subtracts_the_mean_of_the_other_rows():
    # 1 2 6: others' means 4, 3.5, 1.5. Std of 1 2 6: mean 3, squares 4 + 1 + 9 = 14, over 2: sqrt(7).
    rewards = torch.tensor([1.0, 2.0, 6.0])
    result = group_advantages(rewards, 3, estimator="rloo", scale_rewards="none")
    close(result, [-3.0, -1.5, 4.5])
    std = math.sqrt(7) + 1e-4
    close(group_advantages(rewards, 3, estimator="rloo"), [-3 / std, -1.5 / std, 4.5 / std])


@pytest.mark.parametrize("scale_rewards", SCALES)
def test_reinforce_plus_plus_divides_by_the_std_of_the_batchs_centred_rewards(scale_rewards):
    # Groups (0, 2) and (10, 14): centred -1 1 -2 2, squares 10, over 3: std sqrt(10/3). The std of the
    # rewards themselves, with the 12 between the groups, would be 6.6.
    rewards = torch.tensor([0.0, 2.0, 10.0, 14.0])
    result = group_advantages(rewards, 2, estimator="reinforce_plus_plus", scale_rewards=scale_rewards)
    scale = 1 / (math.sqrt(10 / 3) + 1e-4)
    close(result, [-scale, scale, -2 * scale, 2 * scale])


@pytest.mark.parametrize("estimator", [*SINGLE, "gdpo"])
@pytest.mark.parametrize("scale_rewards", SCALES)
def test_order_of_rows_and_of_groups_does_not_matter(estimator, scale_rewards):
    generator = torch.Generator().manual_seed(4)
    values = torch.rand(6, 8, 2, generator=generator)
    values[1, :3, 0] = NAN
    order = torch.randperm(8, generator=generator)
    groups = torch.randperm(6, generator=generator)
    options = {"scale_rewards": scale_rewards, "estimator": estimator}
    weights = torch.tensor([1.0, 0.5])
    result = advantages(values.flatten(0, 1), weights, 8, **options).view(6, 8)
    shuffled = advantages(values[groups][:, order].flatten(0, 1), weights, 8, **options).view(6, 8)
    torch.testing.assert_close(shuffled, result[groups][:, order], atol=1e-6, rtol=0)


@pytest.mark.parametrize("estimator", SINGLE)
def test_other_groups_do_not_matter_unless_the_scale_is_the_batchs(estimator):
    rewards = torch.tensor([0.2, 0.9, 0.4, 0.1, 5.0, -3.0])
    alone = group_advantages(rewards[:3], 3, estimator=estimator)
    together = group_advantages(rewards, 3, estimator=estimator)[:3]
    assert torch.equal(alone, together) == (estimator != "reinforce_plus_plus")


def test_integer_rewards_and_a_single_generation_are_legal():
    close(group_advantages(torch.tensor([0, 2]), 2, scale_rewards="none"), [-1.0, 1.0])
    for estimator in SINGLE:
        assert group_advantages(torch.tensor([3.0]), 1, estimator=estimator).tolist() == [0.0]
    assert gdpo_advantages(torch.tensor([[3.0]]), torch.tensor([1.0]), 1).tolist() == [0.0]


def test_rewards_that_do_not_apply_are_left_out_of_the_sum():
    values = torch.tensor([[1.0, 0.5], [1.0, NAN], [NAN, NAN], [NAN, -1.0]])
    close(combine_rewards(values, torch.tensor([2.0, 10.0])), [7.0, 2.0, 0.0, -10.0], atol=0)
    # A reward that is switched off is not resurrected by NaN, nor the other way round.
    close(combine_rewards(values, torch.tensor([0.0, 1.0])), [0.5, 0.0, 0.0, -1.0], atol=0)


def test_gdpo_by_hand():
    # Reward 1: 0 1, mean 0.5, std sqrt(0.5). Reward 2: 0 10, mean 5, std sqrt(50). Both normalise to
    # -+1/sqrt(2) (but for the 1e-4), whatever their spread. In the second group only reward 2 differs, and
    # the other way round. With weights 3 and 1: rows (-4, 4, 1, -1) / sqrt(2); their squares 16 + 16 + 1 + 1
    # = 34, halved and over 3: std sqrt(17/3). Result (-4, 4, 1, -1) / sqrt(34/3) = (-4, 4, 1, -1) / 3.366502.
    values = torch.tensor([[0.0, 0.0], [1.0, 10.0], [1.0, 10.0], [1.0, 0.0]])
    result = gdpo_advantages(values, torch.tensor([3.0, 1.0]), 2)
    expected = [-4 / math.sqrt(34 / 3), 4 / math.sqrt(34 / 3), 1 / math.sqrt(34 / 3), -1 / math.sqrt(34 / 3)]
    # The two offsets of 1e-4 change the result by 2e-4 of its size.
    close(result, expected, atol=4e-4)
    std = [math.sqrt(0.5) + 1e-4, math.sqrt(50) + 1e-4]
    rows = [-1.5 / std[0] - 5 / std[1], 1.5 / std[0] + 5 / std[1], 5 / std[1], -5 / std[1]]
    batch_std = math.sqrt(sum(row**2 for row in rows) / 3) + 1e-4
    close(result, [row / batch_std for row in rows])


def test_gdpo_keeps_a_reward_of_small_spread_alive_where_their_sum_drowns_it():
    # Reward 1 orders rows 0 < 1 within 0.01, reward 2 has them equal but spreads the rest by 100.
    values = torch.tensor([[0.00, 0.0], [0.01, 0.0], [0.00, 100.0], [0.01, 100.0]])
    weights = torch.tensor([1.0, 1.0])
    summed = advantages(values, weights, 4, estimator="grpo")
    decoupled = advantages(values, weights, 4, estimator="gdpo")
    assert (summed[1] - summed[0]) < 1e-3
    assert (decoupled[1] - decoupled[0]) > 1


def test_gdpo_ignores_rewards_where_they_do_not_apply():
    # Reward 1 applies to rows 0-2 only: 0 1 2, mean 1, std 1. Reward 2 applies to row 3 alone: no signal.
    values = torch.tensor([[0.0, NAN], [1.0, NAN], [2.0, NAN], [NAN, 7.0]])
    result = gdpo_advantages(values, torch.tensor([1.0, 1.0]), 4)
    # Rows -1 0 1 0 (over 1.0001): batch std sqrt(2/3).
    row = 1 / 1.0001
    scaled = row / (math.sqrt(2 / 3) * row + 1e-4)
    close(result, [-scaled, 0.0, scaled, 0.0])
    everywhere = torch.full((4, 2), NAN)
    assert gdpo_advantages(everywhere, torch.tensor([1.0, 1.0]), 4).tolist() == [0.0] * 4


def test_one_entry_chooses_the_estimator():
    values = torch.tensor([[1.0, 4.0], [0.0, NAN], [3.0, 1.0], [2.0, 2.0]])
    weights = torch.tensor([1.0, 0.5])
    rewards = torch.tensor([3.0, 0.0, 3.5, 3.0])
    for estimator in SINGLE:
        for scale_rewards in SCALES:
            options = {"scale_rewards": scale_rewards, "estimator": estimator}
            torch.testing.assert_close(
                advantages(values, weights, 2, **options), group_advantages(rewards, 2, **options)
            )
    assert torch.equal(advantages(values, weights, 2, estimator="gdpo"), gdpo_advantages(values, weights, 2))


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(UserError, match="estimator: unknown 'rlo'; did you mean 'rloo'"):
        group_advantages(torch.zeros(2), 2, estimator="rlo")
    with pytest.raises(UserError, match="scale_rewards: unknown 'groups'; did you mean 'group'"):
        advantages(torch.zeros(2, 1), torch.ones(1), 2, scale_rewards="groups")
