"""Every objective trains: a few steps in this process."""

import math
from dataclasses import replace

import pytest
import torch
from runs import read_lines, read_metrics

from asrl.losses import LEVELS, LOSS_TYPES
from asrl.rollout import engines

SMALL = ("num_generations=2", "trainer.rows_per_device=4", "rollout.max_new_tokens=4", "dropout=false")
TWICE = ("num_iterations=2", "old_logps=recompute")


@pytest.fixture
def run(train_here, tmp_path):
    """Train for two steps and return their metrics."""

    def train(*overrides):
        train_here(tmp_path / "run", *SMALL, *overrides)
        rows = read_metrics(tmp_path / "run")
        assert len(rows) == 2
        assert all(math.isfinite(value) for row in rows for value in row.values())
        assert rows[-1]["num_nonfinite"] == 0
        return rows

    return train


@pytest.mark.parametrize("level", LEVELS)
def test_every_importance_level_learns(run, level):
    first, second = run(f"importance_sampling_level={level}", *TWICE)
    # The policy is still the one that drew the transcripts; after its first update it is another.
    # Not to the last bit: with a gradient, attention runs another kernel.
    assert 1 - 1e-5 < first["ratio/min"] <= first["ratio/max"] < 1 + 1e-5
    assert second["ratio/min"] < 0.99
    assert second["ratio/max"] > 1.01
    assert first["grad_norm"] > 0


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_every_loss_type_learns(run, loss_type):
    bound = ("epsilon_high=5.0",) if loss_type == "cispo" else ()
    first, second = run(f"loss_type={loss_type}", "importance_sampling_level=token", *bound, *TWICE)
    assert first["grad_norm"] > 0
    if loss_type != "cispo":  # its loss is no surrogate: only its gradient means something
        assert second["loss"] < first["loss"]  # the same rows again, after a step downhill


def test_the_kl_penalty_starts_at_zero_and_grows(run):
    first, second = run("beta=0.1", *TWICE)
    # A fresh LoRA is the identity: the reference is the policy itself.
    assert first["kl"] < 1e-9
    assert second["kl"] > 1e-6


def test_all_rewards_together_are_logged_one_by_one(run):
    rows = run("+reward.hotword.weight=0.5", "+reward.hallucination.weight=0.25")
    for row in rows:
        parts = {name: row[f"reward/{name}"] for name in ("accuracy", "signal", "hotword", "hallucination")}
        weights = {"accuracy": 0.5, "signal": 1.0, "hotword": 0.5, "hallucination": 0.25}
        # All twelve utterances have hotwords, so each reward applies to every row.
        total = sum(weights[name] * value for name, value in parts.items())
        assert row["reward/mean"] == pytest.approx(total, abs=1e-6)


@pytest.mark.parametrize("silent", ["all", "every other"])
@pytest.mark.parametrize("layout", ["tree", "replicas"])
def test_hypotheses_of_only_the_end_token_go_through_the_whole_step(run, monkeypatch, layout, silent):
    draw = engines.ENGINES["plain"]

    def silence(model, batch, settings, **options):
        drawn = draw(model, batch, settings, **options)
        is_silent = torch.ones_like(drawn.is_finished)
        if silent == "every other":
            is_silent[1::2] = False
        begins = torch.arange(drawn.mask.shape[1]) == 0
        return replace(
            drawn,
            tokens=drawn.tokens.masked_fill(is_silent[:, None], model.prompt.end_id),
            mask=torch.where(is_silent[:, None], begins, drawn.mask),
            is_finished=drawn.is_finished | is_silent,
        )

    monkeypatch.setitem(engines.ENGINES, "plain", silence)
    metrics = run("rollout.engine=plain", f"model.layout={layout}", "beta=0.04", *TWICE)
    if silent == "all":
        assert metrics[0]["completion/num_tokens_mean"] == 1
        assert metrics[0]["cer"] == 1  # every character deleted
        assert metrics[0]["reward/frac_zero_std"] == 1
        assert metrics[0]["loss"] == pytest.approx(0, abs=1e-9)
    else:
        assert metrics[0]["grad_norm"] > 0


def test_transcripts_are_written_with_each_reward(run, tmp_path):
    run()
    first = read_lines(tmp_path / "run" / "completions.jsonl")[0]
    assert list(first) == [
        "step",
        "key",
        "transcript",
        "hypothesis",
        "num",
        "accuracy",
        "signal",
        "advantage",
    ]
    assert not (tmp_path / "run" / "wandb").exists()
