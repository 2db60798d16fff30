import pytest
import torch
from loss_cases import options_of, random_batch, value_and_grad

from asrl.losses import (
    LEVELS,
    LOSS_TYPES,
    importance_log_weights,
    policy_loss,
)


def effective_weights(ratios, advantages, level, **options):
    """-T * d loss / d logp of one row, whose ratios and advantages are given per token."""
    logps = torch.tensor([[-0.7] * len(ratios)], dtype=torch.float64, requires_grad=True)
    old_logps = logps.detach() - torch.tensor([ratios], dtype=torch.float64).log()
    advantages = torch.tensor([advantages], dtype=torch.float64)
    output = policy_loss(
        logps,
        old_logps=old_logps,
        ref_logps=None,
        advantages=advantages,
        mask=torch.ones(1, len(ratios), dtype=torch.bool),
        importance_sampling_level=level,
        **options,
    )
    output.loss.backward()
    return (-len(ratios) * logps.grad[0]).tolist(), output


# Importance weights


def test_sequence_weight_is_the_geometric_mean_of_the_ratios():
    # Ratios 1.14, 1, 1.5, 1: exp(mean log r) = 1.71^(1/4) = 1.143534; the arithmetic mean would be 1.16.
    old = torch.tensor([[0.5, 0.9, 0.6, 0.95]]).log()
    logps = torch.tensor([[0.57, 0.9, 0.9, 0.95]]).log()
    mask = torch.ones(1, 4, dtype=torch.bool)
    for level in ("sequence", "sequence_token"):
        weights = importance_log_weights(logps, old, mask, level).exp()
        torch.testing.assert_close(weights, torch.full((1, 4), 1.143534), atol=1e-6, rtol=0)
    weights = importance_log_weights(logps, old, mask, "token").exp()
    torch.testing.assert_close(weights, torch.tensor([[1.14, 1.0, 1.5, 1.0]]), atol=1e-6, rtol=0)


def test_sequence_weight_averages_over_the_rows_own_tokens():
    # Row 0: log-ratios 0.3 and 0.1 of two tokens, mean 0.2, whatever is in the padding; row 1 has no token.
    logps = torch.tensor([[0.3, 0.1, 5.0], [7.0, 7.0, 7.0]])
    mask = torch.tensor([[True, True, False], [False, False, False]])
    for level in ("sequence", "sequence_token"):
        weights = importance_log_weights(logps, torch.zeros(2, 3), mask, level)
        torch.testing.assert_close(weights, torch.tensor([[0.2, 0.2, 0.0], [0.0] * 3]), atol=1e-6, rtol=0)


# One sentence of four tokens, epsilon 0.2


def test_drifting_token_is_dropped_at_token_level_and_averaged_at_sequence_level():
    ratios, ones = [1.14, 1.0, 1.5, 1.0], [1.0] * 4
    assert effective_weights(ratios, ones, "token")[0] == pytest.approx([1.14, 1.0, 0.0, 1.0], abs=1e-12)
    s = 1.71**0.25  # 1.1435, inside the bound of 1.2
    for level in ("sequence", "sequence_token"):
        assert effective_weights(ratios, ones, level)[0] == pytest.approx([s] * 4, abs=1e-12)


def test_sentence_beyond_the_bound_is_dropped_whole_at_sequence_level():
    # 1.5 * 1.5 * 1 * 1 = 2.25, its fourth root 1.2247 is above 1.2.
    ratios, ones = [1.5, 1.5, 1.0, 1.0], [1.0] * 4
    assert effective_weights(ratios, ones, "token")[0] == pytest.approx([0.0, 0.0, 1.0, 1.0], abs=1e-12)
    for level in ("sequence", "sequence_token"):
        weights, output = effective_weights(ratios, ones, level)
        assert weights == [0.0] * 4
        assert output.metrics["clip_ratio/high"].value == 1.0
        assert output.metrics["ratio/mean"].value == pytest.approx(1.224745, abs=1e-6)


def test_negative_advantage_drops_a_fallen_token_at_token_level_only():
    # 0.7 is below 0.8; s = 0.7^(1/4) = 0.914691 is not.
    ratios, minus = [0.7, 1.0, 1.0, 1.0], [-1.0] * 4
    weights, output = effective_weights(ratios, minus, "token")
    assert weights == pytest.approx([0.0, -1.0, -1.0, -1.0], abs=1e-12)
    assert output.metrics["clip_ratio/low"].value == 0.25
    for level in ("sequence", "sequence_token"):
        assert effective_weights(ratios, minus, level)[0] == pytest.approx([-0.914691] * 4, abs=1e-6)


def test_advantage_per_token_stays_on_its_token_under_sequence_token_only():
    ratios, advantages = [1.14, 1.0, 1.5, 1.0], [1.0, 1.0, 0.2, 1.0]
    s = 1.71**0.25
    spread, _ = effective_weights(ratios, advantages, "sequence")
    kept, _ = effective_weights(ratios, advantages, "sequence_token")
    assert spread == pytest.approx([0.8 * s] * 4, abs=1e-12)  # 0.915: the mean advantage is 3.2 / 4
    assert kept == pytest.approx([s, s, 0.2 * s, s], abs=1e-12)  # 1.144 1.144 0.229 1.144
    assert sum(spread) == pytest.approx(3.66, abs=1e-3)
    assert sum(kept) == pytest.approx(sum(spread), abs=1e-12)


