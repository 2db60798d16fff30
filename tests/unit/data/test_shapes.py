"""The layouts of JSON manifests: what each column becomes, and what is refused."""

import json
from pathlib import Path

import pytest

from asrl.data.shapes import SHAPES, detect_shape, parse_line, to_columns
from asrl.errors import UserError
from asrl.utterance import Utterance

WENET = {"key": "a", "wav": "wav/a.wav", "txt": "你好"}
FUNASR = {"key": "a", "source": "wav/a.wav", "source_len": 88, "target": "你好", "target_len": 2}
SWIFT = {
    "messages": [
        {"role": "system", "content": "You are helpful."},
        {"role": "user", "content": "<audio>Transcribe."},
        {"role": "assistant", "content": "你好"},
    ],
    "audios": ["wav/a.wav"],
}
OURS = {"key": "a", "audio": "wav/a.wav", "text": "你好"}


def parse(columns, shape="asrl", **options):
    return parse_line(json.dumps(columns).encode(), SHAPES[shape], "m.jsonl:3", Path("data"), **options)


def refused(columns, shape="asrl"):
    with pytest.raises(UserError) as caught:
        parse(columns, shape)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("m.jsonl:3: ")
    return str(caught.value).removeprefix("m.jsonl:3: ")


def expected(key="a", **fields):
    return Utterance(key, "data/wav/a.wav", "你好", place="m.jsonl:3", **fields)


@pytest.mark.parametrize(("shape", "columns"), [("asrl", OURS), ("wenet", WENET)])
def test_plain_layouts(shape, columns):
    assert parse(columns, shape) == expected()


def test_columns_without_a_meaning_are_kept():
    assert parse(FUNASR, "funasr") == expected(columns={"source_len": 88, "target_len": 2})


def test_the_last_answer_of_a_chat_is_the_transcript_and_the_path_the_key():
    assert parse(SWIFT, "swift") == expected(key="wav/a.wav")
    more = SWIFT | {"messages": [{"role": "assistant", "content": "first"}, *SWIFT["messages"]], "tools": 1}
    assert parse(more, "swift") == expected(key="wav/a.wav", columns={"tools": 1})


def test_a_chat_may_have_a_key_and_give_its_answer_as_solution():
    question = {"messages": SWIFT["messages"][:2], "audios": ["wav/a.wav"], "solution": "你好", "key": "k"}
    assert parse(question, "swift") == expected(key="k")


@pytest.mark.parametrize("shape", ["asrl", "wenet", "funasr", "swift"])
def test_hotwords_and_stretches_are_read_in_every_layout(shape):
    columns = {"asrl": OURS, "wenet": WENET, "funasr": FUNASR, "swift": SWIFT}[shape]
    extra = {"hotwords": ["你"], "distractors": ["他"], "start": 1, "duration": 2.5, "channel": 1}
    utterance = parse(columns | extra, shape)
    assert (utterance.hotwords, utterance.distractors) == (("你",), ("他",))
    assert (utterance.start, utterance.duration, utterance.channel) == (1.0, 2.5, 1)


def test_a_duration_without_a_start_only_describes_the_recording():
    utterance = parse(OURS | {"duration": 1.825})
    assert (utterance.start, utterance.duration, utterance.columns) == (0.0, None, {"duration": 1.825})
    assert parse(OURS | {"start": 0, "duration": 2}) == expected(duration=2.0)


def test_the_end_of_a_wenet_segment_becomes_a_duration():
    assert parse(WENET | {"start": 1.5, "end": 4.0}, "wenet") == expected(start=1.5, duration=2.5)


def test_a_text_may_be_missing_on_request():
    assert parse({"key": "a", "wav": "wav/a.wav"}, "wenet", require_text=False).transcript == ""
    assert parse(SWIFT | {"messages": []}, "swift", require_text=False).transcript == ""


@pytest.mark.parametrize(
    ("shape", "columns", "message"),
    [
        ("wenet", {"key": "a", "wav": "a.wav"}, "column 'txt' is missing"),
        ("wenet", {"key": "a", "wav": "a.wav", "text": "x"}, "column 'txt' is missing; did you mean 'text'?"),
        ("wenet", WENET | {"start": 2, "end": 2}, "column 'end' must be after 'start' = 2 s, got 2 s"),
        ("funasr", FUNASR | {"source": 5}, "column 'source' must be a string, got 5"),
        (
            "swift",
            SWIFT | {"audios": []},
            "column 'audios' must be a list with the path of one audio file, got []",
        ),
        ("swift", SWIFT | {"audios": ["a", "b"]}, 'of one audio file, got ["a", "b"]'),
        ("swift", SWIFT | {"messages": "x"}, "column 'messages' must be a list of objects with 'role'"),
        ("swift", SWIFT | {"messages": []}, "column 'messages[assistant]' is missing"),
        (
            "swift",
            SWIFT | {"messages": [{"role": "assistant", "content": 1}]},
            "messages: column 'content' must be a string, got 1",
        ),
        ("asrl", OURS | {"start": -0.5}, "column 'start' must be at least 0 seconds, got -0.5"),
        ("asrl", OURS | {"start": "1"}, "column 'start' must be a number of seconds, got \"1\""),
        ("asrl", OURS | {"start": True}, "column 'start' must be a number of seconds, got true"),
        ("asrl", OURS | {"start": float("nan")}, "column 'start' must be a number of seconds, got NaN"),
        ("asrl", OURS | {"start": 0, "duration": 0}, "column 'duration' must be above 0 seconds, got 0"),
        (
            "asrl",
            OURS | {"channel": -1},
            "column 'channel' must be the number of a channel, the first being 0",
        ),
        ("asrl", OURS | {"channel": 1.0}, "the first being 0, got 1.0"),
    ],
)
def test_a_wrong_value_is_named(shape, columns, message):
    assert message in refused(columns, shape)


@pytest.mark.parametrize(
    ("line", "shape"),
    [
        (OURS, "asrl"),
        (WENET, "wenet"),
        ({"key": "a", "wav": "a.wav"}, "wenet"),
        (FUNASR, "funasr"),
        ({"key": "a", "source": "a.wav"}, "funasr"),
        (SWIFT, "swift"),
        ({"messages": [], "audios": ["a.wav"], "solution": "x"}, "swift"),
        (OURS | {"source": "book", "target": "train"}, "asrl"),
        ({"file": "a.wav"}, "asrl"),
        ([], "asrl"),
    ],
)
def test_a_layout_is_recognised_by_its_columns(line, shape):
    assert detect_shape(json.dumps(line).encode()) == shape


def test_what_cannot_be_read_is_left_to_the_reader():
    assert detect_shape(b"\xff{") == "asrl"


@pytest.mark.parametrize(
    "columns",
    [
        OURS | {"duration": 3, "speaker": "s"},
        OURS | {"start": 1.0, "hotwords": ["你"], "distractors": ["他"]},
        OURS | {"start": 0.0, "duration": 2.0, "channel": 0},
    ],
)
def test_an_utterance_written_and_read_again_is_the_same(columns):
    utterance = parse(columns)
    written = to_columns(utterance) | {"audio": "wav/a.wav"}
    assert parse(written) == utterance
    assert list(written)[:3] == ["key", "audio", "text"]


def test_foreign_columns_do_not_overwrite_ours():
    utterance = parse(WENET | {"text": "other", "audio": "other"}, "wenet")
    assert to_columns(utterance)["text"] == "你好"
    assert to_columns(utterance)["audio"] == "data/wav/a.wav"
