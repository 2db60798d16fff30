"""What a run leaves in its checkpoints and in their copy."""

import shutil

import pytest
from runs import final_weights, read_metrics

from asrl.checkpoint import list_checkpoints, read_pointer


@pytest.fixture(scope="module")
def run(tmp_path_factory, train_here):
    """Four steps, saved after each, with a copy in a second folder."""
    folder = tmp_path_factory.mktemp("checkpoints")
    words = ("trainer.max_steps=4", "trainer.save_every=1", "model.train_encoder=false")
    train_here(folder / "run", *words, f"trainer.copy_checkpoints_to={folder / 'copies'}")
    return folder / "run"


def test_a_checkpoint_holds_the_trained_weights_and_two_moments_of_each_and_little_else(run):
    weights = final_weights(run)
    assert {name.split(".")[0] for name in weights} == {"projector", "llm"}
    assert all("lora_" in name for name in weights if name.startswith("llm."))
    num_bytes = sum(weight.numel() * weight.element_size() for weight in weights.values())
    size = sum(path.stat().st_size for path in list_checkpoints(run)[-1].iterdir())
    # Beyond the numbers: some 1 kB of names and steps for each weight in the optimizer's file.
    assert 3 * num_bytes < size < 3 * num_bytes + 2000 * len(weights)


def test_the_copy_is_rotated_like_the_run(run):
    copy = run.parent / "copies" / "run"
    names = [path.name for path in list_checkpoints(run)]
    assert names == ["step-00000003", "step-00000004"]
    assert [path.name for path in list_checkpoints(copy)] == names
    assert read_pointer(copy, "latest") == "step-00000004"


def test_a_run_goes_on_from_its_copy_when_the_run_itself_is_lost(run, command, tmp_path):
    shutil.copytree(run.parent / "copies" / "run", tmp_path / "rescued")
    words = (f"resume={tmp_path / 'rescued'}", "trainer.max_steps=5", "trainer.copy_checkpoints_to=null")
    result = command("train", *words)
    assert result.status == 0, result.errors[-3000:]
    rows = read_metrics(tmp_path / "rescued")
    assert rows[:-1] == read_metrics(run)
    assert rows[-1]["step"] == 5


def test_a_copy_never_overwrites_that_of_another_run_or_the_run_itself(run, command, arguments, tmp_path):
    result = command("train", *arguments(tmp_path / "run", f"trainer.copy_checkpoints_to={run.parent}"))
    assert result.status == 2
    assert f"{run} exists already, from another run" in result.errors
    result = command("train", f"resume={run}", f"trainer.copy_checkpoints_to={run.parent}")
    assert result.status == 2
    assert f"trainer.copy_checkpoints_to={run.parent}: the run itself lies there" in result.errors
    (tmp_path / "file").touch()
    result = command(
        "train", *arguments(tmp_path / "run", f"trainer.copy_checkpoints_to={tmp_path / 'file'}")
    )
    assert result.status == 2
    assert "cannot create" in result.errors


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trainer.rows_per_device=4"], "processes was 12 when the run began and cannot be 4 now"),
        (["num_generations=2"], "num_generations was 4 when the run began and cannot be 2 now"),
    ],
)
def test_a_position_in_the_data_that_would_mean_something_else_is_refused(run, command, words, message):
    result = command("train", f"resume={run}", "trainer.copy_checkpoints_to=null", *words)
    assert result.status == 2
    assert message in result.errors
    assert "Traceback" not in result.errors


def test_passes_of_another_size_are_fine_while_the_steps_have_as_many_rows(run, command, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    halves = ("trainer.rows_per_device=6", "trainer.gradient_accumulation_steps=2", "trainer.max_steps=5")
    result = command("train", f"resume={tmp_path / 'run'}", "trainer.copy_checkpoints_to=null", *halves)
    assert result.status == 0, result.errors[-3000:]


def test_a_run_killed_before_its_first_checkpoint_starts_again_in_its_place(run, command, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    result = command("train", f"resume={tmp_path / 'run'}", "trainer.copy_checkpoints_to=null")
    assert result.status == 0, result.errors[-3000:]
    assert "warning: " in result.errors
    assert "no checkpoint yet, the run starts again" in result.errors
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()
