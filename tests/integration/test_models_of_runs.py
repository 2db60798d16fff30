"""What a run has trained, transcribed with, exported and reported on."""

import argparse
import base64
import json
import re
import shutil

import pytest
import torch
from runs import read_lines
from safetensors.torch import load_file

from asrl.cli import export as export_command
from asrl.models.firered import load_firered

SMALL = ("num_generations=2", "trainer.rows_per_device=4", "rollout.max_new_tokens=4", "trainer.max_steps=2")


@pytest.fixture(scope="module")
def run_dirs(train_here, manifest, tmp_path_factory):
    """Runs that start from the checkpoint's own LoRA and from a fresh one; both leave two checkpoints."""
    folder = tmp_path_factory.mktemp("runs")
    for start in ("continue", "merge"):
        train_here(
            folder / start,
            *SMALL,
            f"data.dev={manifest}",
            f"model.lora.start={start}",
            "trainer.save_every=1",
            "optim.learning_rate.decoder=0.02",
            "optim.learning_rate.projector=0.02",
        )
    return {start: folder / start for start in ("continue", "merge")}


def read_args(path):
    with torch.serialization.safe_globals([argparse.Namespace]):
        return vars(torch.load(path, weights_only=True)["args"])


def read_state(path):
    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(path, weights_only=True)["model_state_dict"]


@pytest.fixture
def hypotheses(command, rows, manifest, tmp_path):
    """Transcribe the manifest, the way a run evaluates."""

    def run(*source, words=()):
        output = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        words = ("--max-new-tokens", "4", "--num-workers", "0", *words)
        result = command(
            "transcribe", *map(str, source), "--manifest", str(manifest), "--output", str(output), *words
        )
        assert result.status == 0, result.errors
        return [row["hypothesis"] for row in read_lines(output)]

    return run


def evaluated(run_dir, step):
    path = run_dir / "evaluations" / f"dev-greedy-{step:08d}.jsonl"
    return [row["hypothesis"] for row in read_lines(path)]


@pytest.mark.parametrize("start", ["continue", "merge"])
def test_a_checkpoint_transcribes_as_the_run_evaluated_it(hypotheses, run_dirs, start, golden):
    run_dir = run_dirs[start]
    after = evaluated(run_dir, 2)
    assert after != evaluated(run_dir, 0)
    assert hypotheses("--checkpoint", run_dir) == after
    assert hypotheses("--checkpoint", run_dir / "checkpoints" / "step-00000002") == after
    assert hypotheses("--checkpoint", run_dir / "checkpoints" / "latest") == after
    assert hypotheses("--checkpoint", run_dir / "checkpoints" / "step-00000001") != after


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(command, run_dirs, manifest, tmp_path):
    copy = shutil.copytree(run_dirs["merge"], tmp_path / "run")
    (copy / "checkpoints" / "step-00000002" / "trainable.safetensors").write_bytes(b"")
    words = ["--checkpoint", str(copy), "--output", str(tmp_path / "export"), "--merge"]
    result = command("export", *words)
    assert result.status == 0, result.errors
    assert "step-00000002: damaged checkpoint passed over" in result.errors


@pytest.mark.parametrize(
    ("start", "words"), [("continue", ()), ("continue", ("--merge",)), ("merge", ("--merge",))]
)
def test_an_export_transcribes_as_the_checkpoint(command, hypotheses, run_dirs, tmp_path, start, words):
    directory = tmp_path / "export"
    result = command("export", "--checkpoint", str(run_dirs[start]), "--output", str(directory), *words)
    assert result.status == 0, result.errors
    assert re.search(r"wrote .*export; loaded again, its log-probs differ by \d", result.output)
    assert hypotheses("--model", directory) == evaluated(run_dirs[start], 2)
    has_lora = any(name.startswith("llm.") for name in read_state(directory / "model.pth.tar"))
    assert has_lora == (not words)


