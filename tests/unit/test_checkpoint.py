import hashlib
import json
import os
import pickle

import pytest
import torch

from asrl.checkpoint import (
    CHECKSUMS,
    Checkpoint,
    checkpoint_path,
    damage,
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


@pytest.mark.parametrize("name", ["save_file", "torch.save", "json.dumps", "_sync", "os.rename"])
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
    save(tmp_path, 2)  # what the crash left behind is not in the way
    assert find_checkpoint(tmp_path).path == checkpoint_path(tmp_path, 2)
    assert not list((tmp_path / "checkpoints").glob(".writing-*"))


@pytest.mark.parametrize("error", [OSError("No space left on device"), RuntimeError("write failed")])
def test_a_full_disk_is_the_users_to_fix_and_leaves_nothing_half_written(tmp_path, monkeypatch, error):
    (old,) = save(tmp_path, 1)

    def fill(*_):
        raise error

    monkeypatch.setattr("asrl.checkpoint.torch.save", fill)
    with pytest.raises(UserError, match=r"step-00000002: could not write the checkpoint .* intact"):
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


HARMS = {
    "truncated": lambda path: os.truncate(path, path.stat().st_size - 1),
    "flipped": flip_bit,
    "missing": lambda path: path.unlink(),
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


def test_a_run_without_an_intact_checkpoint_is_refused_with_every_reason(tmp_path):
    (only,) = save(tmp_path, 1)
    (only / CHECKSUMS).unlink()
    with pytest.raises(UserError, match=r"step-00000001: damaged.*holds no intact checkpoint"):
        find_checkpoint(tmp_path)
    with pytest.raises(UserError, match="holds no intact checkpoint"):
        find_checkpoint(tmp_path / "elsewhere")


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


def test_code_in_a_checkpoint_is_refused_and_not_run(tmp_path):
    (path,) = save(tmp_path, 1)
    trap = tmp_path / "trap"
    torch.save({"optimizer": Malicious(str(trap))}, path / "optimizer.pt", pickle_module=pickle)
    checksums = json.loads((path / CHECKSUMS).read_text())
    checksums["optimizer.pt"] = hashlib.sha256((path / "optimizer.pt").read_bytes()).hexdigest()
    (path / CHECKSUMS).write_text(json.dumps(checksums))
    assert damage(path) is None
    with pytest.raises(UserError, match=r"optimizer\.pt: holds more than tensors"):
        load_checkpoint(path)
    assert not trap.exists()
