"""A second folder holds what a run can be resumed from, whatever happens to either."""

import shutil
import threading

import pytest
import torch

import asrl.mirror
from asrl.checkpoint import (
    CHECKSUMS,
    Checkpoint,
    damage,
    list_checkpoints,
    load_checkpoint,
    read_pointer,
    rotate,
    save_checkpoint,
    write_pointer,
)
from asrl.mirror import Mirror, synchronise

PATIENCE = 30  # seconds


@pytest.fixture
def run_dir(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def copy(tmp_path):
    return tmp_path / "copy"


def save(run_dir, *steps):
    for step in steps:
        weights = {"projector.linear1.weight": torch.full((2, 3), float(step))}
        path = save_checkpoint(run_dir, step, Checkpoint(weights, {"optimizer": {}}, {"step": step}))
    return path


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_copy_holds_what_a_run_is_resumed_from_and_nothing_else(run_dir, copy):
    save(run_dir, 1, 2)
    write_pointer(run_dir, "best", "step-00000001")
    (run_dir / "evaluations").mkdir()
    for name in ("config.yaml", "metrics.jsonl", "evaluations/dev-greedy-00000000.jsonl"):
        (run_dir / name).write_text(name)
    expected = contents(run_dir)
    (run_dir / "wandb").mkdir()
    (run_dir / "wandb" / "run.log").write_text("not needed")
    synchronise(run_dir, copy)
    assert contents(copy) == expected


def test_a_copy_is_rotated_with_its_run(run_dir, copy):
    save(run_dir, 1)
    write_pointer(run_dir, "best", "step-00000001")
    save(run_dir, 2, 3, 4)
    synchronise(run_dir, copy)
    rotate(run_dir, 1, newest=4)
    synchronise(run_dir, copy)
    assert [path.name[-1] for path in list_checkpoints(copy)] == ["1", "4"]
    (run_dir / "checkpoints" / "best").unlink()
    rotate(run_dir, 1, newest=4)
    synchronise(run_dir, copy)
    assert [path.name[-1] for path in list_checkpoints(copy)] == ["4"]
    assert read_pointer(copy, "best") is None


def test_a_checkpoint_that_was_written_anew_is_copied_anew(run_dir, copy):
    path = save(run_dir, 3)
    synchronise(run_dir, copy)
    weights = {"projector.linear1.weight": torch.full((2, 3), 7.0)}
    save_checkpoint(run_dir, 3, Checkpoint(weights, {"optimizer": {}}, {"step": 3}))
    synchronise(run_dir, copy)
    (copied,) = list_checkpoints(copy)
    assert (copied / CHECKSUMS).read_bytes() == (path / CHECKSUMS).read_bytes()
    assert float(load_checkpoint(copied).trainable["projector.linear1.weight"][0, 0]) == 7


def test_a_damaged_checkpoint_is_not_copied_but_the_others_are(run_dir, copy):
    path = save(run_dir, 1)
    save(run_dir, 2)
    (path / "state.json").write_text("damaged")
    with pytest.raises(ValueError, match=r"step-00000001: state\.json does not match its checksum"):
        synchronise(run_dir, copy)
    assert [path.name[-1] for path in list_checkpoints(copy)] == ["2"]
    assert read_pointer(copy, "latest") == "step-00000002"


def test_a_checkpoint_that_the_run_deletes_meanwhile_is_copied_whole(run_dir, copy, monkeypatch):
    path = save(run_dir, 1)

    def copy_late(source, target, *_):
        shutil.rmtree(path, ignore_errors=True)
        target.write(source.read())

    monkeypatch.setattr("asrl.mirror.shutil.copyfileobj", copy_late)
    synchronise(run_dir, copy)
    assert not path.exists()
    (copied,) = list_checkpoints(copy)
    assert damage(copied) is None


def test_a_checkpoint_that_was_half_copied_by_a_killed_run_is_replaced(run_dir, copy):
    save(run_dir, 1)
    unfinished = copy / "checkpoints" / ".writing-step-00000001"
    unfinished.mkdir(parents=True)
    synchronise(run_dir, copy)
    assert not unfinished.exists()
    assert damage(list_checkpoints(copy)[0]) is None


def test_training_does_not_wait_for_the_copy_except_at_the_end(run_dir, copy, monkeypatch):
    save(run_dir, 1)
    started, may_go_on = threading.Event(), threading.Event()

    def wait(*paths):
        started.set()
        assert may_go_on.wait(PATIENCE)
        synchronise(*paths)

    monkeypatch.setattr(asrl.mirror, "synchronise", wait)
    mirror = Mirror(run_dir, copy)
    mirror.update()
    assert started.wait(PATIENCE)
    save(run_dir, 2)
    mirror.update()  # while the first copy is still under way
    assert list_checkpoints(copy) == []
    may_go_on.set()
    mirror.close()
    assert [path.name[-1] for path in list_checkpoints(copy)] == ["1", "2"]


def test_a_copy_that_fails_again_and_again_is_one_warning(run_dir, copy, monkeypatch, capsys):
    attempts = threading.Semaphore(0)

    def fail(*_):
        attempts.release()
        raise OSError("full")

    monkeypatch.setattr(asrl.mirror, "synchronise", fail)
    with Mirror(run_dir, copy) as mirror:
        for _ in range(3):
            mirror.update()
            assert attempts.acquire(timeout=PATIENCE)
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_copy_that_fails_is_a_warning_and_is_tried_again(run_dir, copy, capsys):
    save(run_dir, 1)
    copy.write_text("a file in place of the folder")
    with Mirror(run_dir, copy) as mirror:
        mirror.update()
    assert capsys.readouterr().err.splitlines() == [
        f"warning: {copy}: the copy of the run is not up to date ([Errno 20] Not a directory: "
        f"'{copy / 'checkpoints'}'); training goes on"
    ]
    copy.unlink()
    with Mirror(run_dir, copy) as mirror:
        mirror.update()
    assert capsys.readouterr().err == ""
    assert len(list_checkpoints(copy)) == 1
