"""What is found wrong with a line, and what a data set holds as a whole."""

import math
import os
import re
import signal
import time

import numpy as np
import pytest
import soundfile
from audio_files import write_audio, write_lines

from asrl.data.inspection import Inspector, Kind, inspect_all
from asrl.data.lines import open_lines
from asrl.data.survey import survey, to_json
from asrl.errors import UserError


@pytest.fixture
def folder(tmp_path):
    write_audio(tmp_path / "one.wav", 1.0)
    return tmp_path


def line(key="a", **columns):
    return {"key": key, "audio": "one.wav", "text": "你好 world"} | columns


def inspector(folder, *lines, max_seconds=30.0, headers_only=False):
    path = write_lines(folder / "m.jsonl", *lines)
    return Inspector(open_lines(path), max_seconds=max_seconds, headers_only=headers_only)


def look(folder, **options):
    found = inspector(folder, line(**options)).inspect(0)
    return [(problem.kind, problem.message.replace(str(folder), "DIR")) for problem in found.problems]


def test_a_good_line_by_value(folder):
    found = inspector(folder, line(hotwords=["你好"], distractors=["他好"], duration=1.05)).inspect(0)
    assert (found.seconds, found.num_characters, found.hotwords, found.problems) == (1.0, 7, ("你好",), ())


@pytest.mark.parametrize(
    ("columns", "kind", "message"),
    [
        ({"text": 5}, Kind.LINE, "DIR/m.jsonl:1: column 'text' must be a string, got 5"),
        ({"text": "。"}, Kind.TEXT, "DIR/m.jsonl:1: no letters or digits in the text '。'"),
        ({"hotwords": ["好"]}, None, ""),
        ({"hotwords": ["好w"]}, Kind.HOTWORD, "DIR/m.jsonl:1: '好w' is not in '你好 world'"),
        ({"hotwords": ["WORLD"]}, None, ""),
        ({"distractors": ["你"]}, Kind.DISTRACTOR, "DIR/m.jsonl:1: '你' is in '你好 world'"),
        ({"audio": "gone.wav"}, Kind.AUDIO, "DIR/m.jsonl:1: a: DIR/gone.wav: no such audio file"),
        (
            {"duration": 1.2},
            Kind.DURATION,
            "DIR/m.jsonl:1: column 'duration' says 1.2 s, the audio lasts 1.00 s",
        ),
        ({"duration": "unknown"}, None, ""),
        (
            {"start": 0.5, "duration": 0.7},
            Kind.AUDIO,
            "DIR/m.jsonl:1: a: DIR/one.wav: the utterance ends at 1.2 s, but the file ends at 1 s",
        ),
        (
            {"start": 0.99},
            Kind.AUDIO,
            "DIR/m.jsonl:1: a: DIR/one.wav: the model needs at least 0.0650 s of audio (5 frames), "
            "got 0.0100 s (0 frames); drop the utterance",
        ),
    ],
)
def test_a_mistake_is_named_with_its_kind(folder, columns, kind, message):
    assert look(folder, **columns) == ([] if kind is None else [(kind, message)])


@pytest.mark.parametrize(("max_seconds", "is_long"), [(1.0, True), (1.001, False)])
def test_audio_as_long_as_the_limit_is_reported(folder, max_seconds, is_long):
    found = inspector(folder, line(), max_seconds=max_seconds).inspect(0)
    expected = "m.jsonl:1: a: an utterance must last at most 1 s, got 1.00 s; cut it into pieces"
    assert [problem.message for problem in found.problems] == ([f"{folder}/{expected}"] if is_long else [])
    assert found.seconds == 1.0


def test_headers_alone_do_not_show_damage(folder):
    soundfile.write(folder / "bad.wav", np.full(16000, np.nan, dtype=np.float32), 16000, subtype="FLOAT")
    bad = line(audio="bad.wav")
    assert [p.kind for p in inspector(folder, bad).inspect(0).problems] == [Kind.AUDIO]
    assert inspector(folder, bad, headers_only=True).inspect(0).problems == ()


def findings(folder, *lines, num_workers=0):
    looking = inspector(folder, *lines)
    found = [finding for some in inspect_all(looking, num_workers=num_workers) for finding in some]
    return looking.lines, found


