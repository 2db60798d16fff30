"""Manifests and texts of every odd kind."""

import json
import os
from pathlib import Path

import numpy as np
import soundfile
from cases import Case, write_manifest

NO_WORDS = r"{folder}/train\.jsonl:2: column 'text' has no letters or digits, got .*"
LINE = r"{folder}/train\.jsonl:2: "


def row(folder: Path, number: int = 1, **columns: object) -> dict:
    """A line about a recording of noise."""
    path = folder / "noise.wav"
    if not path.exists():
        soundfile.write(path, np.random.default_rng(0).normal(0, 0.1, 3200), 16000)
    return {"key": f"u{number}", "audio": "noise.wav", "text": "你好"} | columns


def with_line(raw: bytes):
    """A good line, then this one."""

    def make(folder: Path) -> Path:
        path = write_manifest(folder, row(folder))
        path.write_bytes(path.read_bytes() + raw)
        return path

    return make


def with_columns(**columns: object):
    """A good line, then one with these columns; None removes a column."""

    def make(folder: Path) -> Path:
        second = row(folder, 2, **columns)
        return write_manifest(folder, row(folder), {k: v for k, v in second.items() if v is not None})

    return make


def with_text(text: str):
    return with_columns(text=text)


def recoded(encoding: str, newline: str = "\n"):
    """Two good lines in another encoding."""

    def make(folder: Path) -> Path:
        path = write_manifest(folder, row(folder), row(folder, 2))
        path.write_bytes(path.read_text(encoding="utf-8").replace("\n", newline).encode(encoding))
        return path

    return make


def whole(content: bytes):
    def make(folder: Path) -> Path:
        (folder / "train.jsonl").write_bytes(content)
        return folder / "train.jsonl"

    return make


def pretty_printed(folder: Path) -> Path:
    (folder / "train.jsonl").write_text(json.dumps([row(folder)], indent=1), encoding="utf-8")
    return folder / "train.jsonl"


def one_array(folder: Path) -> Path:
    (folder / "train.jsonl").write_text(json.dumps([row(folder)]), encoding="utf-8")
    return folder / "train.jsonl"


def audio_that_is(kind: str):
    def make(folder: Path) -> Path:
        path = folder / "odd.wav"
        if kind == "directory":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "broken link":
            path.symlink_to(folder / "nowhere.wav")
        return write_manifest(folder, row(folder), row(folder, 2, audio="odd.wav"))

    return make


def a_directory(folder: Path) -> Path:
    (folder / "train.jsonl").mkdir()
    return folder / "train.jsonl"