def test_the_released_directory_survives_an_export_bit_for_bit(command, golden, tmp_path):
    source = shutil.copytree(
        golden / "FireRedASR-LLM-tiny", tmp_path / "source", copy_function=shutil.copyfile
    )
    with torch.serialization.safe_globals([argparse.Namespace]):
        package = torch.load(source / "model.pth.tar", weights_only=True)
    package["args"].of_another_team = {"kept": [1, 2]}
    torch.save(package, source / "model.pth.tar")
    result = command("export", "--checkpoint", str(source), "--output", str(tmp_path / "export"))
    assert result.status == 0, result.errors
    assert "differ by 0.0e+00 at most" in result.output
    for name in ("asr_encoder.pth.tar", "model.pth.tar"):
        assert read_args(tmp_path / "export" / name) == read_args(source / name)
    assert read_args(tmp_path / "export" / "model.pth.tar")["of_another_team"] == {"kept": [1, 2]}
    expected, found = read_state(source / "model.pth.tar"), read_state(tmp_path / "export" / "model.pth.tar")
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    model = load_firered(tmp_path / "export", lora_start="continue")
    assert torch.equal(
        export_command.probe(model), export_command.probe(load_firered(source, lora_start="continue"))
    )


def test_merged_weights_have_the_type_asked_for(command, run_dirs, tmp_path):
    words = ["--checkpoint", str(run_dirs["merge"]), "--output", str(tmp_path / "export"), "--merge"]
    assert command("export", *words, "--dtype", "bfloat16").status == 0
    weights = load_file(tmp_path / "export" / "Qwen2-7B-Instruct" / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}


def refuse_export(command, *words):
    result = command("export", *map(str, words))
    assert result.status == 2
    assert "Traceback" not in result.errors
    return result.errors.splitlines()[-1]


def test_a_run_that_folded_its_lora_is_told_to_merge(command, run_dirs, tmp_path):
    line = refuse_export(command, "--checkpoint", run_dirs["merge"], "--output", tmp_path / "export")
    assert "lora.start=merge" in line
    assert line.endswith("add --merge")
    assert not (tmp_path / "export").exists()


def test_an_export_that_is_another_model_is_removed(command, run_dirs, tmp_path, monkeypatch):
    original = export_command.save_firered

    def spoil(model, directory, **options):
        with torch.no_grad():
            model.projector.linear2.bias += 1.0
        original(model, directory, **options)

    monkeypatch.setattr(export_command, "save_firered", spoil)
    line = refuse_export(command, "--checkpoint", run_dirs["continue"], "--output", tmp_path / "export")
    assert "loaded again, its log-probs are off by up to" in line
    assert not (tmp_path / "export").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--checkpoint", "nowhere"), "nowhere: not a checkpoint; name the directory of a run"),
        (("--checkpoint", "{run}/checkpoints/step-00000009"), "step-00000009: no such checkpoint"),
        (("--checkpoint", "{run}", "--dtype", "bfloat16"), "add --merge, or leave it out"),
    ],
)
def test_a_wrong_word_of_an_export_is_explained(command, run_dirs, tmp_path, words, message):
    words = [word.format(run=run_dirs["continue"]) for word in words]
    assert message in refuse_export(command, *words, "--output", tmp_path / "export")


def test_a_report_is_one_page_with_curves_tables_and_examples(command, run_dirs, tmp_path):
    words = [str(run_dirs["continue"]), str(run_dirs["merge"]), "--output", str(tmp_path / "report")]
    result = command("report", *words)
    assert result.status == 0, result.errors
    assert {path.name for path in (tmp_path / "report").iterdir()} == {
        "report.html",
        "curves.png",
        "before_after.png",
    }
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    (image,) = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert base64.b64decode(image) == (tmp_path / "report" / "curves.png").read_bytes()
    assert not re.search(r'(src|href)="(?!data:)', page)
    for name in ("continue", "merge"):
        summary = json.loads((run_dirs[name] / "summary.json").read_text(encoding="utf-8"))
        change = next(row for row in summary["evaluation"] if row["mode"] == "greedy")["difference"]
        assert f"<td>{100 * change:+.2f}</td>" in page


def test_a_report_goes_into_the_run_unless_told_otherwise(command, run_dirs, tmp_path):
    copy = shutil.copytree(run_dirs["merge"], tmp_path / "run")
    shutil.rmtree(copy / "evaluations")  # killed before the first
    assert command("report", str(copy)).status == 0
    assert {path.name for path in (copy / "report").iterdir()} == {"report.html", "curves.png"}


def test_a_report_of_no_run_is_refused(command, tmp_path):
    result = command("report", str(tmp_path))
    assert result.status == 2
    assert "not the directory of a run" in result.errors
