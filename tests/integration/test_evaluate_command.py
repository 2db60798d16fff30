"""``asrl evaluate`` on hypotheses that were counted by hand, and with a model."""

import json
import re

import pytest
from runs import read_lines, write_manifest

MANIFEST = [
    {"key": "a", "audio": "a.wav", "text": "打开空调", "hotwords": ["空调"], "distractors": ["空条"]},
    {"key": "b", "audio": "b.wav", "text": "play 3.5 u s b"},
    {"key": "c", "audio": "c.wav", "text": "你好"},
]
# "a": one of 4 substituted (the hotword became its distractor). "b": by our rules 1 of 5 units deleted.
HYPOTHESES = [{"key": "b", "hypothesis": "Play 3.5 USB!"}, {"key": "a", "hypothesis": "打开空条"}]


@pytest.fixture
def evaluate(command, tmp_path):
    """Evaluate hypotheses; return what was printed and the JSON."""
    write_manifest(tmp_path / "m.jsonl", MANIFEST)
    write_manifest(tmp_path / "h.jsonl", HYPOTHESES)

    def run(*words, manifest="m.jsonl", hypotheses="h.jsonl"):
        words = ("--manifest", tmp_path / manifest, "--hypotheses", tmp_path / hypotheses, *words)
        result = command("evaluate", *map(str, words), "--json", str(tmp_path / "rates.json"))
        assert result.status == 0, result.errors
        return result.output, json.loads((tmp_path / "rates.json").read_text(encoding="utf-8"))

    return run


def test_rates_are_those_counted_by_hand_and_what_is_missing_is_counted(evaluate):
    printed, content = evaluate()
    # Nine units: 打 开 空 调, play 3.5 u s b. Errors: 调 substituted; u to usb substituted, s and b deleted.
    rates = content["rates"]
    assert rates["cer"] == pytest.approx(4 / 9)
    assert (rates["substitutions"], rates["deletions"]) == (pytest.approx(2 / 9), pytest.approx(2 / 9))
    assert rates["sentence_error_rate"] == 1.0
    assert (rates["hotword_recall"], rates["hotword_precision"]) == (0.0, 0.0)
    assert rates["hotword_false_insertions"] == 1
    assert (content["num_utterances"], content["num_missing"]) == (2, 1)
    assert re.search(r"error rate +│ +44.44 %", printed)
    assert "left out: 1 utterances of the manifest without a hypothesis or a text" in printed


def test_the_rules_of_upstream_count_other_units(evaluate):
    # v1: PLAY 3 5 U S B (the point is punctuation); U to USB, S and B deleted: with 调 4 of 10.
    assert evaluate("--rules", "upstream-v1")[1]["rates"]["cer"] == pytest.approx(4 / 10)
    # v2: PLAY 3 5 USB on both sides: 1 of 8.
    printed, content = evaluate("--rules", "upstream-v2")
    assert content["rates"]["cer"] == pytest.approx(1 / 8)
    assert content["rules"] == "upstream-v2"
    assert "2 utterances, 8 units, rules upstream-v2" in printed


def test_numerals_can_be_written_as_chinese_first(evaluate, tmp_path):
    pytest.importorskip("cn2an")
    write_manifest(tmp_path / "n.jsonl", [{"key": "a", "audio": "a.wav", "text": "第二十三集"}])
    write_manifest(tmp_path / "hn.jsonl", [{"key": "a", "hypothesis": "第23集"}])
    names = {"manifest": "n.jsonl", "hypotheses": "hn.jsonl"}
    # 二 substituted by 23, 十 and 三 deleted.
    assert evaluate(**names)[1]["rates"]["cer"] == pytest.approx(3 / 5)
    assert evaluate("--numbers-to-chinese", **names)[1]["rates"]["cer"] == 0


def test_the_hypotheses_with_most_errors_are_lined_up(evaluate):
    printed, _ = evaluate("--show", "1")
    # Which of the three letters stands for "usb" is jiwer's choice.
    assert printed.splitlines()[:4] == [
        "b: 3 errors, 5 units",
        "REF  play 3.5 u   s b",
        "HYP  play 3.5 usb",
        "              S   D D",
    ]
    assert "a: 1 errors" not in printed


def test_two_files_are_compared_over_what_both_have(evaluate, tmp_path):
    write_manifest(
        tmp_path / "other.jsonl", [{"key": "a", "hypothesis": "打开"}, {"key": "c", "hypothesis": "你好"}]
    )
    printed, content = evaluate("--compare", str(tmp_path / "other.jsonl"))
    # Only "a" is in both: 2 of 4 missing there, 1 of 4 wrong here. One utterance leaves no doubt.
    comparison = content["comparison"]
    assert comparison["interval"] == {"difference": -0.25, "low": -0.25, "high": -0.25}
    assert "-25.00 points, 95 % interval [-25.00, -25.00] over 1 utterances: lower" in printed