GONE = LINE + r"audio file {folder}/odd\.wav does not exist; .*"
MANIFESTS = [
    Case("no manifest", lambda folder: folder / "train.jsonl", r"{folder}/train\.jsonl: .*No such file.*"),
    Case("directory in place of a manifest", a_directory, r"{folder}/train\.jsonl: .+"),
    Case("empty manifest", whole(b""), r"{folder}/train\.jsonl: the manifest has no utterances"),
    Case("blank lines alone", whole(b"\n  \n\t\n"), r"{folder}/train\.jsonl: .* has no utterances"),
    Case("byte order mark", recoded("utf-8-sig")),
    Case("lines ended as on Windows", recoded("utf-8", "\r\n")),
    Case("blank lines between", recoded("utf-8", "\n\n")),
    Case("UTF-16", recoded("utf-16"), r"{folder}/train\.jsonl:1: .* encoded in UTF-8, .*0xff; .*iconv"),
    Case("GBK", recoded("gbk"), r"{folder}/train\.jsonl:1: .* encoded in UTF-8, .*0xc4; .*iconv"),
    Case("NUL bytes", with_line(b"\0" * 99), LINE + "not valid JSON at column 1: .*"),
    Case("line cut short", with_line(b'{"key": "u2", "aud'), LINE + "not valid JSON at column 15: .*"),
    Case("comma too many", with_line(b'{"key": "u2",}'), LINE + "not valid JSON at column .*"),
    Case("two objects in a line", with_line(b"{} {}"), LINE + "not valid JSON at column 4: Extra data"),
    Case("single quotes", with_line(b"{'key': 'u2'}"), LINE + "not valid JSON at column 2: .*"),
    Case("number of 5000 digits", with_line(b'{"n": ' + b"1" * 5000 + b"}"), LINE + "not valid JSON: .*"),
    Case("deep nesting", with_line(b"[" * 10**5 + b"]" * 10**5), LINE + "not valid JSON: .*"),
    Case(
        "array in place of an object", with_line(b'["u2"]'), LINE + "a line must be one JSON object, got .*"
    ),
    Case("one JSON array", one_array, r"{folder}/train\.jsonl:1: a line must be one JSON object, got .*"),
    Case("pretty-printed JSON", pretty_printed, r"{folder}/train\.jsonl:1: not valid JSON at column .*"),
    Case("CSV", whole(b"key,audio,text\n"), r"{folder}/train\.jsonl:1: not valid JSON at column 1: .*"),
    Case("no key", with_columns(key=None), LINE + "column 'key' is missing.*"),
    Case("no audio", with_columns(audio=None), LINE + "column 'audio' is missing.*"),
    Case("no text", with_columns(text=None), LINE + "column 'text' is missing.*"),
    Case("misspelt column", with_columns(text=None, texts="你好"), LINE + ".*did you mean 'texts'.*"),
    Case("number as key", with_columns(key=2), LINE + "column 'key' must be a string, got 2"),
    Case("object as audio", with_columns(audio={}), LINE + r"column 'audio' must be a string, got \{\}"),
    Case("list as text", with_columns(text=["你好"]), LINE + "column 'text' must be a string, got .*"),
    Case("empty key", with_columns(key=""), LINE + "column 'key' is empty"),
    Case("empty audio", with_columns(audio=""), LINE + "column 'audio' is empty"),
    Case("key used twice", with_columns(key="u1"), LINE + "key 'u1' was already used on line 1"),
    Case("hotwords as a string", with_columns(hotwords="你好"), LINE + "column 'hotwords' must be a list .*"),
    Case("number as hotword", with_columns(hotwords=[1]), LINE + "column 'hotwords' must be a list .*"),
    Case(
        "blank distractor", with_columns(distractors=[" "]), LINE + "column 'distractors' must be a list .*"
    ),
    Case("columns of one's own", with_columns(city="北京", weight=float("nan"))),
    Case("audio missing", audio_that_is("missing"), GONE),
    Case("directory in place of audio", audio_that_is("directory"), GONE),
    Case("pipe in place of audio", audio_that_is("pipe"), GONE),
    Case("broken link in place of audio", audio_that_is("broken link"), GONE),
    Case("audio name of 5000 characters", with_columns(audio="a" * 5000), LINE + "audio file .* exist; .*"),
    Case("NUL in an audio name", with_columns(audio="noise\0.wav"), LINE + "audio file .* exist; .*"),
]
TEXTS = [
    Case("empty text", with_text(""), NO_WORDS),
    Case("blank text", with_text(" \t　"), NO_WORDS),
    Case("punctuation alone", with_text("，。?!…"), NO_WORDS),
    Case("emoji alone", with_text("😀🎉"), NO_WORDS),
    Case("control characters alone", with_text("\x00\x07\x1b"), NO_WORDS),
    Case("invisible characters alone", with_text("\u200b\u200d\ufeff"), NO_WORDS),
    Case(
        "half a character",
        with_line(b'{"key": "u2", "audio": "noise.wav", "text": "\\ud83d\\u4f60"}'),
        LINE + r"\\ud83d is half a character and cannot be written to a file; .*",
    ),
    Case(
        "half a character in a column of one's own",
        with_line(b'{"key": "u2", "audio": "noise.wav", "text": "a", "city": ["\\uDE00"]}'),
        LINE + r"\\ude00 is half a character .*",
    ),
    Case(
        "character written as two halves",
        with_line(b'{"key": "u2", "audio": "noise.wav", "text": "\\ud83d\\ude00 a"}'),
    ),
    Case("10,000 characters", with_text("你好" * 5000)),
    Case("control characters between letters", with_text("你\x00好\x1b")),
    Case("line separators inside", with_text("你\u2028好\u2029\x85")),
    Case("emoji among letters", with_text("你好😀")),
    Case("full-width letters and digits", with_text("ＡＢＣ１２３")),
    Case("right-to-left letters", with_text("שלום")),
]
