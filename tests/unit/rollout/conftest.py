"""Four utterances of different lengths for the tiny random checkpoint."""

import json
from pathlib import Path

import pytest

from asrl.data.dataset import SpeechDataset
from asrl.data.features import read_cmvn
from asrl.data.sampler import Row
from asrl.models.firered import load_firered
from asrl.utterance import Utterance

DEMO = Path(__file__).parents[3] / "demo"


@pytest.fixture(scope="session")
def speech_model(golden):
    """The checkpoint with its own LoRA; tests leave it as they find it."""
    return load_firered(golden / "FireRedASR-LLM-tiny", lora_start="continue")


@pytest.fixture(scope="session")
def dataset(golden):
    lines = (DEMO / "dev.jsonl").read_text(encoding="utf-8").splitlines()[:2]
    rows = [json.loads(line) for line in lines]
    utterances = [Utterance(name, str(golden / "wav" / f"{name}.wav"), "好") for name in ("synth", "bacp")]
    utterances += [Utterance(row["key"], str(DEMO / row["audio"]), row["text"]) for row in rows]
    return SpeechDataset(utterances, cmvn=read_cmvn(golden / "FireRedASR-LLM-tiny" / "cmvn.ark"))


@pytest.fixture(scope="session")
def make_speech(dataset):
    """Build a batch of (utterance, replica) or (utterance, replica, epoch) rows."""

    def make(*rows):
        full = [(*row, 0)[:3] for row in rows]
        return dataset.collate(
            [Row(index, epoch, place, replica) for place, (index, replica, epoch) in enumerate(full)]
        )

    return make
