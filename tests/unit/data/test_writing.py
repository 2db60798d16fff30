"""Writing manifests: where their audio is, and that a failure leaves nothing."""

import json

import pytest
from audio_files import write_audio

from asrl.data.cache import cache_folder
from asrl.data.manifest import read_manifest
from asrl.data.writing import write_manifest
from asrl.errors import UserError
from asrl.utterance import Utterance


def test_what_is_written_is_read_again(tmp_path):
    audio = write_audio(tmp_path / "wav" / "a.wav", 1.0)
    utterance = Utterance("a", str(audio), "你好", hotwords=("你",), columns={"x": [1]}, start=0.5, channel=0)
    path = tmp_path / "new" / "m.jsonl"
    assert write_manifest(path, [utterance]) == 1
    (again,) = read_manifest(path)
    assert again == Utterance(**vars(utterance) | {"place": f"{path}:1"})


def test_paths_are_relative_inside_the_folder_and_absolute_outside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inside, outside = Utterance("a", "data/wav/a.wav", "x"), Utterance("b", "other/b.wav", "x")
    write_manifest(tmp_path / "data" / "m.jsonl", [inside, outside])
    rows = [json.loads(row) for row in (tmp_path / "data" / "m.jsonl").read_text().splitlines()]
    assert [row["audio"] for row in rows] == ["wav/a.wav", f"{tmp_path}/other/b.wav"]


def test_audio_out_of_a_data_set_is_copied_beside_the_manifest(tmp_path):
    audio = write_audio(cache_folder() / "set" / "audio" / "00000000.wav")
    path = tmp_path / "m.jsonl"
    write_manifest(path, [Utterance("a", str(audio), "x")])
    assert json.loads(path.read_text())["audio"] == "m-audio/00000000.wav"
    assert (tmp_path / "m-audio" / "00000000.wav").read_bytes() == audio.read_bytes()


def test_a_failure_leaves_the_old_file(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text("old")

    def utterances():
        yield Utterance("a", "a.wav", "x")
        raise UserError("m.jsonl:2: broken")

    with pytest.raises(UserError, match="broken"):
        write_manifest(path, utterances())
    assert [file.name for file in tmp_path.iterdir()] == ["m.jsonl"]
    assert path.read_text() == "old"


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/m\.jsonl: cannot write \("):
        write_manifest(tmp_path / "file" / "m.jsonl", [])
