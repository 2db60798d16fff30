"""A full disk ends a run with one line; what was written before stays, and the run goes on from it."""

import resource
import shutil
import subprocess
from contextlib import contextmanager

import pytest
from runs import read_metrics

from asrl.checkpoint import damage, list_checkpoints, read_pointer


@pytest.fixture(scope="module")
def short_run(tmp_path_factory, train_here):
    run_dir = tmp_path_factory.mktemp("full_disk") / "run"
    train_here(run_dir, "trainer.max_steps=4", "logger.completions_every=0")
    return run_dir


@pytest.fixture
def run(short_run, tmp_path):
    """A finished run of four steps, to be extended."""
    shutil.copytree(short_run, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def extended(short_run, tmp_path_factory, command):
    """The same run after two more steps on a disk with room."""
    run_dir = tmp_path_factory.mktemp("extended") / "run"
    shutil.copytree(short_run, run_dir)
    assert command("train", f"resume={run_dir}", "trainer.max_steps=6").status == 0
    return run_dir


@contextmanager
def no_file_beyond(num_bytes):
    """Let writes beyond a size fail, as they do on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextmanager
def small_disk(folder, num_bytes):
    """Mount a file system of that size, or skip the test."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("may not mount a file system here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def assert_one_line(result, message):
    lines = [line for line in result.errors.replace("\r", "\n").splitlines() if line.startswith("error: ")]
    assert result.status == 2, result.errors
    assert len(lines) == 1, result.errors
    assert message in lines[0]
    assert "Traceback" not in result.errors


def assert_goes_on(command, run, extended):
    """The run is extended once there is room again, and is what it would have been."""
    result = command("train", f"resume={run}", "trainer.max_steps=6")
    assert result.status == 0, result.errors[-3000:]
    assert read_metrics(run) == read_metrics(extended)


def test_a_checkpoint_that_does_not_fit_leaves_the_old_one(command, run, extended):
    (old,) = list_checkpoints(run)
    size = max(path.stat().st_size for path in old.iterdir())
    for limit in (size - 1, size // 4):  # the optimizer's file does not fit; nor do the weights
        with no_file_beyond(limit):
            result = command("train", f"resume={run}", "trainer.max_steps=6")
        assert_one_line(result, "step-00000006: could not write the checkpoint (")
        assert f"older ones are intact: make room, and go on with resume={run}" in result.errors
        assert sorted(path.name for path in old.parent.iterdir()) == ["latest", old.name]
        assert damage(old) is None
        assert read_pointer(run, "latest") == old.name
    assert_goes_on(command, run, extended)


def test_a_disk_that_fills_up_leaves_the_old_checkpoint(command, short_run, extended, tmp_path):
    size = sum(path.stat().st_size for path in short_run.rglob("*") if path.is_file())
    with small_disk(tmp_path / "disk", size * 3 // 2):
        run = tmp_path / "disk" / "run"
        shutil.copytree(short_run, run)
        (old,) = list_checkpoints(run)
        result = command("train", f"resume={run}", "trainer.max_steps=6")
        assert_one_line(result, "step-00000006: could not write the checkpoint (")
        assert list_checkpoints(run) == [old]
        assert damage(old) is None
        subprocess.run(["mount", "-o", f"remount,size={size * 4}", str(tmp_path / "disk")], check=True)
        assert_goes_on(command, run, extended)


def test_a_line_of_metrics_that_does_not_fit_is_named_and_cut_off_at_the_next_start(command, run, extended):
    metrics = run / "metrics.jsonl"
    before = metrics.read_bytes()
    with no_file_beyond(len(before) + 10):
        result = command("train", f"resume={run}", "trainer.max_steps=6")
    assert_one_line(result, f"{metrics}: cannot write (File too large); make room, and go on with resume=")
    assert len(metrics.read_bytes()) == len(before) + 10  # half a line
    assert_goes_on(command, run, extended)


def test_a_copy_that_does_not_fit_is_a_warning_and_the_run_goes_on(command, run, tmp_path):
    with small_disk(tmp_path / "disk", 100_000):
        words = ("trainer.max_steps=6", f"trainer.copy_checkpoints_to={tmp_path / 'disk'}")
        result = command("train", f"resume={run}", *words)
        assert result.status == 0, result.errors[-3000:]
        warnings = [line for line in result.errors.splitlines() if line.startswith("warning: ")]
        assert len(warnings) == 1
        assert "the copy of the run is not up to date ([Errno 28] No space left on device" in warnings[0]
        assert list_checkpoints(tmp_path / "disk" / "run") == []
    assert list_checkpoints(run)[-1].name == "step-00000006"
