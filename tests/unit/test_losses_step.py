import math

import pytest
import torch
from loss_cases import options_of, random_batch

from asrl.errors import UserError
from asrl.losses import (
    LEVELS,
    LOSS_TYPES,
    Metric,
    aggregation_weights,
    mean_metric,
    policy_loss,
)

INF, NAN = math.inf, math.nan


# Padding and precision


@pytest.mark.parametrize("garbage", [1e4, -1e4, INF, -INF, NAN])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_padding_changes_nothing(garbage, level, loss_type):
    logps, batch = random_batch()
    batch["advantages"] = batch["advantages"][:, None].expand(6, 9).contiguous()
    options = {"importance_sampling_level": level, "beta": 0.04, **options_of(loss_type)}
    clean = policy_loss(logps, **batch, **options)
    clean_grad = torch.autograd.grad(clean.loss, logps)[0]
    for names in (["old_logps"], ["ref_logps"], ["advantages"], ["old_logps", "ref_logps", "logps"]):
        dirty = {**batch, "logps": logps.detach()}
        for name in names:
            dirty[name] = dirty[name].masked_fill(~batch["mask"], garbage)
        dirty_logps = dirty.pop("logps").requires_grad_()
        output = policy_loss(dirty_logps, **dirty, **options)
        assert torch.equal(output.loss, clean.loss)
        assert torch.equal(torch.autograd.grad(output.loss, dirty_logps)[0], clean_grad)
        assert {k: m.value for k, m in output.metrics.items()} == {
            k: m.value for k, m in clean.metrics.items()
        }
    assert (clean_grad[~batch["mask"]] == 0).all()


# Without sequence_token and cispo, which stop gradients: their gradient is not that of their value.
@pytest.mark.parametrize("loss_type", [name for name in LOSS_TYPES if name != "cispo"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_gradient_agrees_with_finite_differences_between_the_bounds(loss_type, level):
    logps, batch = random_batch(drift=0.03)
    options = {"importance_sampling_level": level, "beta": 0.1, **options_of(loss_type)}
    assert torch.autograd.gradcheck(lambda x: policy_loss(x, **batch, **options).loss, logps)


@pytest.mark.parametrize(
    ("given", "computed"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
    ],
)
def test_precision_of_the_loss(given, computed):
    logps, batch = random_batch(given)
    assert policy_loss(logps, importance_sampling_level="token", beta=0.1, **batch).loss.dtype == computed


def test_a_mask_of_integers_selects_the_same_tokens():
    logps, batch = random_batch()
    expected = policy_loss(logps, importance_sampling_level="sequence", **batch).loss
    batch["mask"] = batch["mask"].long()
    assert torch.equal(policy_loss(logps, importance_sampling_level="sequence", **batch).loss, expected)


@pytest.mark.parametrize("rows", [0, 2])
def test_no_token_at_all_gives_a_loss_of_zero_with_a_gradient_of_zero(rows):
    # A rank with nothing left still calls backward.
    logps = torch.zeros(rows, 3, requires_grad=True)
    for level in LEVELS:
        for loss_type in LOSS_TYPES:
            output = policy_loss(
                logps,
                old_logps=None,
                ref_logps=torch.zeros(rows, 3),
                advantages=torch.ones(rows),
                mask=torch.zeros(rows, 3, dtype=torch.bool),
                importance_sampling_level=level,
                beta=0.1,
                **options_of(loss_type),
            )
            assert output.loss.item() == 0
            assert (torch.autograd.grad(output.loss, logps)[0] == 0).all()
            assert math.isnan(output.metrics["ratio/min"].value)


# Aggregation


@pytest.mark.parametrize(
    ("loss_type", "expected"),
    [
        # Two of three rows here, of 2 and 1 tokens; 5 tokens in the step; at most 10 tokens a row.
        ("grpo", [[1 / 6, 1 / 6], [1 / 3, 0.0]]),
        ("sapo", [[1 / 6, 1 / 6], [1 / 3, 0.0]]),
        ("dapo", [[0.2, 0.2], [0.2, 0.0]]),
        ("cispo", [[0.2, 0.2], [0.2, 0.0]]),
        ("bnpo", [[0.2, 0.2], [0.2, 0.0]]),
        ("dr_grpo", [[1 / 30, 1 / 30], [1 / 30, 0.0]]),
    ],
)
def test_aggregation_weights_by_hand(loss_type, expected):
    mask = torch.tensor([[True, True], [True, False]])
    weights = aggregation_weights(
        mask, loss_type=loss_type, num_rows=3, num_tokens=5, max_completion_length=10
    )
    torch.testing.assert_close(weights, torch.tensor(expected), atol=1e-7, rtol=0)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("cuts", [[6], [1] * 6, [4, 2], [2, 1, 3]])
def test_parts_of_a_step_add_up_to_the_whole(loss_type, level, cuts):
    logps, batch = random_batch()
    options = {"importance_sampling_level": level, "beta": 0.04, **options_of(loss_type)}
    whole = policy_loss(logps, **batch, **options)
    whole_grad = torch.autograd.grad(whole.loss, logps)[0]
    weights = aggregation_weights(
        batch["mask"],
        loss_type=loss_type,
        num_rows=6,
        num_tokens=int(batch["mask"].sum()),
        max_completion_length=12,
        dtype=torch.float64,
    )
    loss, grads, metrics, start = 0.0, [], None, 0
    for rows in cuts:
        part = slice(start, start + rows)
        part_logps = logps.detach()[part].requires_grad_()
        output = policy_loss(
            part_logps, **{name: x[part] for name, x in batch.items()}, **options, weights=weights[part]
        )
        loss += output.loss.item()
        grads.append(torch.autograd.grad(output.loss, part_logps)[0])
        metrics = (
            output.metrics if metrics is None else {k: metrics[k] + m for k, m in output.metrics.items()}
        )
        start += rows
    assert loss == pytest.approx(whole.loss.item(), abs=1e-12)
    torch.testing.assert_close(torch.cat(grads), whole_grad, atol=1e-12, rtol=0)
    assert metrics.keys() == whole.metrics.keys()
    for name, metric in metrics.items():
        assert metric.value == pytest.approx(whole.metrics[name].value, abs=1e-12)


# Statistics


def test_clip_fractions_count_tokens_and_rows_by_hand():
    # Ratios; A = 1, 1, -1; tokens 3 + 1 + 2. High: 1.5 in row 0. Low: 0.5 and 0.6 in row 2; 0.5 in row 0 has
    # the other sign; 9.0 is padding. Row 3 has no token and does not count.
    ratios = torch.tensor([[1.5, 0.5, 1.0], [1.1, 9.0, 9.0], [0.5, 0.6, 9.0], [9.0, 9.0, 9.0]])
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0], [0, 0, 0]]).bool()
    metrics = policy_loss(
        ratios.log(),
        old_logps=torch.zeros(4, 3),
        ref_logps=None,
        advantages=torch.tensor([1.0, 1.0, -1.0, 1.0]),
        mask=mask,
        importance_sampling_level="token",
    ).metrics
    expected = {
        "clip_ratio/low": 2 / 6,
        "clip_ratio/high": 1 / 6,
        "clip_ratio/any": 3 / 6,
        "clip_ratio/low_sequence": 1 / 3,
        "clip_ratio/high_sequence": 1 / 3,
        "clip_ratio/any_sequence": 2 / 3,
        "ratio/mean": (1.5 + 0.5 + 1.0 + 1.1 + 0.5 + 0.6) / 6,
        "ratio/min": 0.5,
        "ratio/max": 1.5,
    }
    assert {name: metric.value for name, metric in metrics.items()} == pytest.approx(expected, abs=1e-6)