@pytest.mark.parametrize("loss_type", [t for t in LOSS_TYPES if t != "cispo"])
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_sequence_levels_agree_where_the_advantage_is_uniform(loss_type, dtype, atol):
    logps, batch = random_batch(dtype)
    results = [
        value_and_grad(logps, importance_sampling_level=level, beta=0.04, **batch, **options_of(loss_type))
        for level in ("sequence", "sequence_token")
    ]
    torch.testing.assert_close(results[0], results[1], atol=atol, rtol=0)
    if loss_type != "sapo":
        flags = policy_loss(
            logps, importance_sampling_level="sequence", **batch, **options_of(loss_type)
        ).metrics
        assert flags["clip_ratio/low_sequence"].value > 0
        assert flags["clip_ratio/high_sequence"].value > 0
        assert flags["clip_ratio/any_sequence"].value < 1


# Clipping


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "weight", "flag"),
    [
        # -min(w A, clip(w, 0.8, 1.3) A) with epsilon 0.2 and epsilon_high 0.3.
        (1.5, 2.0, -2.6, 0.0, "high"),  # min(3, 2.6)
        (0.5, 2.0, -1.0, 1.0, None),  # min(1, 1.6): rising back is rewarded
        (1.5, -2.0, 3.0, -3.0, None),  # min(-3, -2.6)
        (0.5, -2.0, 1.6, 0.0, "low"),  # min(-1, -1.6)
        (1.25, 2.0, -2.5, 2.5, None),  # within 1.3, though beyond 1.2
        (1.5, 0.0, 0.0, 0.0, None),
    ],
)
@pytest.mark.parametrize("level", LEVELS)
def test_four_cases_of_ratio_and_sign(ratio, advantage, loss, weight, flag, level):
    weights, output = effective_weights([ratio], [advantage], level, epsilon_high=0.3)
    assert output.loss.item() == pytest.approx(loss, abs=1e-12)
    assert weights == pytest.approx([weight], abs=1e-12)
    values = {name: output.metrics[f"clip_ratio/{name}"].value for name in ("low", "high", "any")}
    assert values == {
        "low": float(flag == "low"),
        "high": float(flag == "high"),
        "any": float(flag is not None),
    }


def test_epsilon_high_defaults_to_epsilon():
    assert effective_weights([1.25], [1.0], "token")[0] == [0.0]
    assert effective_weights([1.25], [1.0], "token", epsilon=0.3)[0] == pytest.approx([1.25], abs=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "delta", "loss", "weight", "is_high"),
    [
        # -min(min(w, delta) A, clip(w, 0.8, 1.2) A)
        (3.0, -1.0, 2.0, 2.0, 0.0, True),  # min(-2, -1.2): the second bound
        (1.9, -1.0, 2.0, 1.9, -1.9, False),
        (3.0, 1.0, 2.0, -1.2, 0.0, True),  # min(2, 1.2): delta changes nothing
        (1.15, 1.0, 1.1, -1.1, 0.0, True),  # a delta within the range caps first
        (1.15, -1.0, 1.1, 1.15, -1.15, False),  # min(-1.1, -1.15)
    ],
)
def test_delta_caps_the_first_term(ratio, advantage, delta, loss, weight, is_high):
    weights, output = effective_weights([ratio], [advantage], "token", delta=delta)
    assert output.loss.item() == pytest.approx(loss, abs=1e-12)
    assert weights == pytest.approx([weight], abs=1e-12)
    assert output.metrics["clip_ratio/high"].value == float(is_high)


def test_cispo_caps_the_weight_but_keeps_the_gradient():
    # logp -0.7: loss -min(w, 2) A logp; d loss / d logp = -min(w, 2) A, the weight itself has no gradient.
    for ratio, capped in [(1.5, 1.5), (3.0, 2.0)]:
        weights, output = effective_weights([ratio], [1.0], "token", loss_type="cispo", epsilon_high=2.0)
        assert weights == pytest.approx([capped], abs=1e-12)
        assert output.loss.item() == pytest.approx(0.7 * capped, abs=1e-12)
        assert output.metrics["clip_ratio/high"].value == float(ratio > 2)


def test_sapo_gate_by_hand():
    # At w = 1 the gate is 4/t * 1/2 = 2/t and its slope 4/t * t/4 = 1: the plain policy gradient.
    weights, output = effective_weights([1.0], [1.0], "token", loss_type="sapo")
    assert weights == pytest.approx([1.0], abs=1e-12)
    assert output.loss.item() == pytest.approx(-2.0, abs=1e-12)
    weights, output = effective_weights([1.0], [-1.0], "token", loss_type="sapo")
    assert weights == pytest.approx([-1.0], abs=1e-12)
    assert output.loss.item() == pytest.approx(2 / 1.05, abs=1e-12)
    # At w = 3, A = 1: slope 4 * s (1 - s) with s = sigmoid(2) = 0.880797, times d w / d logp = 3: 1.259924.
    weights, output = effective_weights([3.0], [1.0], "token", loss_type="sapo")
    assert weights == pytest.approx([1.259924], abs=1e-6)
    assert output.metrics["clip_ratio/any"].value == 0.0
