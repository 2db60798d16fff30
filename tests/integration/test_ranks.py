"""The same global batch gives the same rollouts, metrics and weights, however it is cut."""

import pytest
from runs import final_weights, read_lines, read_metrics

# 12 rows are 3 utterances of 4 rows: cut in half, the second utterance has rows on both sides.
SEQUENCE = (
    "importance_sampling_level=sequence",
    "old_logps=recompute",
    "num_iterations=2",
    "steps_per_generation=2",
    "trainer.max_steps=8",
    "optim.learning_rate.encoder=5e-5",
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


# Adding one vector to all keys adds the same to all scores of a query, which softmax ignores: the gradient of
# this bias is 0 but for rounding, and Adam blows rounding up to the size of a step.
WITHOUT_GRADIENT = "layer_norm_k.bias"


def assert_runs_equal(one, other):
    assert transcripts(one) == transcripts(other)
    for row, other_row in zip(read_metrics(one), read_metrics(other), strict=True):
        assert row.keys() == other_row.keys()
        for name, value in row.items():
            # Sums in another order: a few units in the last place of float32, carried through the updates.
            expected = None if value is None else pytest.approx(value, rel=1e-4, abs=1e-5)
            assert other_row[name] == expected, (row["step"], name)
    weights, others = final_weights(one), final_weights(other)
    assert weights.keys() == others.keys()
    differences = {
        name: float((others[name] - weight).abs().max())
        for name, weight in weights.items()
        if not name.endswith(WITHOUT_GRADIENT)
    }
    assert {name: value for name, value in differences.items() if value > 1e-5} == {}


@pytest.fixture(scope="module", params=["beta=0.04", "beta=0"])
def one_rank(request, tmp_path_factory, train_here):
    """A run on one rank in one pass, and its settings."""
    run_dir = tmp_path_factory.mktemp("ranks") / "one"
    overrides = (*SEQUENCE, request.param)
    train_here(run_dir, *overrides, "trainer.rows_per_device=12")
    rows = read_metrics(run_dir)
    assert len({row["loss"] for row in rows}) == len(rows) == 8
    return run_dir, overrides


def test_two_ranks_equal_one(train, one_rank, tmp_path):
    run_dir, overrides = one_rank
    train(tmp_path / "two", *overrides, "trainer.rows_per_device=6", num_processes=2)
    assert_runs_equal(run_dir, tmp_path / "two")


def test_accumulated_gradients_equal_one_pass(train_here, one_rank, tmp_path):
    run_dir, overrides = one_rank
    halves = ("trainer.rows_per_device=6", "trainer.gradient_accumulation_steps=2")
    train_here(tmp_path / "halves", *overrides, *halves)
    assert_runs_equal(run_dir, tmp_path / "halves")
