"""``asrl data``: what it prints and writes, and its exit status."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from asrl.cli import data
from asrl.data.manifest import read_manifest
from asrl.errors import exit_with_one_line


@pytest.fixture
def folder(tmp_path):
    """A WeNet manifest of twelve utterances of 1 s, one of 31 s, and lines that are wrong."""
    soundfile.write(tmp_path / "one.wav", np.full(16000, 0.1), 16000)
    soundfile.write(tmp_path / "long.wav", np.full(31 * 8000, 0.1), 8000)
    lines = [{"key": f"k{number}", "wav": "one.wav", "txt": "打开窗户"} for number in range(12)]
    lines[0] |= {"hotwords": ["窗户", "打开"]}
    lines[1] |= {"hotwords": ["窗户"]}
    lines[3] |= {"txt": "一二三四五六七八九十"}  # 10 characters where the others have 4
    lines[5] |= {"wav": "gone.wav"}
    lines += [
        {"key": "long", "wav": "long.wav", "txt": "字" * 120},
        {"key": "k0", "wav": "one.wav", "txt": "关上窗户"},
    ]
    texts = [json.dumps(line, ensure_ascii=False) for line in lines]
    (tmp_path / "m.jsonl").write_text("\n".join([*texts, "{broken"]), encoding="utf-8")
    return tmp_path


@pytest.fixture
def run(monkeypatch, capsys, folder):
    """Run ``asrl data`` in the folder."""

    def command(*words):
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["asrl data", *words])
        status = 0
        try:
            exit_with_one_line(data.main)
        except SystemExit as end:
            status = end.code
        captured = capsys.readouterr()
        return SimpleNamespace(status=status, output=captured.out, errors=captured.err)

    return command


def test_problems_are_printed_and_left_out_of_the_clean_manifest(run, folder):
    words = ["--output", "clean.jsonl", "--json", "report.json", "--num-workers", "0"]
    result = run("check", "m.jsonl", *words)
    assert result.status == 1
    lines = result.output.splitlines()
    assert lines[0] == "m.jsonl: 15 utterances, 0.01 hours of audio"  # 12 * 1 s + 31 s
    for kind, example in (
        ("bad audio", "m.jsonl:6: k5: gone.wav: no such audio file"),
        (
            "too long",
            "m.jsonl:13: long: an utterance must last at most 30 s, got 31.00 s",
        ),
        ("repeated key", "m.jsonl:14: key 'k0' was already used at m.jsonl:1"),
        ("bad line", "m.jsonl:15: not valid JSON at column 2"),
    ):
        assert any(kind in line and example in line for line in lines), kind
    assert any("m.jsonl:4 " in line and "10.00" in line and "一二三四五六七八九十" in line for line in lines)
    assert "wrote clean.jsonl: 11 of 15 lines" in result.output
    kept = [f"k{number}" for number in range(12) if number != 5]
    assert [utterance.key for utterance in read_manifest(folder / "clean.jsonl")] == kept
    report = json.loads((folder / "report.json").read_text())
    assert report["num_problems"] == {"bad audio": 1, "too long": 1, "repeated key": 1, "bad line": 1}
    assert [row["place"] for row in report["outliers"]] == ["m.jsonl:4"]


def test_clean_data_ends_with_status_0(run):
    run("check", "m.jsonl", "--output", "clean.jsonl", "--num-workers", "0")
    result = run("check", "clean.jsonl", "--num-workers", "1")
    assert result.status == 0
    assert "No problems." in result.output
    assert "1 to 2 s" in result.output


def test_the_longest_audio_allowed_is_an_option(run):
    result = run("check", "m.jsonl", "--max-seconds", "32", "--num-workers", "0")
    assert "too long" not in result.output


def test_other_layouts_become_manifests_of_ours(run, folder):
    first = json.dumps(
        {"key": "a", "source": "one.wav", "target": "你好", "speaker": "s"}, ensure_ascii=False
    )
    (folder / "funasr.jsonl").write_text(first, encoding="utf-8")
    result = run("convert", "funasr.jsonl", "--output", "ours.jsonl")
    assert (result.status, result.output) == (0, "wrote ours.jsonl: 1 utterances\n")
    assert json.loads((folder / "ours.jsonl").read_text()) == {
        "key": "a",
        "audio": "one.wav",
        "text": "你好",
        "speaker": "s",
    }


def test_statistics_believe_the_headers(run, folder):
    result = run("stats", "m.jsonl", "--num-workers", "0", "--json", "stats.json")
    assert result.status == 0
    assert "m.jsonl: 15 utterances, 0.01 hours of audio" in result.output
    assert "Characters per second: 4.00 in the median" in result.output
    hotwords = "13.3 % of the utterances have any, 2 different ones, each in 1 to 2 utterances"  # 2 of 15
    assert f"Hotwords: {hotwords}" in result.output
    assert "3 lines have problems: see `asrl data check m.jsonl`" in result.output  # long ones are none here
    assert json.loads((folder / "stats.json").read_text())["seconds"]["max"] == 31.0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["check", "none.jsonl"], "none.jsonl: cannot read the manifest (No such file or directory)"),
        (["convert", "m.jsonl", "--output", "x.jsonl"], "m.jsonl:6: audio file gone.wav does not exist"),
        (["check", "m.jsonl", "--output", "./m.jsonl"], "--output ./m.jsonl: is what this command reads"),
        (["check", "m.jsonl", "--max-seconds", "0"], "--max-seconds must be above 0, got 0"),
        (["stats", "m.jsonl", "--num-workers", "-1"], "--num-workers must be at least 0, got -1"),
        (
            ["check", "m.jsonl", "--format", "kaldi"],
            "m.jsonl: data.format=kaldi needs a folder with a file wav.scp",
        ),
    ],
)
def test_a_mistake_ends_in_one_line_and_status_2(run, words, message):
    result = run(*words)
    assert result.status == 2
    assert result.errors.splitlines()[-1].startswith(f"error: {message}")


@pytest.mark.parametrize(
    "words", [["--help"], ["check", "--help"], ["convert", "--help"], ["stats", "--help"]]
)
def test_everything_has_help(run, words):
    result = run(*words)
    assert result.status == 0
    assert result.output.startswith("usage: asrl data")
