import json

import pytest
from transformers import GenerationConfig

from asrl.models.firered import load_firered
from asrl.rollout.beam import BeamSettings, search

UPSTREAM = BeamSettings(num_beams=3, repetition_penalty=3.0, length_penalty=1.0)
# Speech embeddings of the first two utterances, synth and bacp: upstream's limits.
LIMITS = {0: 10, 1: 25}


@pytest.fixture(scope="module", params=["stride", "arith"])
def length_rule(request):
    return request.param


@pytest.fixture(scope="module")
def model(golden, length_rule):
    return load_firered(golden / "FireRedASR-LLM-tiny", lora_start="continue", length_rule=length_rule)


@pytest.fixture(scope="module")
def expected(golden, length_rule):
    utterances = json.loads((golden / f"golden.{length_rule}.json").read_text(encoding="utf-8"))["utts"]
    return [utterances[name]["beam3_rp3_lp1_ids"] for name in ("synth", "bacp")]


@pytest.mark.parametrize("which", [[0], [1], [0, 1], [1, 0]])
def test_three_beams_find_the_transcripts_of_upstream_alone_and_in_a_batch(
    model, make_speech, expected, which
):
    batch = make_speech(*((index, 0) for index in which))
    found = search(model, batch, UPSTREAM, [LIMITS[index] for index in which])
    assert found == [expected[index] for index in which]


@pytest.mark.parametrize(
    "settings",
    [UPSTREAM, BeamSettings(2, 1.0, 0.0), BeamSettings(4, 1.5, 2.0), BeamSettings(1, 3.0, 0.0)],
    ids=str,
)
def test_a_transcript_is_the_same_in_every_batch(speech_model, make_speech, settings):
    limits = [10, 25, 7, 12]
    alone = [
        search(speech_model, make_speech((index, 0)), settings, [limit])[0]
        for index, limit in enumerate(limits)
    ]
    together = search(speech_model, make_speech((3, 0), (1, 0), (0, 0), (2, 0)), settings, [12, 25, 10, 7])
    assert together == [alone[index] for index in (3, 1, 0, 2)]


def test_nothing_is_inherited_from_the_decoder_folder(speech_model, make_speech, monkeypatch, golden):
    inherited = GenerationConfig(
        no_repeat_ngram_size=1, suppress_tokens=[339], min_new_tokens=20, bad_words_ids=[[291]], num_beams=7
    )
    monkeypatch.setattr(speech_model.causal_lm, "generation_config", inherited)
    utterances = json.loads((golden / "golden.stride.json").read_text(encoding="utf-8"))["utts"]
    found = search(speech_model, make_speech((1, 0)), UPSTREAM, [25])
    assert found == [utterances["bacp"]["beam3_rp3_lp1_ids"]]
    assert speech_model.causal_lm.generation_config is inherited
