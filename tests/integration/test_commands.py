"""What the commands print and leave behind."""

import json
import math

import pytest
import torch
from runs import final_weights, read_lines, read_metrics, write_manifest

from asrl import learner
from asrl.models.firered import load_firered

SMALL = ("num_generations=2", "trainer.rows_per_device=4", "rollout.max_new_tokens=4")


def test_the_dropout_control_prints_both_runs_and_clips_nothing_without_dropout(
    command, arguments, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    settings = [
        word
        for word in arguments(tmp_path / "dropout-${dropout}", *SMALL, "trainer.max_steps=3")
        if not word.startswith(("data.dev", "data.test", "logger=", "trainer.save_every", "optim."))
    ]
    result = command("train", "experiment=dropout_control", *settings)
    assert result.status == 0, result.errors[-3000:]
    rows = [line for line in result.output.splitlines() if "dropout=" in line and "│" in line]
    assert len(rows) == 2
    # Columns: run, clip ratio, largest clip ratio, kl, first kl.
    figures = {
        word: [float(cell) for cell in row.strip("│┃ ").split("│")[1:]]
        for word in ("dropout=True", "dropout=False")
        for row in rows
        if word in row
    }
    assert figures["dropout=False"][:2] == [0, 0]
    assert figures["dropout=True"][0] > 0
    assert figures["dropout=True"][3] > 1e-4
    assert figures["dropout=False"][3] == 0
    assert len(read_metrics(tmp_path / "dropout-True")) == len(read_metrics(tmp_path / "dropout-False")) == 3
    assert {path.name for path in tmp_path.iterdir()} == {"dropout-True", "dropout-False", "runs"}


def test_an_offline_wandb_run_is_written_into_the_run(command, arguments, tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.chdir(tmp_path)
    words = arguments(tmp_path / "run", *SMALL, "logger=wandb", "trainer.max_steps=1")
    result = command("train", *words)
    assert result.status == 0, result.errors[-3000:]
    (folder,) = (tmp_path / "run" / "wandb").glob("offline-run-*")
    assert list(folder.glob("*.wandb"))
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.fixture
def spoil(monkeypatch):
    """Make the loss of one optimizer step NaN."""

    def at(step):
        loss = learner.policy_loss
        calls = iter(range(1, 100))

        def spoiled(*args, **kwargs):
            output = loss(*args, **kwargs)
            factor = math.nan if next(calls) == step else 1.0
            return type(output)(output.loss * factor, output.metrics)

        monkeypatch.setattr(learner, "policy_loss", spoiled)

    return at


def test_a_loss_that_is_not_finite_stops_the_run_and_dumps_its_rows(command, arguments, tmp_path, spoil):
    spoil(2)
    result = command("train", *arguments(tmp_path / "run", *SMALL, "trainer.max_steps=3"))
    assert result.status == 2
    last = result.errors.splitlines()[-1]
    assert last.startswith("error: step 2: the loss (nan)")
    assert "set trainer.on_nonfinite=skip" in last
    (dump,) = (tmp_path / "run").glob("nonfinite-*")
    content = json.loads(dump.read_text(encoding="utf-8"))
    assert content["step"] == 2
    assert len(content["rows"]) == 4
    assert set(content["rows"][0]) == {"key", "hypothesis", "advantage"}
    assert len(read_metrics(tmp_path / "run")) == 1


def test_a_loss_that_is_not_finite_can_be_skipped_and_is_counted(train_here, tmp_path, spoil):
    spoil(2)
    train_here(tmp_path / "run", *SMALL, "trainer.max_steps=3", "trainer.on_nonfinite=skip")
    rows = read_metrics(tmp_path / "run")
    assert [row["num_nonfinite"] for row in rows] == [0, 1, 1]
    assert all(torch.isfinite(weight).all() for weight in final_weights(tmp_path / "run").values())


def test_a_run_with_held_out_sets_compares_before_and_after(command, arguments, rows, tmp_path):
    held_out = write_manifest(tmp_path / "dev.jsonl", rows[:3])
    words = arguments(tmp_path / "run", *SMALL, f"data.dev={held_out}", f"data.test={held_out}")
    result = command("train", *words)
    assert result.status == 0, result.errors[-3000:]
    names = sorted(path.name for path in (tmp_path / "run" / "evaluations").iterdir())
    assert names == sorted(
        f"{split}-{mode}-{step:08d}.jsonl"
        for split in ("dev", "test")
        for mode in ("greedy", "sampled")
        for step in (0, 2)
    )
    table = [line for line in result.output.splitlines() if "greedy" in line or "sampled" in line]
    assert len(table) == 4
    assert read_metrics(tmp_path / "run")[-1]["dev_greedy/cer"] > 0
    keys = [line["key"] for line in read_lines(tmp_path / "run" / "evaluations" / names[0])]
    assert keys == [row["key"] for row in rows[:3]]


def test_supervised_training_writes_a_model_that_reinforcement_learning_starts_from(
    command, train_here, golden, manifest, rows, tmp_path
):
    held_out = write_manifest(tmp_path / "dev.jsonl", rows[:2])
    words = [
        f"model.path={golden / 'FireRedASR-LLM-tiny'}",
        f"data.train={manifest}",
        f"data.dev={held_out}",
        "data.num_workers=0",
        "num_epochs=1",
        "utterances_per_device=4",
        "eval_every=3",
        "max_new_tokens=4",
        "optim.num_warmup_steps=0",
        "ctc.encoder=0.3",
        "ctc.projector=0.3",
        "augment.spec_augment.num_time_masks=1",
        f"run_dir={tmp_path / 'sft'}",
    ]
    result = command("sft", *words)
    assert result.status == 0, result.errors[-3000:]
    assert f"wrote {tmp_path / 'sft' / 'model'}" in result.output
    steps = [row for row in read_metrics(tmp_path / "sft") if "loss" in row]
    assert [row["step"] for row in steps] == [1, 2, 3]
    assert all({"cross_entropy", "encoder_ctc", "projector_ctc"} <= row.keys() for row in steps)
    # One evaluation, although the last step is one at which one is due.
    assert len(read_metrics(tmp_path / "sft")) == 4
    trained = load_firered(tmp_path / "sft" / "model", lora_start="none")
    before = load_firered(golden / "FireRedASR-LLM-tiny", lora_start="none")
    changed = [
        name
        for (name, weight), other in zip(
            trained.state_dict().items(), before.state_dict().values(), strict=True
        )
        if not torch.equal(weight, other)
    ]
    for part in ("encoder.", "projector.", "llm."):
        assert any(name.startswith(part) for name in changed), part
    train_here(tmp_path / "rl", *SMALL, f"model.path={tmp_path / 'sft' / 'model'}", "trainer.max_steps=1")
    assert len(read_metrics(tmp_path / "rl")) == 1
