"""``asrl transcribe`` against the transcripts of upstream, whole and in pieces."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runs import ROOT, read_lines, write_manifest

NAMES = ("synth", "bacp")


@pytest.fixture(scope="module")
def checkpoint(golden):
    return golden / "FireRedASR-LLM-tiny"


@pytest.fixture(scope="module")
def audio(golden):
    return [str(golden / "wav" / f"{name}.wav") for name in NAMES]


@pytest.fixture(scope="module")
def expected(golden, checkpoint):
    """What upstream writes: greedily, and with 3 beams at the penalties of its example."""
    from asrl.models.prompt import load_tokenizer  # noqa: PLC0415 (slow)

    tokenizer = load_tokenizer(checkpoint / "Qwen2-7B-Instruct")
    utterances = json.loads((golden / "golden.stride.json").read_text(encoding="utf-8"))["utts"]
    beams = [
        tokenizer.decode(utterances[name]["beam3_rp3_lp1_ids"], skip_special_tokens=True) for name in NAMES
    ]
    return {1: [utterances[name]["greedy_text"] for name in NAMES], 3: beams}


@pytest.fixture
def transcribe(command, checkpoint, tmp_path):
    """Run the command into a file and return its lines."""

    def run(*words, output="out.jsonl", model=("--model", checkpoint)):
        words = [*model, "--output", tmp_path / output, "--device", "cpu", "--num-workers", "0", *words]
        result = command("transcribe", *map(str, words))
        assert result.status == 0, result.errors
        return read_lines(tmp_path / output)

    return run


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("batch_size", [1, 2])
def test_transcripts_are_those_of_upstream_alone_and_in_a_batch(
    transcribe, audio, expected, beam, batch_size
):
    rows = transcribe("--audio", *audio, "--beam", beam, "--batch-size", batch_size)
    assert [row["key"] for row in rows] == list(NAMES)
    assert [row["hypothesis"] for row in rows] == expected[beam]
    assert [row["is_truncated"] for row in rows] == [True, False]  # 10 tokens for 10 speech embeddings


def test_without_output_the_lines_are_printed(command, checkpoint, audio, expected):
    result = command("transcribe", "--model", str(checkpoint), "--audio", *audio, "--num-workers", "0")
    rows = [json.loads(line) for line in result.output.splitlines()]
    assert [row["hypothesis"] for row in rows] == expected[1]


def test_the_length_rule_is_that_of_the_option(transcribe, audio, golden):
    utterances = json.loads((golden / "golden.arith.json").read_text(encoding="utf-8"))["utts"]
    rows = transcribe("--audio", *audio, "--length-rule", "arith")
    assert [row["hypothesis"] for row in rows] == [utterances[name]["greedy_text"] for name in NAMES]


def test_neither_batches_nor_order_nor_references_change_a_transcript(transcribe, rows, tmp_path):
    rows = rows[:6]
    manifest = write_manifest(tmp_path / "all.jsonl", rows)
    found = transcribe("--manifest", manifest, output="together.jsonl")
    assert [row["key"] for row in found] == [row["key"] for row in rows]
    expected = {row["key"]: row["hypothesis"] for row in found}
    bare = [{"key": row["key"], "audio": row["audio"]} for row in reversed(rows)]
    manifest = write_manifest(tmp_path / "bare.jsonl", bare)
    for number, words in enumerate((("--batch-size", 1), ("--batch-size", 4), ("--max-batch-seconds", 6))):
        found = transcribe("--manifest", manifest, *words, output=f"bare-{number}.jsonl")
        assert {row["key"]: row["hypothesis"] for row in found} == expected
        assert [row["key"] for row in found] == [row["key"] for row in bare]


def test_a_killed_command_goes_on_and_transcribes_nothing_twice(
    transcribe, rows, tmp_path, manifest, monkeypatch
):
    words = ("--manifest", manifest, "--max-new-tokens", 4)
    whole = transcribe(*words, output="whole.jsonl")
    content = (tmp_path / "whole.jsonl").read_bytes().splitlines(keepends=True)
    path = tmp_path / "out.jsonl"
    shutil.copyfile(tmp_path / "whole.jsonl.settings.json", tmp_path / "out.jsonl.settings.json")
    path.write_bytes(b"".join([*content[7:], content[2], content[0][:40]]))

    from asrl.cli import transcribe as module  # noqa: PLC0415

    asked = []
    original = module.transcribe_in_batches

    def spy(dataset, places, *arguments, **keywords):
        asked.extend(places)
        return original(dataset, places, *arguments, **keywords)

    monkeypatch.setattr(module, "transcribe_in_batches", spy)
    assert transcribe(*words) == whole
    assert asked == [0, 1, 3, 4, 5, 6]


def test_another_model_is_refused(command, transcribe, audio, checkpoint, tmp_path):
    transcribe("--audio", *audio)
    other = shutil.copytree(checkpoint, tmp_path / "other")
    words = ["--model", str(other), "--audio", *audio, "--output", str(tmp_path / "out.jsonl")]
    result = command("transcribe", *words)
    assert result.status == 2
    assert "out.jsonl: was begun with model" in result.errors


def test_a_replaced_model_is_refused(command, transcribe, audio, checkpoint, tmp_path):
    copy = shutil.copytree(checkpoint, tmp_path / "copy")
    transcribe("--audio", *audio, model=("--model", copy))
    os.utime(copy / "model.pth.tar", (0, 0))
    words = ["--model", str(copy), "--audio", *audio, "--output", str(tmp_path / "out.jsonl")]
    assert "was begun with files of the model" in command("transcribe", *words).errors


def test_bad_audio_stops_with_one_line_or_is_skipped_and_counted(
    command, transcribe, checkpoint, rows, tmp_path
):
    (tmp_path / "bad.wav").write_text("not audio")
    broken = [dict(row) for row in rows[:4]]
    broken[1]["audio"] = str(tmp_path / "bad.wav")
    broken[2]["audio"] = str(tmp_path / "absent.wav")
    manifest = write_manifest(tmp_path / "broken.jsonl", broken)
    result = command("transcribe", "--model", str(checkpoint), "--manifest", str(manifest))
    assert result.status == 2
    assert "absent.wav" in result.errors.splitlines()[-1]
    found = transcribe("--manifest", manifest, "--skip-bad")
    assert [row["key"] for row in found] == [broken[0]["key"], broken[3]["key"]]
    words = [
        "--model",
        checkpoint,
        "--manifest",
        manifest,
        "--output",
        tmp_path / "again.jsonl",
        "--skip-bad",
    ]
    result = command("transcribe", *map(str, words))
    assert "bad.wav: cannot read audio" in result.output + result.errors
    assert "skipped 2 with bad audio" in result.errors


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--beam", "0"), "--beam must be at least 1, got 0"),
        (("--batch-size", "0"), "--batch-size must be at least 1, got 0"),
        (("--max-new-tokens", "-1"), "--max-new-tokens must be at least 0, got -1"),
        (("--max-batch-seconds", "0"), "--max-batch-seconds must be above 0, got 0.0"),
        (("--num-workers", "-1"), "--num-workers must be at least 0, got -1"),
        (("--repetition-penalty", "0"), "--repetition-penalty must be above 0, got 0.0"),
        (("--length-penalty", "1"), "--length-penalty compares beams"),
        (("--device", "nowhere"), "--device nowhere: cannot be used"),
    ],
)
def test_a_wrong_option_is_explained_in_one_line(command, checkpoint, audio, words, message):
    result = command("transcribe", "--model", str(checkpoint), "--audio", *audio, *words)
    assert result.status == 2
    assert message in result.errors.splitlines()[-1]


def test_a_missing_model_is_explained_in_one_line(command, audio):
    result = command("transcribe", "--model", "nowhere", "--audio", *audio)
    assert (result.status, len(result.errors.splitlines())) == (2, 1)
    assert "nowhere: a checkpoint is a directory" in result.errors


def test_files_of_one_name_are_told_apart_by_their_paths(transcribe, audio, tmp_path):
    copy = shutil.copyfile(audio[0], tmp_path / "synth.wav")
    rows = transcribe("--audio", audio[0], copy, audio[1])
    assert [row["key"] for row in rows] == [audio[0], str(copy), "bacp"]


@pytest.mark.slow
def test_a_process_killed_while_it_transcribes_goes_on(checkpoint, tmp_path, golden):
    manifest = ROOT / "demo" / "test.jsonl"
    output = tmp_path / "out.jsonl"
    words = ["transcribe", "--model", ROOT / "demo" / "FireRedASR-LLM-demo", "--manifest", manifest]
    words = [*words, "--output", output, "--num-workers", "0", "--batch-size", "4"]
    code = "from asrl.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    while not (output.exists() and output.stat().st_size > 2000):
        time.sleep(0.05)
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    num_done = output.read_bytes().count(b"\n")
    result = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert f"transcribed 768 utterances, {num_done} of them before" in result.stderr
    keys = [row["key"] for row in map(json.loads, Path(manifest).read_text(encoding="utf-8").splitlines())]
    assert [row["key"] for row in read_lines(output)] == keys


def test_another_recording_of_the_same_name_is_refused(command, transcribe, audio, checkpoint, tmp_path):
    shutil.copyfile(audio[0], tmp_path / "bacp.wav")
    transcribe("--audio", audio[1])
    words = ["--model", str(checkpoint), "--audio", str(tmp_path / "bacp.wav")]
    result = command("transcribe", *words, "--output", str(tmp_path / "out.jsonl"))
    assert result.status == 2
    assert "out.jsonl: was begun with the recordings" in result.errors


def test_a_recording_given_twice_is_refused(command, audio, checkpoint):
    result = command("transcribe", "--model", str(checkpoint), "--audio", audio[0], audio[0])
    assert result.status == 2
    assert "is given twice" in result.errors
