import math

import pytest
import torch
from loss_cases import random_batch, value_and_grad

from asrl.losses import (
    LEVELS,
    policy_loss,
)

# KL


def test_one_token_with_kl_by_hand():
    # p = 0.5, reference 0.25: ratio of reference to policy 1/2, k3 = 1/2 + log 2 - 1 = 0.193147; in the other
    # direction it would be 2 - log 2 - 1 = 0.306853. d k3 / d logp = 1 - 1/2. Loss -1 + 0.1 * 0.193147.
    logps = torch.tensor([[math.log(0.5)]], requires_grad=True)
    output = policy_loss(
        logps,
        old_logps=None,
        ref_logps=torch.tensor([[math.log(0.25)]]),
        advantages=torch.tensor([1.0]),
        mask=torch.tensor([[True]]),
        importance_sampling_level="token",
        beta=0.1,
    )
    output.loss.backward()
    assert output.metrics["kl"].value == pytest.approx(0.193147, abs=1e-6)
    assert output.loss.item() == pytest.approx(-1 + 0.0193147, abs=1e-6)
    assert logps.grad.item() == pytest.approx(-1 + 0.05, abs=1e-6)


def test_kl_pulls_with_full_force_far_from_the_reference():
    # log-ratio of 12 nats: d k3 / d logp = 1 - e^12. A clamp at 10 would leave no gradient at all.
    logps = torch.tensor([[-13.0]], dtype=torch.float64, requires_grad=True)
    batch = {"old_logps": None, "advantages": torch.zeros(1), "mask": torch.tensor([[True]])}
    loss, grad = value_and_grad(
        logps,
        ref_logps=torch.tensor([[-1.0]], dtype=torch.float64),
        importance_sampling_level="token",
        beta=1.0,
        **batch,
    )
    assert grad.item() == pytest.approx(1 - math.exp(12), rel=1e-12)
    assert loss.item() == pytest.approx(math.exp(12) - 13, rel=1e-12)


def test_kl_of_nearly_equal_policies_is_positive_in_float32():
    # k3 of 1e-4 is 5e-9: exp(d) - d - 1 in float32 would be 0 or of either sign.
    logps = torch.linspace(-5, -1, 50)[None].requires_grad_()
    batch = {"old_logps": None, "advantages": torch.zeros(1), "mask": torch.ones(1, 50, dtype=torch.bool)}
    output = policy_loss(
        logps, ref_logps=logps.detach() + 1e-4, importance_sampling_level="token", beta=1.0, **batch
    )
    assert output.metrics["kl"].value == pytest.approx(5e-9, rel=0.1)


def test_kl_is_reported_but_not_trained_on_when_beta_is_zero():
    logps, batch = random_batch()
    output = policy_loss(logps, importance_sampling_level="token", **batch)
    without = policy_loss(logps, importance_sampling_level="token", **{**batch, "ref_logps": None})
    assert output.metrics["kl"].value > 0
    assert "kl" not in without.metrics
    assert torch.equal(output.loss, without.loss)


# Old policy


@pytest.mark.parametrize("level", LEVELS)
def test_without_old_logps_every_ratio_is_one_and_the_gradient_is_the_policy_gradient(level):
    # Two rows of 2 and 1 tokens: gradient -A / (length * rows).
    logps = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]], requires_grad=True)
    output = policy_loss(
        logps,
        old_logps=None,
        ref_logps=None,
        advantages=torch.tensor([2.0, -3.0]),
        mask=torch.tensor([[True, True], [True, False]]),
        importance_sampling_level=level,
    )
    output.loss.backward()
    torch.testing.assert_close(logps.grad, torch.tensor([[-0.5, -0.5], [1.5, 0.0]]), atol=1e-6, rtol=0)
    assert output.loss.item() == pytest.approx((-2.0 + 3.0) / 2, abs=1e-6)
    metrics = {name: metric.value for name, metric in output.metrics.items()}
    assert metrics["ratio/mean"] == metrics["ratio/min"] == metrics["ratio/max"] == 1.0
    assert metrics["clip_ratio/any"] == 0.0


def test_old_and_reference_logps_get_no_gradient_even_if_they_are_logps():
    logps, batch = random_batch()
    expected = value_and_grad(
        logps,
        importance_sampling_level="token",
        beta=0.1,
        **{**batch, "old_logps": logps.detach(), "ref_logps": logps.detach()},
    )
    actual = value_and_grad(
        logps,
        importance_sampling_level="token",
        beta=0.1,
        **{**batch, "old_logps": logps, "ref_logps": logps},
    )
    torch.testing.assert_close(actual, expected, atol=0, rtol=0)
