"""The tiny random checkpoint and batches to score with it."""

import numpy as np
import pytest
import torch

from asrl.models.firered import load_firered
from asrl.types import SpeechBatch


@pytest.fixture
def checkpoint(golden):
    return golden / "FireRedASR-LLM-tiny"


@pytest.fixture
def model(checkpoint):
    """The checkpoint with its own LoRA."""
    return load_firered(checkpoint, lora_start="continue")


@pytest.fixture(scope="session")
def features(golden):
    """Features of a short (80 frames) and a long (199 frames) utterance."""
    return [torch.from_numpy(np.load(golden / f"{name}.arith.npz")["feats"]) for name in ("synth", "bacp")]


@pytest.fixture(scope="session")
def make_batch(features):
    """Builds a batch of the utterances at ``positions`` with a row for every entry of ``row_utterance``."""

    def make(positions, row_utterance):
        chosen = [features[position] for position in positions]
        row_utterance = torch.tensor(row_utterance)
        return SpeechBatch(
            utterances=(),
            features=torch.nn.utils.rnn.pad_sequence(chosen, batch_first=True),
            num_frames=torch.tensor([len(frames) for frames in chosen]),
            row_utterance=row_utterance,
            row_index=torch.arange(len(row_utterance)),
            replica=torch.zeros_like(row_utterance),
            epoch=torch.zeros_like(row_utterance),
        )

    return make
