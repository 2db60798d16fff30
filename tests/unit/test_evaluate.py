import json

import pytest
import torch

from asrl.errors import UserError
from asrl.evaluate import (
    Decoded,
    Transcription,
    read_transcriptions,
    summarise,
    transcribe,
    write_transcriptions,
)
from asrl.types import SpeechBatch
from asrl.utterance import Utterance


def transcription(transcript, hypothesis, **options):
    return Transcription(0, "u", transcript, hypothesis, options.pop("is_truncated", False), **options)


# 10 characters in all.
#   1 of 4 substituted; 1 of 2 deleted; the last right but for 2 inserted.
SET = [
    transcription("天气很好", "天汽很好", hotwords=("天气",), distractors=("天汽",)),
    transcription("你好", "你", is_truncated=True),
    transcription("打开车窗", "打开车窗好的", hotwords=("车窗",), distractors=("车门",)),
]


def test_rates_are_those_of_the_corpus():
    rates = summarise(SET)
    assert rates == pytest.approx(
        {
            "cer": 0.4,
            "substitutions": 0.1,
            "deletions": 0.1,
            "insertions": 0.2,
            "sentence_error_rate": 1.0,
            "loop_rate": 0.0,
            "hallucination_rate": 0.0,
            "truncated": 1 / 3,
            "hotword_recall": 1 / 2,  # 车窗 of 天气 and 车窗
            "hotword_precision": 1 / 2,  # 车窗 of 天汽 and 车窗
            "hotword_f1": 1 / 2,
            "hotword_false_insertions": 1,
        }
    )


def test_loops_and_text_from_nowhere_are_counted():
    rates = summarise([transcription("你好", "车窗车窗车窗车窗车窗车窗"), transcription("你好", "你好")])
    assert rates["loop_rate"] == 0.5
    # Twelve characters for two, none of them right.
    assert rates["hallucination_rate"] == 0.5
    assert rates["sentence_error_rate"] == 0.5


def test_without_hotwords_there_are_no_rates_of_them():
    assert not [name for name in summarise(SET[1:2]) if name.startswith("hotword")]


def test_punctuation_and_case_are_no_errors():
    assert summarise([transcription("打开 GPS。", "打开gps")])["cer"] == 0


def test_transcriptions_come_back_as_they_were_written(tmp_path):
    path = tmp_path / "evaluations" / "dev.jsonl"
    write_transcriptions(path, SET)
    assert read_transcriptions(path) == SET
    assert [child.name for child in path.parent.iterdir()] == ["dev.jsonl"]
    assert json.loads(path.read_text(encoding="utf-8").splitlines()[0])["hypothesis"] == "天汽很好"


def test_a_crash_while_writing_leaves_no_file(tmp_path):
    def broken():
        yield SET[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_transcriptions(tmp_path / "dev.jsonl", broken())
    assert not (tmp_path / "dev.jsonl").exists()


def test_a_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "dev.jsonl"
    path.write_text('{"key": "a", "text": "b"}\n')
    with pytest.raises(UserError, match=r"dev\.jsonl:1: not a line written by an evaluation"):
        read_transcriptions(path)


def test_each_hypothesis_goes_to_its_utterance():
    first = Utterance("a", "a.wav", "好", hotwords=("好",), distractors=("坏",))
    second = Utterance("b", "b.wav", "天")
    batch = SpeechBatch(
        utterances=(first, second),
        features=torch.zeros(2, 4, 3),
        num_frames=torch.tensor([4, 4]),
        row_utterance=torch.tensor([0, 1]),
        row_index=torch.tensor([5, 2]),
        replica=torch.tensor([0, 0]),
        epoch=torch.tensor([0, 0]),
    )
    transcriptions = transcribe([batch], lambda _: Decoded(["对", "错"], [False, True]))
    assert transcriptions == [
        Transcription(5, "a", "好", "对", False, ("好",), ("坏",)),
        Transcription(2, "b", "天", "错", True),
    ]
