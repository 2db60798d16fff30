"""The same global batch, cut differently, gives the same rollouts, rewards, advantages, metrics and weights."""

import pytest
import torch
from runs import final_weights, read_lines, read_metrics

# 12 rows are 3 utterances of 4 rows: cut in half, the second utterance has rows on both sides.
WHOLE = ("trainer.rows_per_device=12",)
HALVES = ("trainer.rows_per_device=6",)
SEQUENCE = (
    "importance_sampling_level=sequence",
    "beta=0.04",
    "old_logps=recompute",
    "num_iterations=2",
    "steps_per_generation=2",
    "trainer.max_steps=8",
    "optim.learning_rate.encoder=2e-4",
    "optim.learning_rate.projector=2e-4",
    "optim.learning_rate.decoder=1e-3",
)


def transcripts(run_dir):
    """Every transcript that was drawn with its rewards and advantage, whatever rank drew it."""
    rows = {}
    for row in read_lines(run_dir / "completions.jsonl"):
        number = row.pop("num")
        key = tuple(sorted((name, str(value)) for name, value in row.items()))
        rows[key] = rows.get(key, 0) + number
    return rows


def assert_runs_equal(one, other):
    assert transcripts(one) == transcripts(other)
    for row, other_row in zip(read_metrics(one), read_metrics(other), strict=True):
        assert row.keys() == other_row.keys()
        for name, value in row.items():
            # Sums in another order: a few units in the last place of float32, carried through eight updates.
            assert other_row[name] == pytest.approx(value, rel=1e-4, abs=1e-5), (row["step"], name)
    weights, others = final_weights(one), final_weights(other)
    assert weights.keys() == others.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(
            others[name], weight, rtol=0, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}"
        )


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks") / "one"


def test_two_ranks_equal_one(train, train_here, one_rank, tmp_path):
    train_here(one_rank, *SEQUENCE, *WHOLE)
    train(tmp_path / "two", *SEQUENCE, *HALVES, num_processes=2)
    assert_runs_equal(one_rank, tmp_path / "two")
    losses = [row["loss"] for row in read_metrics(one_rank)]
    assert len(set(losses)) == 8


def test_accumulated_gradients_equal_one_pass(train_here, one_rank, tmp_path):
    if not one_rank.exists():
        train_here(one_rank, *SEQUENCE, *WHOLE)
    train_here(tmp_path / "halves", *SEQUENCE, *HALVES, "trainer.gradient_accumulation_steps=2")
    assert_runs_equal(one_rank, tmp_path / "halves")
