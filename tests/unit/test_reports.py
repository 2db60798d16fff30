import pytest
import torch
from accelerate import Accelerator

from asrl.experience import Experience
from asrl.losses import Metric
from asrl.reports import count_rows, reduce_metrics, rollout_metrics, transcript_rows
from asrl.types import Completions, SpeechBatch
from asrl.utterance import Utterance

UTTERANCES = (
    Utterance("a", "a.wav", "天气很好", hotwords=("天气",), distractors=("天汽",)),
    Utterance("b", "b.wav", "你好"),
)
NAN = float("nan")


def metric(kind, total, weight):
    return Metric(kind, torch.tensor(total, dtype=torch.float64), torch.tensor(weight, dtype=torch.float64))


@pytest.fixture
def accelerator(monkeypatch):
    """An accelerator that answers as if another rank had sent ``other``; none without it."""
    accelerator = Accelerator(cpu=True)

    def hears(other):
        monkeypatch.setattr(accelerator, "gather", lambda local: torch.cat([local, other]))
        return accelerator

    accelerator.hears = hears
    return accelerator


def test_metrics_of_two_ranks_combine_by_kind(accelerator):
    local = {
        "kl": metric("mean", 6.0, 3.0),
        "ratio/max": metric("max", 1.5, 3.0),
        "ratio/min": metric("min", 0.5, 3.0),
    }
    # In alphabetical order of their names: kl, ratio/max, ratio/min.
    other = torch.tensor([[[4.0, 1.0], [1.25, 1.0], [0.25, 1.0]]], dtype=torch.float64)
    assert reduce_metrics(local, accelerator.hears(other)) == {
        "kl": 2.5,  # (6 + 4) / (3 + 1), not the mean of 2 and 4
        "ratio/max": 1.5,
        "ratio/min": 0.25,
    }


def test_a_rank_that_observed_nothing_changes_nothing(accelerator):
    local = {"kl": metric("mean", 6.0, 3.0), "ratio/max": metric("max", 1.5, 3.0)}
    other = torch.tensor([[[0.0, 0.0], [-torch.inf, 0.0]]], dtype=torch.float64)
    assert reduce_metrics(local, accelerator.hears(other)) == {"kl": 2.0, "ratio/max": 1.5}


def test_rows_are_counted_by_hand():
    counts = count_rows(["天汽很好", "好的好的好的好的好的"], UTTERANCES)
    # One of four characters wrong, the hotword missed and its distractor inserted.
    assert counts[0].tolist() == [1, 4, 0, 0, 1, 1]
    # 你好 in ten characters: nine errors at least (eight insertions and 你 wrong), and a loop.
    assert counts[1].tolist() == [9, 2, 1, 0, 0, 0]


def test_no_rows_have_no_counts_but_their_columns():
    assert count_rows([], []).shape == (0, 6)


def make_experience(row_index=(0, 1, 2, 3)):
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 1]]).bool()
    tokens = torch.tensor([[5, 9, 0], [9, 0, 0], [5, 6, 7], [5, 6, 7]])
    return Experience(
        SpeechBatch(
            utterances=UTTERANCES,
            features=torch.zeros(2, 4, 3),
            num_frames=torch.tensor([4, 4]),
            row_utterance=torch.tensor([0, 0, 1, 1]),
            row_index=torch.tensor(row_index),
            replica=torch.tensor([0, 1, 0, 1]),
            epoch=torch.zeros(4, dtype=torch.long),
        ),
        Completions(tokens, mask, torch.tensor([True, True, False, False]), torch.zeros(4, 3)),
        torch.tensor([0.5, -0.5, 0.0, 0.0]),
    )


HYPOTHESES = ["天气很好", "", "你好", "你好"]
VALUES = torch.tensor([[1.0, 1.0], [0.0, 0.0], [1.0, NAN], [1.0, NAN]])


def test_rollout_metrics_by_hand(accelerator):
    metrics = rollout_metrics(
        make_experience(),
        VALUES,
        HYPOTHESES,
        reward_weights={"accuracy": 1.0, "hotword": 0.5},
        num_generations=2,
        accelerator=accelerator,
    )
    # Totals 1.5, 0, 1, 1.
    assert metrics["reward/mean"] == 3.5 / 4
    assert metrics["reward/accuracy"] == 0.75
    assert metrics["reward/hotword"] == 0.5
    assert metrics["reward/frac_zero_std"] == 0.5
    assert metrics["advantage/abs_mean"] == 0.25
    assert metrics["group/unique_transcripts"] == 1.5
    assert metrics["completion/num_tokens_mean"] == 9 / 4
    assert metrics["completion/frac_truncated"] == 0.5
    assert metrics["cer"] == pytest.approx(4 / 12)  # four deletions of twelve characters
    assert metrics["hotword/recall"] == 0.5


def test_equal_transcripts_of_an_utterance_are_one_row_with_their_number():
    rows = transcript_rows(make_experience(), VALUES, HYPOTHESES, ["accuracy", "hotword"])
    assert rows == [
        {
            "key": "a",
            "transcript": "天气很好",
            "hypothesis": "天气很好",
            "num": 1,
            "accuracy": 1.0,
            "hotword": 1.0,
            "advantage": 0.5,
        },
        {
            "key": "a",
            "transcript": "天气很好",
            "hypothesis": "",
            "num": 1,
            "accuracy": 0.0,
            "hotword": 0.0,
            "advantage": -0.5,
        },
        {
            "key": "b",
            "transcript": "你好",
            "hypothesis": "你好",
            "num": 2,
            "accuracy": 1.0,
            "hotword": None,  # NaN would not be JSON
            "advantage": 0.0,
        },
    ]
