"""DeepSpeed and FSDP2 train as one process does, and their checkpoints go from one to the other."""

import json
import shutil

import pytest
from runs import BACKENDS, finish, start, write_manifest
from test_ranks import SEQUENCE, assert_runs_equal

from asrl.checkpoint import list_checkpoints

CUT = tuple(name for name in BACKENDS if name != "ddp")
# ZeRO-1 shares all but the cutting of gradients with ZeRO-2.
MARKED = [pytest.param(name, marks=pytest.mark.slow) if name == "zero1" else name for name in CUT]
# Two ranks, each with two micro-batches or more of different sizes; five utterances to evaluate on, which do
# not divide; a reference that needs other weights for a while.
SETTINGS = (
    *SEQUENCE,
    "beta=0.04",
    "reference=frozen",
    "trainer.max_positions=90",
    "trainer.save_every=4",
    "trainer.keep_checkpoints=9",
)
ONE_RANK = ("trainer.rows_per_device=6", "trainer.gradient_accumulation_steps=2")
TWO_RANKS = ("trainer.rows_per_device=3", "trainer.gradient_accumulation_steps=2")


@pytest.fixture(scope="module")
def settings(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("backends")
    return (*SETTINGS, f"data.dev={write_manifest(folder / 'dev.jsonl', rows[:5])}")


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory, train_here, settings):
    run_dir = tmp_path_factory.mktemp("backends") / "one"
    train_here(run_dir, *settings, *ONE_RANK)
    return run_dir


def cut_back(run_dir, copy):
    """A copy of a run as it was when it had saved step 4."""
    shutil.copytree(run_dir, copy)
    shutil.rmtree(list_checkpoints(copy)[-1])
    assert [path.name for path in list_checkpoints(copy)] == ["step-00000004"]
    return copy


def assert_same_evaluations(one, other):
    for path in (one / "evaluations").iterdir():
        assert (other / "evaluations" / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize("backend", CUT)
def test_training_equals_that_of_one_rank_and_goes_on_there(
    train, command, one_rank, settings, tmp_path, backend
):
    run_dir = tmp_path / "cut"
    train(run_dir, *settings, *TWO_RANKS, num_processes=2, backend=backend)
    assert_runs_equal(one_rank, run_dir)
    assert_same_evaluations(one_rank, run_dir)

    resumed = cut_back(run_dir, tmp_path / "resumed")
    result = command("train", f"resume={resumed}", *ONE_RANK)
    assert result.status == 0, result.errors[-3000:]
    assert_runs_equal(one_rank, resumed)


@pytest.mark.parametrize("backend", MARKED)
def test_a_run_of_one_rank_goes_on(one_rank, tmp_path, backend):
    resumed = cut_back(one_rank, tmp_path / "resumed")
    result = finish(start([f"resume={resumed}", *TWO_RANKS], num_processes=2, backend=backend))
    assert result.status == 0, result.errors[-3000:]
    assert_runs_equal(one_rank, resumed)


@pytest.mark.parametrize("backend", ["ddp", *MARKED])
def test_a_gradient_that_is_not_finite_on_one_rank_is_skipped_by_all(golden, manifest, tmp_path, backend):
    words = [str(golden / "FireRedASR-LLM-tiny"), str(manifest), str(tmp_path)]
    script = "tests/integration/nonfinite_step.py"
    result = finish(start(words, num_processes=2, script=script, backend=backend))
    assert result.status == 0, result.errors[-3000:]
    report = json.loads((tmp_path / "report.json").read_text())
    # A healthy step, a bad one, a healthy one.
    assert report["has_moved"] == [True, False, True]
    assert report["num_nonfinite"] == [0, 1, 1]
    assert report["adam_steps"] == [1, 1, 2]
    assert sorted(path.name for path in (tmp_path / "run").glob("nonfinite-*")) == [
        "nonfinite-step-2-rank-0.json",
        "nonfinite-step-2-rank-1.json",
    ]
