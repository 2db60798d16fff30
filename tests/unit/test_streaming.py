import json
import shutil

import pytest

from asrl.data.dataset import SpeechDataset
from asrl.data.features import read_cmvn
from asrl.errors import UserError
from asrl.evaluate import Decoded, Transcription
from asrl.streaming import BadAudio, Budget, TranscriptionFile, transcribe_in_batches
from asrl.utterance import Utterance

SETTINGS = {"model": "m", "--beam": 1}
UTTERANCES = [Utterance(name, f"{name}.wav", "") for name in "abcd"]


def line(place, hypothesis="好"):
    return Transcription(place, "abcd"[place], "", hypothesis, False)


def begin(path, *lines, settings=SETTINGS):
    file = TranscriptionFile(path, settings)
    assert file.open(UTTERANCES) == []
    for each in lines:
        file.append([each])
    return file


def refuse(path, utterances=UTTERANCES, settings=SETTINGS):
    with pytest.raises(UserError) as error:
        TranscriptionFile(path, settings).open(utterances)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_every_batch_is_in_the_file_at_once(tmp_path):
    begin(tmp_path / "out.jsonl", line(2), line(0))
    rows = [json.loads(row) for row in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(row["key"], row["hypothesis"]) for row in rows] == [("c", "好"), ("a", "好")]


def test_a_finished_file_is_in_input_order(tmp_path):
    file = begin(tmp_path / "out.jsonl", line(2), line(0), line(1))
    assert file.finish() == [line(0), line(1), line(2)]
    assert [json.loads(row)["place"] for row in (tmp_path / "out.jsonl").open(encoding="utf-8")] == [0, 1, 2]


def test_a_file_is_continued_after_a_kill_in_the_middle_of_a_character(tmp_path):
    path = tmp_path / "out.jsonl"
    begin(path, line(2), line(0), line(1))
    content = path.read_bytes()
    cut = content.rindex("好".encode()) + 1  # one byte of the last line's character
    path.write_bytes(content[:cut])
    file = TranscriptionFile(path, SETTINGS)
    assert file.open(UTTERANCES) == [line(2), line(0)]
    file.append([line(1)])
    assert file.finish() == [line(0), line(1), line(2)]


def test_another_setting_is_refused_and_named(tmp_path):
    begin(tmp_path / "out.jsonl", line(0))
    assert "was begun with --beam 1, not 3" in refuse(
        tmp_path / "out.jsonl", settings=SETTINGS | {"--beam": 3}
    )


def test_lines_of_other_utterances_are_refused(tmp_path):
    begin(tmp_path / "out.jsonl", line(3))
    assert "holds 'd', which is not utterance 4" in refuse(tmp_path / "out.jsonl", UTTERANCES[:3])
    renamed = [*UTTERANCES[:3], Utterance("e", "e.wav", "")]
    assert "holds 'd', which is not utterance 4" in refuse(tmp_path / "out.jsonl", renamed)


def test_a_file_of_something_else_is_refused(tmp_path):
    (tmp_path / "out.jsonl").write_text('{"key": "a", "hypothesis": "mine"}\n')
    assert "was not made by this command" in refuse(tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_text() == '{"key": "a", "hypothesis": "mine"}\n'


@pytest.mark.parametrize("content", ["", "[1]", '{"model"'])
def test_damaged_settings_are_refused(tmp_path, content):
    begin(tmp_path / "out.jsonl", line(0))
    (tmp_path / "out.jsonl.settings.json").write_text(content)
    assert "settings.json: damaged" in refuse(tmp_path / "out.jsonl")


@pytest.fixture
def recordings(tmp_path, golden):
    """Four utterances: 0.8 s, 2 s, and two copies of the first."""
    names = {"a": "synth", "b": "bacp", "c": "synth", "d": "synth"}
    for key, name in names.items():
        shutil.copyfile(golden / "wav" / f"{name}.wav", tmp_path / f"{key}.wav")
    return SpeechDataset(
        [Utterance(key, str(tmp_path / f"{key}.wav"), "") for key in names],
        cmvn=read_cmvn(golden / "FireRedASR-LLM-tiny" / "cmvn.ark"),
    )


def echo(batch):
    """Every hypothesis is the key."""
    return Decoded([u.key for u in batch.utterances], [False] * len(batch.utterances))


def run(dataset, places=range(4), *, is_skipped=False, num_workers=0):
    bad_audio = BadAudio(is_skipped)
    budget = Budget(max_utterances=2, max_seconds=100.0, num_workers=num_workers)
    batches = transcribe_in_batches(dataset, places, echo, budget=budget, bad_audio=bad_audio)
    return [[each.hypothesis for each in batch] for batch in batches], bad_audio.faults


def test_the_longest_come_first_and_only_what_is_asked_for(recordings):
    assert run(recordings) == ([["b", "a"], ["c", "d"]], [])
    assert run(recordings, [0, 1]) == ([["b", "a"]], [])


def test_a_file_that_is_no_audio_stops_before_anything_is_transcribed(recordings, tmp_path):
    (tmp_path / "c.wav").write_text("not audio")
    with pytest.raises(UserError, match=r"c: .*c\.wav: cannot read audio"):
        run(recordings)


def broken_features(dataset, key):
    """Fail where the header is fine."""
    featurize = dataset.featurize

    def fail(utterance, *, epoch=0):
        if utterance.key == key:
            raise UserError(f"{utterance.key}: damaged samples")
        return featurize(utterance, epoch=epoch)

    dataset.featurize = fail
    return dataset


def test_damage_behind_the_header_stops_at_its_batch(recordings):
    dataset = broken_features(recordings, "d")
    batches = transcribe_in_batches(
        dataset, range(4), echo, budget=Budget(2, 100.0, 0), bad_audio=BadAudio(False)
    )
    assert [each.hypothesis for each in next(batches)] == ["b", "a"]
    with pytest.raises(UserError, match="d: damaged samples"):
        next(batches)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_bad_audio_is_skipped_and_the_rest_of_its_batch_is_not(recordings, tmp_path, num_workers):
    (tmp_path / "a.wav").write_text("not audio")
    batches, faults = run(broken_features(recordings, "c"), is_skipped=True, num_workers=num_workers)
    assert batches == [["b"], ["d"]]
    assert [fault.split(":")[0] for fault in faults] == ["a", "c"]


def test_a_failure_that_no_audio_explains_is_not_skipped(recordings, monkeypatch):
    def die(dataset, rows):
        raise UserError("data.num_workers: a worker process died")

    monkeypatch.setattr(SpeechDataset, "collate", die)
    with pytest.raises(UserError, match="worker process died"):
        run(recordings, is_skipped=True)