def test_workers_find_the_same_in_the_same_order(folder):
    lines = [line(f"k{number}", text="字" * (number + 1)) for number in range(100)]
    lines[70] = "broken"
    _, here = findings(folder, *lines)
    _, elsewhere = findings(folder, *lines, num_workers=2)
    assert [finding.index for finding in here] == list(range(100))
    assert repr(elsewhere) == repr(here)  # as text, where NaN equals itself


def die(self, utterance):
    time.sleep(0.3)  # until the other process waits
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_crash_is_named_with_the_line(folder, monkeypatch):
    monkeypatch.setattr(Inspector, "_listen", die)
    place = re.escape(f"{folder}/m.jsonl:2")
    with pytest.raises(
        UserError, match=rf"^data\.num_workers: a worker process died reading {place} \("
    ) as caught:
        findings(folder, "broken", line(), num_workers=1)
    assert "\n" not in str(caught.value)


def sum_up(folder, *lines):
    manifest, found = findings(folder, *lines)
    return survey(manifest, found), manifest


def test_repeated_keys_name_both_lines(folder):
    result, _ = sum_up(folder, line("a"), "broken", line("b"), line("a"), "broken", line("b", text=5))
    repeated = [problem for problem in result.problems if problem.kind is Kind.KEY]
    assert [(problem.index, problem.message) for problem in repeated] == [
        (3, f"{folder}/m.jsonl:4: key 'a' was already used at {folder}/m.jsonl:1")
    ]
    assert result.bad_lines == {1, 3, 4, 5}
    assert [problem.index for problem in result.problems] == [1, 3, 4, 5]


def test_totals_by_hand(folder):
    write_audio(folder / "four.wav", 4.0)
    result, manifest = sum_up(
        folder,
        line("a", text="四个字呀", hotwords=["四个"]),  # 4 characters in 1 s
        line("b", text="六个字在这里 ", audio="four.wav", hotwords=["六个", "四个"]),  # 6 in 4 s
        line("c", audio="gone.wav"),
    )
    assert result.measured.tolist() == [1.0, 4.0]
    np.testing.assert_array_equal(result.rates, [4.0, 1.5, math.nan])
    assert [count for _, _, count in result.histogram()] == [0, 1, 0, 1, 0, 0, 0, 0, 0]
    assert result.num_with_hotwords == 2
    assert result.hotwords == {"四个": 2, "六个": 1}
    report = to_json(result, manifest)
    assert report["utterances"] == 3
    assert report["hours"] == 5 / 3600
    quantiles = {"mean": 2.5, "min": 1.0, "p05": 1.15, "median": 2.5, "p95": 3.85, "max": 4.0}
    assert report["seconds"] == pytest.approx(quantiles, abs=1e-12)
    assert report["num_problems"] == {"hotword not in text": 1, "bad audio": 1}
    assert report["durations"][-1] == {"from": 30.0, "to": None, "utterances": 0}


def test_texts_that_do_not_fit_their_audio_stand_out(folder):
    # The median is 10 characters in 1 s and most lines are there, so the limit is a factor of 2: 20 is at the
    # limit, 21 and 4 are beyond it, by factors of 2.1 and 2.5.
    sizes = [10] * 20 + [20, 21, 4]
    result, manifest = sum_up(folder, *(line(f"{n}", text="字" * size) for n, size in enumerate(sizes)))
    assert result.problems == ()
    assert result.outliers() == [22, 21]
    assert to_json(result, manifest)["outliers"] == [
        {"place": f"{folder}/m.jsonl:23", "characters_per_second": 4.0},
        {"place": f"{folder}/m.jsonl:22", "characters_per_second": 21.0},
    ]


def test_where_rates_vary_the_limit_is_wider(folder):
    # Median 8; half of the lines are a factor of 2 away, so the deviation is 1.48 * log 2 and the limit
    # exp(4 * 1.48 * log 2) = 61: 64 / 8 is inside.
    sizes = [4, 8, 16] * 7 + [64]
    result, _ = sum_up(folder, *(line(f"{n}", text="字" * size) for n, size in enumerate(sizes)))
    assert result.outliers() == []


def test_a_data_set_without_anything_usable_is_summed_up(folder):
    result, manifest = sum_up(folder, "broken")
    assert (len(result), result.outliers(), to_json(result, manifest)["seconds"]) == (1, [], {})
