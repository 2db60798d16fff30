"""Drafted draws are the plain ones, on a trained model: more than 2,000 transcripts in many settings."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from ties import compare, texts

from asrl.data.dataset import SpeechDataset
from asrl.data.features import read_cmvn
from asrl.data.sampler import Row
from asrl.logps import vocabulary_logits
from asrl.models.firered import load_firered
from asrl.rollout import drafted, plain
from asrl.rollout.drafts import repetition
from asrl.rollout.settings import SamplingSettings
from asrl.utterance import Utterance

DEMO = Path(__file__).parents[3] / "demo"
CHECKPOINT = DEMO / "FireRedASR-LLM-demo"
NUM_UTTERANCES, NUM_GENERATIONS = 22, 8
TEMPERATURES = (0.3, 1.0, 1.3)
FILTERS = ((0, 1.0), (0, 0.9), (20, 1.0), (50, 0.99))
# 3 * 4 * 176 rows = 2112, and the settings below add to that.
GRID = [
    SamplingSettings(temperature, top_k, top_p, max_new_tokens=32, seed=seed)
    for seed, (temperature, (top_k, top_p)) in enumerate(product(TEMPERATURES, FILTERS))
]


@pytest.fixture(scope="module")
def demo_model():
    return load_firered(CHECKPOINT, lora_start="merge")


@pytest.fixture(scope="module")
def demo_batch():
    """Eight rows of each of 22 utterances; among their references are empty, wrong and foreign ones."""
    lines = (DEMO / "test.jsonl").read_text(encoding="utf-8").splitlines()[::9][:NUM_UTTERANCES]
    rows = [json.loads(line) for line in lines]
    assert len(rows) == NUM_UTTERANCES
    strange = {0: "", 1: rows[5]["text"], 2: "how is the weather today", 3: rows[3]["text"] * 4, 4: "，。"}
    utterances = [
        Utterance(row["key"], str(DEMO / row["audio"]), strange.get(number, row["text"]))
        for number, row in enumerate(rows)
    ]
    dataset = SpeechDataset(utterances, cmvn=read_cmvn(CHECKPOINT / "cmvn.ark"))
    pairs = [(index, replica) for index in range(NUM_UTTERANCES) for replica in range(NUM_GENERATIONS)]
    return dataset.collate([Row(index, 0, place, replica) for place, (index, replica) in enumerate(pairs)])


def select(batch, rows):
    """These rows of a batch, in this order, with their utterances alone."""
    used, row_utterance = batch.row_utterance[rows].unique(return_inverse=True)
    return replace(
        batch,
        utterances=tuple(batch.utterances[index] for index in used.tolist()),
        features=batch.features[used],
        num_frames=batch.num_frames[used],
        row_utterance=row_utterance,
        row_index=batch.row_index[rows],
        replica=batch.replica[rows],
        epoch=batch.epoch[rows],
    )


def parts(batch, settings):
    """Cut a batch in ways that differ from setting to setting: whole, or shuffled and in two or three."""
    num_rows = len(batch.row_utterance)
    order = torch.randperm(num_rows, generator=torch.Generator().manual_seed(settings.seed))
    return [order] if settings.seed % 3 == 0 else list(order.chunk(1 + settings.seed % 3))


def test_more_than_two_thousand_transcripts_are_those_of_the_plain_engine(demo_model, demo_batch):
    num_rows = num_ties = 0
    for settings in GRID:
        expected = plain.generate(demo_model, demo_batch, settings)
        for rows in parts(demo_batch, settings):
            batch = select(demo_batch, rows)
            got = drafted.generate(demo_model, batch, settings)
            width = got.mask.shape[1]
            mine = replace(
                expected,
                tokens=expected.tokens[rows, :width],
                mask=expected.mask[rows, :width],
                is_finished=expected.is_finished[rows],
                sampling_logps=expected.sampling_logps[rows, :width],
            )
            result = compare(demo_model, batch, settings, mine, got)
            num_rows += result.num_rows
            num_ties += result.num_ties
            same = [one == other for one, other in zip(texts(mine), texts(got), strict=True)]
            assert torch.equal(got.is_finished[same], mine.is_finished[same])
            torch.testing.assert_close(
                got.sampling_logps[same],
                mine.sampling_logps[same],
                rtol=0,
                # The logits are right to a few 1e-6 and are divided by the temperature.
                atol=1e-5 / min(settings.temperature, 1),
            )
    assert num_rows >= 2000
    # Some 20,000 draws, each from boundaries that are right to about 1e-7: a flip is rare. One was seen, at a
    # uniform number 1.4e-8 away from the boundary.
    assert num_ties <= 3


@pytest.mark.parametrize(("temperature", "share"), [(0.0, 0.3), (1.0, 0.75)])
def test_drafts_spare_the_decoder_most_of_its_work(demo_model, demo_batch, temperature, share):
    settings = SamplingSettings(temperature, 50, 0.99, max_new_tokens=32, seed=0)
    work = []
    for engine in (plain, drafted):
        demo_model.work.clear()
        engine.generate(demo_model, demo_batch, settings)
        work.append(dict(demo_model.work))
    assert work[1]["decoder_positions"] < share * work[0]["decoder_positions"]
    assert work[1]["decoder_forwards"] <= work[0]["decoder_forwards"]
    assert work[1]["encoder_utterances"] * NUM_GENERATIONS == work[0]["encoder_utterances"]


@pytest.mark.parametrize(("temperature", "num_forwards"), [(0.0, 12), (0.5, 90)])
def test_rows_that_loop_to_the_token_limit_are_those_of_the_plain_engine(
    demo_model, demo_batch, monkeypatch, temperature, num_forwards
):
    # One token is the most probable everywhere, 7 times the next at temperature 1; the end token never comes.
    end_id, favourite = demo_model.prompt.end_id, 500

    def looping_logits(hidden, weight):
        logits = vocabulary_logits(hidden, weight)
        logits[:, end_id] = -1e4
        logits[:, favourite] = logits.max(1).values + 2
        return logits

    monkeypatch.setattr("asrl.models.speech_llm.vocabulary_logits", looping_logits)
    batch = select(demo_batch, torch.arange(0, 96, 8))
    settings = SamplingSettings(temperature, 20, 0.95, max_new_tokens=120, seed=1)
    expected = plain.generate(demo_model, batch, settings)
    demo_model.work.clear()
    got = drafted.generate(demo_model, batch, settings)
    assert demo_model.work["decoder_forwards"] < num_forwards
    assert compare(demo_model, batch, settings, expected, got).num_ties == 0
    assert not got.is_finished.any()
    assert sum(repetition(row[-6:], 1) == [favourite] for row in texts(got)) > 6
