"""Loading batches: contents by value, the same in any batch and with any number of workers."""

import multiprocessing
import operator
import os
import re
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
import soundfile
import torch

from asrl.data.augment import SpecAugment
from asrl.data.dataset import SpeechDataset, iterate_batches, make_loader
from asrl.data.features import Cmvn, fbank
from asrl.data.sampler import RepeatSampler, Row, plain_batches
from asrl.errors import UserError
from asrl.utterance import Utterance

CMVN = Cmvn(
    mean=torch.full((80,), 2.0, dtype=torch.float64), inverse_std=torch.full((80,), 0.5, dtype=torch.float64)
)
NUM_SAMPLES = [1040, 2000, 1500]  # 5, 11 and 7 frames


@pytest.fixture(scope="module")
def utterances(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audio")
    made = []
    for number, num_samples in enumerate(NUM_SAMPLES):
        path = folder / f"{number}.wav"
        soundfile.write(path, np.random.default_rng(number).normal(0, 0.1, num_samples), 16000)
        made.append(
            Utterance(key=f"u{number}", audio=str(path), transcript="x", place=f"m.jsonl:{number + 1}")
        )
    return made


@pytest.fixture
def dataset(utterances):
    return SpeechDataset(utterances, cmvn=CMVN)


def by_hand(utterance):
    codes, _ = soundfile.read(utterance.audio, dtype="int16")
    return (fbank(torch.tensor(codes, dtype=torch.float32)) - 2) / 2


def row(index, row_index=0, epoch=0, replica=0):
    return Row(index=index, epoch=epoch, row_index=row_index, replica=replica)


def test_a_batch_by_value(dataset, utterances):
    rows = [row(2, 8, 4, 0), row(2, 9, 4, 1), row(0, 10, 4, 0), row(0, 11, 4, 1), row(2, 12, 5, 0)]
    batch = dataset.collate(rows)
    assert batch.utterances == (utterances[2], utterances[0], utterances[2])  # of epochs 4, 4 and 5
    assert batch.row_utterance.tolist() == [0, 0, 1, 1, 2]
    assert batch.row_index.tolist() == [8, 9, 10, 11, 12]
    assert batch.replica.tolist() == [0, 1, 0, 1, 0]
    assert batch.epoch.tolist() == [4, 4, 4, 4, 5]
    assert batch.num_frames.tolist() == [7, 5, 7]
    assert batch.features.shape == (3, 7, 80)
    torch.testing.assert_close(batch.features[0], by_hand(utterances[2]), rtol=0, atol=1e-6)
    torch.testing.assert_close(batch.features[1, :5], by_hand(utterances[0]), rtol=0, atol=1e-6)
    assert batch.features[1, 5:].eq(0).all()  # padded after normalisation
    assert torch.equal(batch.features[0], batch.features[2])


def test_each_utterance_is_read_once(dataset, monkeypatch):
    read = []
    featurize = SpeechDataset.featurize

    def count(self, utterance, *, epoch):
        read.append((utterance.key, epoch))
        return featurize(self, utterance, epoch=epoch)

    monkeypatch.setattr(SpeechDataset, "featurize", count)
    dataset.collate([row(index, epoch=epoch) for epoch in (0, 1) for index in (1, 0, 1) for _ in range(8)])
    assert read == [("u1", 0), ("u0", 0), ("u1", 1), ("u0", 1)]


def test_features_do_not_depend_on_the_batch(dataset, utterances):
    together = dataset.collate([row(0), row(1), row(2)])
    for index, utterance in enumerate(utterances):
        alone = dataset.collate([row(index)]).features[0]
        assert torch.equal(alone, together.features[index, : len(alone)])
        assert torch.equal(alone, dataset.featurize(utterance))


def loaded(dataset, num_workers, start=0):
    sampler = RepeatSampler(
        3,
        num_generations=2,
        rows_per_step=4,
        steps_per_generation=1,
        world_size=1,
        rank=0,
        seed=0,
        start=start,
        num_batches=6 - start,
    )
    return list(make_loader(dataset, sampler, num_workers=num_workers))


def assert_equal(batches, others):
    assert len(batches) == len(others)
    for batch, other in zip(batches, others, strict=True):
        for name, value in vars(batch).items():
            same = torch.equal if isinstance(value, torch.Tensor) else operator.eq
            assert same(value, getattr(other, name)), name


def test_workers_and_resuming_change_nothing(utterances):
    augment = SpecAugment(
        num_time_masks=2, max_time_frames=9, num_frequency_masks=2, max_frequency_bins=20, seed=3
    )
    dataset = SpeechDataset(utterances, cmvn=CMVN, augment=augment)
    batches = loaded(dataset, num_workers=0)
    assert [batch.row_index.tolist() for batch in batches] == [[0, 1, 2, 3]] * 6
    assert_equal(loaded(dataset, num_workers=1), batches)
    assert_equal(loaded(dataset, num_workers=2), batches)
    assert_equal(loaded(dataset, num_workers=2, start=4), batches[4:])


def test_augmentation_depends_on_the_epoch(utterances):
    augment = SpecAugment(num_time_masks=0, max_time_frames=0, num_frequency_masks=4, max_frequency_bins=40)
    batch = SpeechDataset(utterances, cmvn=CMVN, augment=augment).collate([row(1, epoch=0), row(1, epoch=1)])
    expected = [augment(by_hand(utterances[1]), epoch=epoch, key="u1") for epoch in (0, 1)]
    assert not torch.equal(expected[0], expected[1])
    torch.testing.assert_close(batch.features, torch.stack(expected), rtol=0, atol=1e-6)


def test_a_stretch_has_the_features_of_its_own_samples(dataset, utterances):
    # 0.025 s are 400 samples, so the stretch is samples 400 to 1600 of 2000.
    codes, _ = soundfile.read(utterances[1].audio, dtype="int16")
    expected = (fbank(torch.tensor(codes[400:1600], dtype=torch.float32)) - 2) / 2
    stretch = replace(utterances[1], start=0.025, duration=0.075)
    torch.testing.assert_close(dataset.featurize(stretch), expected, rtol=0, atol=1e-6)


def test_waveforms_are_perturbed_first_and_features_augmented_last(utterances):
    calls = []

    def halve(waveform, *, epoch, key):
        calls.append((epoch, key))
        return waveform[: len(waveform) // 2]

    def mark(features, **_):
        return features + 100

    dataset = SpeechDataset(utterances, cmvn=CMVN, perturb=halve, augment=mark)
    batch = dataset.collate([row(1, epoch=3, replica=0), row(1, 1, epoch=3, replica=1)])
    codes, _ = soundfile.read(utterances[1].audio, dtype="int16")
    expected = (fbank(torch.tensor(codes[:1000], dtype=torch.float32)) - 2) / 2 + 100
    torch.testing.assert_close(batch.features[0], expected, rtol=0, atol=1e-5)
    assert calls == [(3, "u1")]  # both transcripts are of the same audio


def test_plain_batches_can_be_iterated_again(dataset):
    loader = make_loader(dataset, plain_batches(3, 2))
    for _ in range(2):
        assert [batch.row_index.tolist() for batch in loader] == [[0, 1], [2]]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_loading_leaves_the_global_random_state_alone(dataset, num_workers):
    before = torch.get_rng_state()
    loaded(dataset, num_workers)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_unusable_file_stops_its_batch_with_one_line(utterances, tmp_path, num_workers):
    missing = Utterance(key="gone", audio=str(tmp_path / "gone.wav"), transcript="x", place="m.jsonl:4")
    dataset = SpeechDataset([*utterances, missing], cmvn=CMVN)
    batches = iter(make_loader(dataset, plain_batches(4, 2), num_workers=num_workers))
    assert next(batches).row_index.tolist() == [0, 1]
    with pytest.raises(UserError) as caught:
        next(batches)
    assert str(caught.value) == f"m.jsonl:4: gone: {tmp_path / 'gone.wav'}: no such audio file"


def count_threads(features, **_):
    return torch.full_like(features, torch.get_num_threads())


def test_workers_compute_on_one_thread(utterances):
    torch.set_num_threads(2)
    dataset = SpeechDataset(utterances, cmvn=CMVN, augment=count_threads)
    assert [batch.features.max().item() for batch in loaded(dataset, num_workers=1)] == [1.0] * 6


def die_at_u1(features, *, key, **_):
    if key == "u1":
        os.kill(os.getpid(), signal.SIGKILL)
    return features


def test_a_dead_worker_is_reported_where_its_batch_is_due_with_what_it_was_reading(utterances):
    dataset = SpeechDataset(utterances, cmvn=CMVN, augment=die_at_u1)
    before = multiprocessing.active_children()
    batches = iter(make_loader(dataset, plain_batches(3, 1), num_workers=2))
    assert next(batches).row_index.tolist() == [0]
    while len(set(multiprocessing.active_children()) - set(before)) > 1:
        time.sleep(0.01)  # the death itself must not disturb what goes on here meanwhile
    with pytest.raises(UserError) as caught:
        next(batches)
    assert re.fullmatch(
        r"data\.num_workers: a worker process died while or after reading m\.jsonl:2: u1: \S+1\.wav "
        r"\(DataLoader worker \(pid\(s\) \d+\) exited unexpectedly\); often memory or /dev/shm is full: .*",
        str(caught.value),
    )


def test_a_worker_that_died_before_it_read_anything_is_reported_as_such(dataset):
    loader = make_loader(dataset, plain_batches(3, 1), num_workers=1)
    assert loader._place_read_by("DataLoader worker (pid 1)") == "before it read anything"


def die_silently(features, **_):
    os._exit(0)


def test_a_worker_that_leaves_without_an_error_is_reported_too(utterances):
    dataset = SpeechDataset(utterances, cmvn=CMVN, augment=die_silently)
    with pytest.raises(UserError, match=r"while or after reading m\.jsonl:1: u0: "):
        next(iter(make_loader(dataset, plain_batches(3, 1), num_workers=1)))


def test_other_errors_keep_their_traceback():
    def fail():
        raise RuntimeError("Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback ...")
        yield

    with pytest.raises(RuntimeError, match="Original Traceback") as caught:
        list(iterate_batches(fail(), str))
    assert not isinstance(caught.value, UserError)


def test_workers_end_at_once_after_an_error(utterances):
    # Left to the garbage collector, which the traceback would cause, each worker takes 5 s to end.
    before = multiprocessing.active_children()
    missing = Utterance(key="gone", audio="gone.wav", transcript="x")
    batches = iter(make_loader(SpeechDataset([missing], cmvn=CMVN), plain_batches(1, 1), num_workers=1))
    with pytest.raises(UserError):
        next(batches)
    assert set(multiprocessing.active_children()) <= set(before)
