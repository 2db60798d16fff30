"""Reading manifests: every column by value, every mistake by its message."""

import json

import pytest

from asrl.data.manifest import read_manifest
from asrl.errors import UserError
from asrl.utterance import Utterance


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "wav").mkdir()
    (tmp_path / "wav" / "a.wav").touch()
    return tmp_path


def line(**columns):
    return json.dumps({"key": "a", "audio": "wav/a.wav", "text": "你好"} | columns, ensure_ascii=False)


def write(folder, *lines, encoding="utf-8"):
    path = folder / "train.jsonl"
    path.write_bytes("\n".join(lines).encode(encoding))
    return path


def test_every_column_arrives(folder):
    extra = {"speaker": "s1", "duration": 1.5, "tags": ["x"]}
    path = write(
        folder,
        line(),
        "",
        line(key="b", text="Hi, 你!", hotwords=["Hi"], distractors=["high", "hei"], **extra),
        "  ",
    )
    audio = str(folder / "wav" / "a.wav")
    assert list(read_manifest(path)) == [
        Utterance(key="a", audio=audio, transcript="你好", place=f"{path}:1"),
        Utterance(
            key="b",
            audio=audio,
            transcript="Hi, 你!",
            hotwords=("Hi",),
            distractors=("high", "hei"),
            columns=extra,
            place=f"{path}:3",
        ),
    ]


def test_absolute_paths_and_null_lists_are_accepted(folder):
    audio = str(folder / "wav" / "a.wav")
    (utterance,) = read_manifest(write(folder, line(audio=audio, hotwords=None)))
    assert utterance.audio == audio
    assert utterance.hotwords == ()


def test_byte_order_mark_windows_newlines_and_line_separators_are_accepted(folder):
    # U+2028 is a line break to str.splitlines but an ordinary character inside a JSON string.
    path = folder / "train.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join([line(), line(key="b", text="a\u2028b"), ""]).encode())
    assert [(u.key, u.transcript, u.place) for u in read_manifest(path)] == [
        ("a", "你好", f"{path}:1"),
        ("b", "a\u2028b", f"{path}:2"),
    ]


def refused(path, **options):
    with pytest.raises(UserError) as caught:
        read_manifest(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    return message.removeprefix(str(path))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ('{"key": "b",', "not valid JSON at column 13: Expecting property name enclosed in double quotes"),
        ("[1, 2]", "a line must be one JSON object, got [1, 2]"),
        ("null", "a line must be one JSON object, got null"),
        ("[" * 100_000, "not valid JSON: "),
        ('{"key": "b", "audio": "wav/a.wav", "txt": "x"}', "column 'text' is missing; did you mean 'txt'?"),
        ('{"key": "b", "audio": "wav/a.wav"}', "column 'text' is missing"),
        ('{"audio": "wav/a.wav", "text": "x", "id": "b"}', "column 'key' is missing; known: id"),
        (line(key=5), "column 'key' must be a string, got 5"),
        (line(key=""), "column 'key' is empty"),
        (line(key="b", audio=""), "column 'audio' is empty"),
        (line(key="b", text=None), "column 'text' must be a string, got null"),
        (line(key="b", text=""), "column 'text' has no letters or digits, got ''"),
        (line(key="b", text=" 。！ "), "column 'text' has no letters or digits, got ' 。！ '"),
        (line(key="b", hotwords="Hi"), 'must be a list of words such as ["one", "two"], got "Hi"'),
        (line(key="b", hotwords=["Hi", 3]), 'of words such as ["one", "two"], got ["Hi", 3]'),
        (line(key="b", distractors=[" "]), "column 'distractors' must be a list of words"),
        (line(), "key 'a' was already used on line 1"),
    ],
)
def test_a_bad_line_is_named(folder, bad, message):
    text = refused(write(folder, line(), "", bad))
    assert text.startswith(":3: ")
    assert message in text


def test_long_values_are_shortened(folder):
    assert refused(write(folder, json.dumps(list(range(100))))).endswith("18, 19, 20, 21...")


def test_wrong_encoding_is_named(folder):
    # GBK writes 你 as C4 E3; the line opens with {"key": "a", "audio": "wav/a.wav", "text": " (44 bytes).
    path = write(folder, "", line(), encoding="gbk")
    assert refused(path) == (
        ":2: a manifest is encoded in UTF-8, byte 45 of this line is 0xc4; convert the file, e.g. with iconv"
    )
    assert refused(write(folder, line(), encoding="utf-16")).startswith(
        ":1: a manifest is encoded in UTF-8, byte 1"
    )


def test_missing_audio_is_named_unless_not_asked_for(folder):
    path = write(folder, line(audio="wav/none.wav"))
    audio = folder / "wav" / "none.wav"
    assert (
        refused(path)
        == f":1: audio file {audio} does not exist; a relative path starts at the manifest's folder"
    )
    assert read_manifest(path, check_audio=False)[0].audio == str(audio)
    assert "does not exist" in refused(write(folder, line(audio="x" * 300)))


def test_empty_text_is_allowed_on_request(folder):
    path = write(folder, line(text=""), line(key="b", text="。"))
    assert [u.transcript for u in read_manifest(path, allow_empty_text=True)] == ["", "。"]


def test_missing_and_empty_manifests_are_refused(folder):
    assert refused(folder / "none.jsonl") == ": cannot read the manifest (No such file or directory)"
    assert refused(folder) == (
        ": not a folder of data: Kaldi's has wav.scp, one of Hugging Face's has metadata.jsonl, "
        "metadata.csv, dataset_info.json or *.parquet"
    )
    assert refused(folder, format="asrl") == ": cannot read the manifest (Is a directory)"
    assert refused(write(folder, "", " ")) == ": the manifest has no utterances"
