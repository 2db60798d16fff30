import hashlib
import json
import os
import pickle
import shutil

import pytest
import torch
from safetensors import SafetensorError

from asrl.checkpoint import (
    CHECKSUMS,
    Checkpoint,
    Found,
    checkpoint_path,
    damage,
    drop_lost_best,
    find_checkpoint,
    list_checkpoints,
    load_checkpoint,
    read_pointer,
    rotate,
    save_checkpoint,
    write_pointer,
)
from asrl.errors import UserError


def make_checkpoint(value=1.0):
    weight = torch.nn.Parameter(torch.full((2, 3), value).T)  # not contiguous, needs a gradient
    optimizer = torch.optim.AdamW([weight], lr=0.5)
    weight.sum().backward()
    optimizer.step()
    return Checkpoint(
        {"projector.linear1.weight": weight},
        {"optimizer": optimizer.state_dict(), "schedule": {"last_epoch": 3}},
        {"step": 3, "best_cer": None},
    )


def save(run_dir, *steps):
    return [save_checkpoint(run_dir, step, make_checkpoint(float(step))) for step in steps]


def test_a_checkpoint_comes_back_as_it_was_saved(tmp_path):
    checkpoint = make_checkpoint()
    loaded = load_checkpoint(save_checkpoint(tmp_path, 3, checkpoint))
    weight = checkpoint.trainable["projector.linear1.weight"]
    assert loaded.trainable.keys() == {"projector.linear1.weight"}
    assert torch.equal(loaded.trainable["projector.linear1.weight"], weight)
    assert loaded.state == {"step": 3, "best_cer": None}
    assert loaded.optimizer["schedule"] == {"last_epoch": 3}
    # One step of AdamW on a gradient of 1: the running mean is (1 - beta1) * 1 = 0.1.
    torch.testing.assert_close(
        loaded.optimizer["optimizer"]["state"][0]["exp_avg"], torch.full((3, 2), 0.1), rtol=0, atol=1e-7
    )
    assert loaded.optimizer["optimizer"]["param_groups"][0]["lr"] == 0.5


def test_saving_points_latest_at_the_checkpoint(tmp_path):
    assert read_pointer(tmp_path, "latest") is None
    save(tmp_path, 2, 10)
    assert read_pointer(tmp_path, "latest") == "step-00000010"


def test_checkpoints_are_listed_by_step(tmp_path):
    save(tmp_path, 100, 9, 20)
    assert [path.name for path in list_checkpoints(tmp_path)] == [
        "step-00000009",
        "step-00000020",
        "step-00000100",
    ]


@pytest.mark.parametrize("name", ["save_file", "torch.save", "json.dumps", "sync", "os.rename"])
def test_a_crash_at_any_point_of_writing_leaves_the_old_checkpoint(tmp_path, monkeypatch, name):
    (old,) = save(tmp_path, 1)

    def die(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"asrl.checkpoint.{name}", die)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 2)
    monkeypatch.undo()
    assert list_checkpoints(tmp_path) == [old]
    assert find_checkpoint(tmp_path).path == old
    assert read_pointer(tmp_path, "latest") == old.name
    save(tmp_path, 2)
    assert find_checkpoint(tmp_path).path == checkpoint_path(tmp_path, 2)


def test_what_a_kill_left_half_written_is_no_checkpoint_and_goes_with_the_next_one(tmp_path):
    (old,) = save(tmp_path, 1)
    unfinished = tmp_path / "checkpoints" / ".writing-step-00000002"
    shutil.copytree(old, unfinished)
    (unfinished / CHECKSUMS).unlink()
    assert find_checkpoint(tmp_path) == Found(old, [])
    save(tmp_path, 3)
    assert not unfinished.exists()


@pytest.mark.parametrize(
    "error", [OSError("No space left on device"), RuntimeError("write\nfailed"), SafetensorError("IoError")]
)
def test_a_full_disk_is_the_users_to_fix_and_leaves_nothing_half_written(tmp_path, monkeypatch, error):
    (old,) = save(tmp_path, 1)

    def fill(*_):
        raise error

    monkeypatch.setattr("asrl.checkpoint.torch.save", fill)
    with pytest.raises(UserError, match=r"^\S+step-00000002: could not write the checkpoint .* intact: .*$"):
        save(tmp_path, 2)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["latest", old.name]


def test_saving_a_step_again_replaces_it(tmp_path):
    save(tmp_path, 5)
    save_checkpoint(tmp_path, 5, make_checkpoint(9.0))
    weight = load_checkpoint(checkpoint_path(tmp_path, 5)).trainable["projector.linear1.weight"]
    assert float(weight.detach().max()) > 8


def flip_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def make_directory(path):
    path.unlink()
    path.mkdir()