def test_a_model_is_transcribed_first(command, golden, manifest, tmp_path):
    words = ["--manifest", manifest, "--model", golden / "FireRedASR-LLM-tiny", "--max-new-tokens", "2"]
    words += ["--output", tmp_path / "out.jsonl", "--json", tmp_path / "model.json", "--num-workers", "0"]
    assert command("evaluate", *map(str, words)).status == 0
    assert len(read_lines(tmp_path / "out.jsonl")) == 12
    again = [
        "--manifest",
        manifest,
        "--hypotheses",
        tmp_path / "out.jsonl",
        "--json",
        tmp_path / "again.json",
    ]
    assert command("evaluate", *map(str, again)).status == 0
    assert (tmp_path / "again.json").read_text() == (tmp_path / "model.json").read_text()
    assert json.loads((tmp_path / "model.json").read_text())["rates"]["truncated"] > 0.5


@pytest.mark.parametrize(
    ("lines", "words", "message"),
    [
        ([{"key": "z", "hypothesis": ""}], (), "no utterance has a hypothesis; check that the keys agree"),
        ([{"key": "a", "text": "x"}], (), "h.jsonl:1: a line needs the texts 'key' and 'hypothesis'"),
        ([HYPOTHESES[0], HYPOTHESES[0]], (), "h.jsonl:2: key 'b' was already used"),
        (HYPOTHESES, ("--output", "x.jsonl"), "--output is for the transcripts of a model"),
        (HYPOTHESES, ("--compare", "{folder}/none.jsonl"), "none.jsonl: no such file"),
        (HYPOTHESES, ("--compare", "{folder}/c.jsonl"), "has no utterance in common"),
    ],
)
def test_what_cannot_be_scored_is_explained_in_one_line(command, tmp_path, lines, words, message):
    manifest = write_manifest(tmp_path / "m.jsonl", MANIFEST)
    write_manifest(tmp_path / "c.jsonl", [{"key": "c", "hypothesis": "你好"}])
    words = [word.format(folder=tmp_path) for word in words]
    path = write_manifest(tmp_path / "h.jsonl", lines)
    result = command("evaluate", "--manifest", str(manifest), "--hypotheses", str(path), *words)
    assert (result.status, len(result.errors.splitlines())) == (2, 1)
    assert message in result.errors


def test_a_manifest_without_texts_is_refused(command, tmp_path):
    manifest = write_manifest(tmp_path / "m.jsonl", [{"key": "a", "audio": "a.wav"}])
    path = write_manifest(tmp_path / "h.jsonl", HYPOTHESES)
    result = command("evaluate", "--manifest", str(manifest), "--hypotheses", str(path))
    assert "m.jsonl: no line has a text to compare with" in result.errors


def test_a_line_without_a_text_is_left_out_and_counted(evaluate, tmp_path):
    write_manifest(tmp_path / "m2.jsonl", [MANIFEST[0], {"key": "b", "audio": "b.wav"}])
    content = evaluate(manifest="m2.jsonl")[1]
    assert content["rates"]["cer"] == pytest.approx(1 / 4)
    assert (content["num_utterances"], content["num_missing"]) == (1, 1)


def test_a_last_line_without_a_newline_counts_in_files_of_anyone(evaluate, tmp_path):
    lines = "\ufeff" + "\n\n".join(json.dumps(row, ensure_ascii=False) for row in HYPOTHESES)
    (tmp_path / "bare.jsonl").write_text(lines, encoding="utf-8")
    assert evaluate(hypotheses="bare.jsonl")[1]["num_utterances"] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--json", "{h}"], "is what this command reads"),
        (["--json", "{m}"], "is what this command reads"),
        (["--show", "-1"], "--show must be at least 0"),
        (["--compare", "{h}.none"], "no such file"),
    ],
)
def test_a_mistake_costs_one_line_and_no_file(command, tmp_path, words, message):
    paths = {
        "m": write_manifest(tmp_path / "m.jsonl", MANIFEST),
        "h": write_manifest(tmp_path / "h.jsonl", HYPOTHESES),
    }
    before = [path.read_bytes() for path in paths.values()]
    given = [word.format(**paths) for word in words]
    result = command("evaluate", "--manifest", str(paths["m"]), "--hypotheses", str(paths["h"]), *given)
    assert result.status == 2
    assert result.errors.count("error: ") == 1
    assert message in result.errors
    assert [path.read_bytes() for path in paths.values()] == before