def test_metrics_combine_by_kind_and_say_when_nothing_was_seen():
    def metric(kind, total, weight):
        return Metric(kind, torch.tensor(total).double(), torch.tensor(weight).double())

    # Mean 2 of one and mean 5 of three: 17 / 4; the mean of the means would be 3.5.
    assert (metric("mean", 2.0, 1.0) + metric("mean", 15.0, 3.0)).value == 4.25
    assert (metric("min", 2.0, 1.0) + metric("min", 15.0, 3.0)).value == 2.0
    assert (metric("max", 2.0, 1.0) + metric("max", 15.0, 3.0)).value == 15.0
    assert (metric("min", 2.0, 1.0) + metric("min", INF, 0.0)).value == 2.0
    assert math.isnan((metric("mean", 0.0, 0.0) + metric("mean", 0.0, 0.0)).value)


def test_mean_metric_ignores_what_is_masked_and_carries_no_graph():
    values = torch.tensor([1.0, NAN, 4.0], requires_grad=True)
    metric = mean_metric(values, torch.tensor([True, False, True]))
    assert metric.value == 2.5
    assert not metric.total.requires_grad


# Wrong options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"importance_sampling_level": "sentence_token"},
            "unknown 'sentence_token'; did you mean 'sequence_token'",
        ),
        ({"loss_type": "drgrpo"}, "loss_type: unknown 'drgrpo'; did you mean 'dr_grpo'"),
        ({"loss_type": "cispo"}, "epsilon_high: cispo caps .* set 5.0"),
        ({"loss_type": "sapo", "delta": 2.0}, "delta: sapo has no second clipping bound, got 2.0"),
        ({"loss_type": "dr_grpo"}, "max_completion_length: dr_grpo divides by it"),
        ({"beta": 0.1}, "beta: the KL term needs a reference policy, got 0.1"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, message):
    logps, batch = random_batch()
    batch["ref_logps"] = None
    with pytest.raises(UserError, match=message) as error:
        policy_loss(logps, **{**batch, "importance_sampling_level": "token", **options})
    assert "\n" not in str(error.value)