HARMS = {
    "truncated": lambda path: os.truncate(path, path.stat().st_size - 1),
    "half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "flipped": flip_bit,
    "missing": lambda path: path.unlink(),
    "directory": make_directory,
}
FILES = ["trainable.safetensors", "optimizer.pt", "state.json", CHECKSUMS]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_file_is_noticed_and_the_checkpoint_before_is_used(tmp_path, harm, file):
    old, new = save(tmp_path, 1, 2)
    assert damage(new) is None
    HARMS[harm](new / file)
    assert file in damage(new) or file == CHECKSUMS
    with pytest.raises(UserError, match="damaged checkpoint"):
        load_checkpoint(new)
    found = find_checkpoint(tmp_path)
    assert found.path == old
    assert len(found.warnings) == 1
    assert str(new) in found.warnings[0]


@pytest.mark.parametrize("content", ["{}", "[]", '{"state.json": "0"}'])
def test_checksums_that_do_not_cover_every_file_are_damage(tmp_path, content):
    (path,) = save(tmp_path, 1)
    (path / CHECKSUMS).write_text(content)
    assert damage(path).startswith(CHECKSUMS)


def test_a_run_without_an_intact_checkpoint_is_refused_with_every_reason(tmp_path):
    (only,) = save(tmp_path, 1)
    (only / CHECKSUMS).unlink()
    with pytest.raises(UserError, match=r"step-00000001: damaged.*holds no intact checkpoint"):
        find_checkpoint(tmp_path)
    with pytest.raises(UserError, match="holds no intact checkpoint"):
        find_checkpoint(tmp_path / "elsewhere")


def test_a_best_checkpoint_that_is_intact_and_not_later_stays_the_best(tmp_path):
    old, new = save(tmp_path, 1, 2)
    for best in (old, new):
        write_pointer(tmp_path, "best", best.name)
        assert drop_lost_best(tmp_path, new) is None
        assert read_pointer(tmp_path, "best") == best.name


def test_a_run_without_a_best_checkpoint_has_none_to_lose(tmp_path):
    (only,) = save(tmp_path, 1)
    assert drop_lost_best(tmp_path, only) is None


LOSSES = {
    "later": (lambda best: None, 1, "later than the one to go on from"),
    "gone": (shutil.rmtree, 3, "checksums.json is unreadable"),
    "damaged": (lambda best: flip_bit(best / "optimizer.pt"), 3, "optimizer.pt does not match"),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_a_best_checkpoint_that_cannot_be_counted_on_is_no_longer_the_best(tmp_path, loss):
    save(tmp_path, 1, 2, 3)
    best = checkpoint_path(tmp_path, 2)
    write_pointer(tmp_path, "best", best.name)
    lose, resumed, message = LOSSES[loss]
    lose(best)
    warning = drop_lost_best(tmp_path, checkpoint_path(tmp_path, resumed))
    assert warning.startswith(f"{best}: no longer the best checkpoint: ")
    assert message in warning
    assert read_pointer(tmp_path, "best") is None


def test_rotation_keeps_the_newest_and_the_best(tmp_path):
    save(tmp_path, 1, 2, 3, 4, 5)
    write_pointer(tmp_path, "best", "step-00000002")
    rotate(tmp_path, 2, newest=5)
    assert [path.name[-1] for path in list_checkpoints(tmp_path)] == ["2", "4", "5"]


def test_rotation_does_not_count_damaged_checkpoints_that_a_resumed_run_passed_over(tmp_path):
    save(tmp_path, 2, 4, 6)
    write_pointer(tmp_path, "best", "step-00000006")
    rotate(tmp_path, 1, newest=4)
    assert [path.name[-1] for path in list_checkpoints(tmp_path)] == ["4"]


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def renew_checksums(path):
    checksums = {name: hashlib.sha256((path / name).read_bytes()).hexdigest() for name in FILES[:-1]}
    (path / CHECKSUMS).write_text(json.dumps(checksums))
    assert damage(path) is None


@pytest.mark.parametrize("file", FILES[:-1])
def test_what_another_program_wrote_is_refused_in_one_line(tmp_path, file):
    (path,) = save(tmp_path, 1)
    (path / file).write_bytes(b"something else")
    renew_checksums(path)
    with pytest.raises(UserError, match=r"^\S+step-00000001\S*: [^\n]+$"):
        load_checkpoint(path)


def test_code_in_a_checkpoint_is_refused_and_not_run(tmp_path):
    (path,) = save(tmp_path, 1)
    trap = tmp_path / "trap"
    torch.save({"optimizer": Malicious(str(trap))}, path / "optimizer.pt", pickle_module=pickle)
    renew_checksums(path)
    with pytest.raises(UserError, match=r"optimizer\.pt: holds more than tensors"):
        load_checkpoint(path)
    assert not trap.exists()
