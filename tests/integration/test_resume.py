"""An interrupted run goes on as if nothing had happened: the same lines and weights, bit for bit."""

import os
import shutil
import signal
import subprocess
import time

import pytest
import torch
from runs import TIMEOUT, final_weights, finish, read_metrics, start, write_manifest

from asrl.checkpoint import list_checkpoints

# Ten utterances, four a batch: the third batch takes its last two from the second epoch. Five batches of four
# steps.
OVERRIDES = (
    "trainer.rows_per_device=8",
    "num_iterations=2",
    "steps_per_generation=2",
    "old_logps=recompute",
    "dropout=true",
    "trainer.max_steps=20",
    "trainer.save_every=8",
    "trainer.eval_every=8",
    "rollout.max_new_tokens=4",
)


@pytest.fixture(scope="module")
def settings(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("resume")
    train = write_manifest(folder / "train.jsonl", rows[:10])
    dev = write_manifest(folder / "dev.jsonl", rows[10:])
    return (*OVERRIDES, f"data.train={train}", f"data.dev={dev}")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, train_here, settings):
    run_dir = tmp_path_factory.mktemp("resume") / "uninterrupted"
    train_here(run_dir, *settings)
    return run_dir


@pytest.fixture(scope="module")
def every_batch(tmp_path_factory, train_here, settings):
    """The same two epochs, saved after each of the five batches."""
    run_dir = tmp_path_factory.mktemp("resume") / "every-batch"
    train_here(run_dir, *settings, "trainer.save_every=4", "trainer.keep_checkpoints=9")
    assert [path.name[-2:] for path in list_checkpoints(run_dir)] == ["04", "08", "12", "16", "20"]
    return run_dir


def wait_until(process: subprocess.Popen, run_dir, condition) -> None:
    """Wait until the number of lines of metrics meets the condition; fail if the process ends before."""
    path = run_dir / "metrics.jsonl"
    deadline = time.monotonic() + TIMEOUT
    while not path.exists() or not condition(path.read_text().count("\n")):
        assert process.poll() is None, process.communicate()[1][-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def assert_same_run(run_dir, expected_dir):
    for name in ("metrics.jsonl", "completions.jsonl"):
        assert (run_dir / name).read_bytes() == (expected_dir / name).read_bytes(), name
    for path in (expected_dir / "evaluations").iterdir():
        assert (run_dir / "evaluations" / path.name).read_bytes() == path.read_bytes()
    weights, expected = final_weights(run_dir), final_weights(expected_dir)
    assert weights.keys() == expected.keys()
    assert [name for name, weight in expected.items() if not torch.equal(weights[name], weight)] == []


def test_a_run_killed_then_interrupted_then_resumed_equals_an_uninterrupted_one(
    arguments, settings, uninterrupted, command, tmp_path
):
    run_dir = tmp_path / "run"
    process = start(arguments(run_dir, *settings))
    # Line 9 is the evaluation after step 8; the checkpoint of step 8 follows it. Killed in the third batch.
    wait_until(process, run_dir, lambda num_lines: num_lines >= 10)
    process.kill()
    assert finish(process).status == -signal.SIGKILL
    assert [path.name for path in list_checkpoints(run_dir)] == ["step-00000008"]
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"step": 11, "rewa')  # as a kill in the middle of a write leaves it

    process = start([f"resume={run_dir}", "data.num_workers=1"])
    wait_until(process, run_dir, lambda num_lines: num_lines == 9)  # cut back to step 8
    wait_until(process, run_dir, lambda num_lines: num_lines >= 11)
    os.killpg(process.pid, signal.SIGTERM)  # the loader's worker gets it too, and must not die of it
    interrupted = finish(process)
    assert interrupted.status == 0, interrupted.errors[-3000:]
    assert "go on with resume=" in interrupted.output
    last = read_metrics(run_dir)[-1]["step"]
    assert last % 4 == 0  # the batch was finished
    assert last < 20
    assert list_checkpoints(run_dir)[-1].name == f"step-{last:08d}"

    resumed = command("train", f"resume={run_dir}", "data.num_workers=0")
    assert resumed.status == 0, resumed.errors[-3000:]
    assert_same_run(run_dir, uninterrupted)
    assert len(read_metrics(uninterrupted)) == 20 + 3


@pytest.mark.parametrize("step", [4, 8, 12, 16])
def test_a_run_that_lost_everything_after_a_batch_goes_on_from_there(command, every_batch, tmp_path, step):
    run_dir = tmp_path / "run"
    shutil.copytree(every_batch, run_dir)
    for path in list_checkpoints(run_dir):
        if path.name > f"step-{step:08d}":
            shutil.rmtree(path)
    for path in (run_dir / "evaluations").glob("*-00000020.jsonl"):
        path.unlink()
    result = command("train", f"resume={run_dir}")
    assert result.status == 0, result.errors[-3000:]
    assert_same_run(run_dir, every_batch)


def test_a_finished_run_can_be_extended(command, uninterrupted, tmp_path):
    before = read_metrics(uninterrupted)
    extended = tmp_path / "run"
    subprocess.run(["cp", "-r", str(uninterrupted), str(extended)], check=True)
    result = command("train", f"resume={extended}", "trainer.max_steps=24", "trainer.eval_every=0")
    assert result.status == 0, result.errors[-3000:]
    rows = read_metrics(extended)
    assert rows[: len(before)] == before
    assert [row["step"] for row in rows[len(before) :]] == [21, 22, 23, 24, 24]


def test_a_damaged_newest_checkpoint_is_passed_over_with_a_warning(command, uninterrupted, tmp_path):
    run_dir = tmp_path / "run"
    subprocess.run(["cp", "-r", str(uninterrupted), str(run_dir)], check=True)
    newest = list_checkpoints(run_dir)[-1]
    content = bytearray((newest / "trainable.safetensors").read_bytes())
    content[-1] ^= 1
    (newest / "trainable.safetensors").write_bytes(content)
    result = command("train", f"resume={run_dir}")
    assert result.status == 0, result.errors[-3000:]
    assert f"warning: {newest}: damaged checkpoint passed over" in result.errors
    assert_same_run(run_dir, uninterrupted)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["resume={nowhere}"], "config.yaml not found; name the directory of a run"),
        (["resume={run}", "logger=wandb"], "a resumed run keeps its configuration"),
        (
            ["resume={run}", "model.train_encoder=false"],
            "holds other trained weights than this configuration",
        ),
    ],
)
def test_a_resume_that_cannot_work_ends_with_one_line(command, uninterrupted, tmp_path, words, message):
    given = [word.format(run=uninterrupted, nowhere=tmp_path / "nowhere") for word in words]
    result = command("train", *given)
    assert result.status == 2
    lines = [line for line in result.errors.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert message in lines[0]
    assert "Traceback" not in result.errors
