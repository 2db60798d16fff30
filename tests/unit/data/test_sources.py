"""Telling formats apart, and converting folders once."""

import pytest
from audio_files import write_audio, write_lines

from asrl.data import sources
from asrl.data.cache import cache_folder
from asrl.data.lines import open_lines
from asrl.data.manifest import read_manifest
from asrl.data.sources import find_source
from asrl.errors import UserError
from asrl.utterance import Utterance


@pytest.fixture
def kaldi(tmp_path):
    folder = tmp_path / "kaldi"
    write_audio(folder / "wav" / "a.wav", 2.0)
    write_lines(folder / "wav.scp", "r wav/a.wav")
    write_lines(folder / "segments", "u r 0.5 1.25")
    write_lines(folder / "text", "u 你好")
    return folder


@pytest.fixture
def audio_folder(tmp_path):
    folder = tmp_path / "audio"
    write_audio(folder / "a.wav")
    write_lines(folder / "metadata.csv", "file_name,text", "a.wav,hi")
    return folder


@pytest.fixture
def conversions(monkeypatch):
    """Counts how often a folder is converted."""
    made = []
    convert = sources._write
    monkeypatch.setattr(sources, "_write", lambda *arguments: (made.append(1), convert(*arguments)))
    return made


def refused(path, format="auto"):
    with pytest.raises(UserError) as caught:
        find_source(path, format)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_kaldi_folder_is_recognised_and_read(kaldi):
    assert list(read_manifest(kaldi)) == [
        Utterance(
            "u",
            str(kaldi / "wav" / "a.wav"),
            "你好",
            start=0.5,
            duration=0.75,
            place=f"{kaldi}/segments:1",
        )
    ]


def test_the_place_of_a_converted_line_is_in_the_folder(kaldi):
    assert open_lines(kaldi).place(0) == f"{kaldi}/segments:1"


def test_an_audio_folder_is_recognised_and_read(audio_folder):
    (utterance,) = read_manifest(audio_folder)
    assert utterance == Utterance(
        "a.wav", str(audio_folder / "a.wav"), "hi", place=f"{audio_folder}/metadata.csv:2"
    )


@pytest.mark.parametrize(
    ("line", "format"),
    [
        ({"key": "a", "audio": "a.wav", "text": "x"}, "asrl"),
        ({"key": "a", "wav": "a.wav", "txt": "x"}, "wenet"),
        ({"key": "a", "source": "a.wav", "target": "x"}, "funasr"),
        ({"messages": [{"role": "assistant", "content": "x"}], "audios": ["a.wav"]}, "swift"),
    ],
)
def test_json_lines_are_told_apart_and_read(tmp_path, line, format):
    write_audio(tmp_path / "a.wav")
    path = write_lines(tmp_path / "m.jsonl", "", line)
    assert find_source(path).shape == format
    (utterance,) = read_manifest(path)
    assert (utterance.audio, utterance.transcript) == (str(tmp_path / "a.wav"), "x")
    assert list(read_manifest(path, format=format)) == [utterance]


def test_the_format_can_be_forced(tmp_path):
    path = write_lines(tmp_path / "m.jsonl", {"key": "a", "audio": "a.wav", "text": "x"})
    with pytest.raises(UserError, match=r"m\.jsonl:1: column 'wav' is missing"):
        read_manifest(path, format="wenet")


def test_repeated_audio_without_keys_names_both_lines(tmp_path):
    write_audio(tmp_path / "a.wav")
    line = {"messages": [{"role": "assistant", "content": "x"}], "audios": ["a.wav"]}
    path = write_lines(tmp_path / "m.jsonl", line, line)
    with pytest.raises(UserError, match=r"m\.jsonl:2: key 'a\.wav' was already used on line 1"):
        read_manifest(path)


def test_what_is_missing_after_conversion_is_named_where_it_was_written(kaldi):
    write_lines(kaldi / "wav.scp", "r gone.wav")
    with pytest.raises(UserError) as caught:
        read_manifest(kaldi)
    assert str(caught.value).startswith(f"{kaldi}/segments:1: audio file {kaldi}/gone.wav does not exist")


def test_a_folder_is_converted_once_until_it_changes(kaldi, conversions):
    for _ in range(2):
        read_manifest(kaldi)
    assert len(conversions) == 1
    write_lines(kaldi / "text", "u hello")
    assert read_manifest(kaldi)[0].transcript == "hello"
    assert len(conversions) == 2


def test_a_conversion_that_failed_leaves_nothing_behind(kaldi):
    write_lines(kaldi / "text", "v x")
    for _ in range(2):
        with pytest.raises(UserError, match="has no line in"):
            read_manifest(kaldi)


def test_without_a_cache_a_folder_is_still_read(kaldi, tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("ASRL_CACHE", str(blocked / "cache"))
    with pytest.warns(UserWarning, match=r"cannot write here \(Not a directory\).*set ASRL_CACHE"):
        folder = cache_folder()
    assert cache_folder() == folder  # for the rest of the process
    assert read_manifest(kaldi)[0].key == "u"


@pytest.mark.parametrize(
    ("format", "message"),
    [
        ("auto", "not a folder of data: Kaldi's has wav.scp"),
        ("kaldi", "data.format=kaldi needs a folder with a file wav.scp; there is none"),
        ("huggingface", "not a folder of data"),
    ],
)
def test_other_folders_are_refused(tmp_path, format, message):
    assert refused(tmp_path, format).startswith(f"{tmp_path}: {message}")


def test_a_folder_of_splits_is_refused_with_their_names(audio_folder):
    parent = audio_folder.parent / "splits"
    for name in ("train", "test"):
        write_lines(parent / name / "metadata.jsonl", {})
    (parent / "docs").mkdir()
    assert refused(parent) == f"{parent}: name one of the folders in it: test, train"


def test_a_missing_path_is_refused(tmp_path):
    assert (
        refused(tmp_path / "none") == f"{tmp_path}/none: cannot read the manifest (No such file or directory)"
    )
