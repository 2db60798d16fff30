"""Features equal upstream's (kaldi_native_fbank on the same recordings, then CMVN)."""

import json

import numpy as np
import pytest
import torch

from asrl.data.audio import read_audio
from asrl.data.dataset import SpeechDataset
from asrl.data.features import count_frames, fbank, read_cmvn, read_cmvn_statistics, write_cmvn
from asrl.data.sampler import plain_batches
from asrl.utterance import Utterance


@pytest.fixture
def cmvn_path(golden):
    return golden / "FireRedASR-LLM-tiny" / "cmvn.ark"


@pytest.mark.parametrize(("name", "num_samples"), [("synth", 13040), ("bacp", 32080)])
def test_features_equal_upstream(golden, cmvn_path, name, num_samples):
    with np.load(golden / f"{name}.arith.npz") as arrays:
        expected = torch.from_numpy(arrays["feats"])
        num_frames = arrays["feat_len"].item()
    waveform = read_audio(golden / "wav" / f"{name}.wav")
    assert len(waveform) == num_samples
    assert count_frames(num_samples) == num_frames == len(expected)
    # Upstream computes in float32.
    torch.testing.assert_close(read_cmvn(cmvn_path).apply(fbank(waveform)), expected, rtol=0, atol=1e-4)


def test_a_padded_batch_holds_upstream_features(golden, cmvn_path):
    utterances = [
        Utterance(key=n, audio=str(golden / "wav" / f"{n}.wav"), transcript="x") for n in ("synth", "bacp")
    ]
    batch = SpeechDataset(utterances, cmvn=read_cmvn(cmvn_path)).collate(plain_batches(2, 2)[0])
    assert batch.num_frames.tolist() == [80, 199]
    for number, name in enumerate(("synth", "bacp")):
        with np.load(golden / f"{name}.arith.npz") as arrays:
            expected = torch.from_numpy(arrays["feats"])
        torch.testing.assert_close(batch.features[number, : len(expected)], expected, rtol=0, atol=1e-4)
        assert batch.features[number, len(expected) :].eq(0).all()


def test_statistics_round_trip_to_the_byte(cmvn_path, tmp_path):
    write_cmvn(tmp_path / "cmvn.ark", read_cmvn_statistics(cmvn_path))
    assert (tmp_path / "cmvn.ark").read_bytes() == cmvn_path.read_bytes()
    assert len(cmvn_path.read_bytes()) == 1311


def test_five_frames_are_the_fewest_that_give_a_speech_embedding(golden):
    table = json.loads((golden / "lengths.json").read_text())
    embeddings = {row[0]: row[table["columns"].index("adapter_frames")] for row in table["rows"]}
    assert min(frames for frames, number in embeddings.items() if number > 0) == 5
