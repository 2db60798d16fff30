"""Kaldi folders: segments, channels and durations by value, every mistake by file and line."""

import pytest
from audio_files import write_lines

from asrl.data.kaldi import read_kaldi
from asrl.errors import UserError


def make(folder, **files):
    for name, lines in files.items():
        write_lines(folder / {"wav": "wav.scp"}.get(name, name), *lines)
    return folder


def refused(folder):
    with pytest.raises(UserError) as caught:
        list(read_kaldi(folder))
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(folder), "DIR")


def test_whole_recordings(tmp_path):
    folder = make(
        tmp_path, wav=["a /x/a b.wav", "", "b\tb.flac"], text=["b hi  there", "a 你好"], utt2dur=["b 2.5"]
    )
    assert list(read_kaldi(folder)) == [
        {"key": "a", "audio": "/x/a b.wav", "text": "你好", "place": f"{folder}/wav.scp:1"},
        {"key": "b", "audio": "b.flac", "text": "hi  there", "duration": 2.5, "place": f"{folder}/wav.scp:3"},
    ]


def test_segments_cut_recordings(tmp_path):
    folder = make(
        tmp_path,
        wav=["r r.wav"],
        segments=["u1 r 0 1.5", "u2 r 1.5 -1 1", "u3 r 2 2.5 0"],
        text=["u1 a", "u2 b", "u3 c"],
        utt2dur=["u1 9"],
    )
    assert list(read_kaldi(folder)) == [
        {
            "key": "u1",
            "audio": "r.wav",
            "start": 0.0,
            "duration": 1.5,
            "text": "a",
            "place": f"{folder}/segments:1",
        },
        {
            "key": "u2",
            "audio": "r.wav",
            "start": 1.5,
            "channel": 1,
            "text": "b",
            "place": f"{folder}/segments:2",
        },
        {
            "key": "u3",
            "audio": "r.wav",
            "start": 2.0,
            "duration": 0.5,
            "channel": 0,
            "text": "c",
            "place": f"{folder}/segments:3",
        },
    ]


def test_transcripts_may_be_absent(tmp_path):
    assert [set(row) for row in read_kaldi(make(tmp_path, wav=["a a.wav"]))] == [{"key", "audio", "place"}]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"wav": ["a sph2pipe -f wav a.sph |"], "text": ["a x"]},
            "DIR/wav.scp:1: audio from a pipe is not supported, got 'sph2pipe -f wav a.sph |'; run the",
        ),
        (
            {"wav": ["b b.wav", "r cat a.wav | "], "segments": ["u r 0 1"], "text": ["u x"]},
            "DIR/wav.scp:2: audio from a pipe is not supported",
        ),
        (
            {"wav": ["a wav.ark:123"]},
            "DIR/wav.scp:1: audio inside an archive is not supported, got 'wav.ark:123'",
        ),
        ({"wav": ["a a.wav"], "text": ["b x"]}, "DIR/wav.scp:1: utterance 'a' has no line in DIR/text"),
        ({"wav": ["a a.wav"], "text": ["a x", "b x"]}, "DIR/text:2: utterance 'b' has no audio"),
        ({"wav": ["a a.wav", "a b.wav"]}, "DIR/wav.scp:2: key 'a' was already used on line 1"),
        ({"wav": ["a a.wav"], "text": ["a x", "a y"]}, "DIR/text:2: key 'a' was already used on line 1"),
        (
            {"wav": ["r r.wav"], "segments": ["u q 0 1"]},
            "DIR/segments:1: recording 'q' has no line in DIR/wav.scp",
        ),
        (
            {"wav": ["r r.wav"], "segments": ["u r 0"]},
            "DIR/segments:1: a segment is KEY RECORDING START END [CHANNEL], got u r 0",
        ),
        (
            {"wav": ["r r.wav"], "segments": ["u r x 1"]},
            "DIR/segments:1: start must be a number of seconds, got 'x'",
        ),
        (
            {"wav": ["r r.wav"], "segments": ["u r -1 1"]},
            "DIR/segments:1: start must be at least 0 seconds, got -1",
        ),
        (
            {"wav": ["r r.wav"], "segments": ["u r 0 nan"]},
            "DIR/segments:1: end must be at least 0 seconds, got nan",
        ),
        (
            {"wav": ["r r.wav"], "segments": ["u r 2 2"]},
            "DIR/segments:1: the end of a segment comes after its start",
        ),
        (
            {"wav": ["r r.wav"], "segments": ["u r 0 1 L"]},
            "DIR/segments:1: the channel of a segment is 0, 1, ...",
        ),
        (
            {"wav": ["a a.wav"], "utt2dur": ["a ?"]},
            "DIR/utt2dur:1: duration must be a number of seconds, got '?'",
        ),
    ],
)
def test_a_mistake_is_named_by_file_and_line(tmp_path, files, message):
    assert refused(make(tmp_path, **files)).startswith(message)


def test_wrong_encoding_is_named(tmp_path):
    make(tmp_path, wav=["a a.wav"])
    (tmp_path / "text").write_bytes("a 你".encode("gbk"))
    assert refused(tmp_path).startswith("DIR/text:1: a manifest is encoded in UTF-8, byte 3")


def test_a_folder_without_recordings_is_refused(tmp_path):
    assert refused(tmp_path) == "DIR/wav.scp: cannot read (No such file or directory)"


def test_a_path_may_start_where_one_works_as_in_kaldi(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data" / "train"
    folder.mkdir(parents=True)
    for path in (tmp_path / "near.wav", tmp_path / "both.wav", folder / "both.wav"):
        path.touch()
    make(folder, wav=["a near.wav", "b both.wav", "c nowhere.wav"])
    audio = [row["audio"] for row in read_kaldi(folder)]
    assert audio == [str(tmp_path / "near.wav"), "both.wav", "nowhere.wav"]  # the folder comes first
