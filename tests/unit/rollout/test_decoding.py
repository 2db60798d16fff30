import json

import pytest

from asrl.rollout.beam import BeamSettings
from asrl.rollout.decoding import DecodingSettings, decode, token_limits


@pytest.fixture(scope="module")
def greedy_ids(golden):
    utterances = json.loads((golden / "golden.stride.json").read_text(encoding="utf-8"))["utts"]
    return [utterances[name]["greedy_ids"] for name in ("synth", "bacp")]


@pytest.mark.parametrize("which", [[0], [1], [0, 1], [1, 0]])
def test_greedy_transcripts_are_those_of_upstream_alone_and_in_a_batch(
    speech_model, make_speech, greedy_ids, which
):
    found = decode(speech_model, make_speech(*((index, 0) for index in which)), DecodingSettings())
    assert found == [greedy_ids[index] for index in which]


def test_the_limit_is_one_token_per_speech_embedding_unless_it_is_given(speech_model, make_speech):
    batch = make_speech((1, 0), (0, 0))
    # 199 and 80 frames of 10 ms: ceil(L / 4) // 2.
    assert token_limits(speech_model, batch, DecodingSettings()) == [25, 10]
    assert token_limits(speech_model, batch, DecodingSettings(max_new_tokens=3)) == [3, 3]


def test_a_given_limit_cuts_greedy_and_beam_search(speech_model, make_speech, greedy_ids):
    batch = make_speech((0, 0), (1, 0))
    cut = decode(speech_model, batch, DecodingSettings(max_new_tokens=2))
    assert cut == [tokens[:2] for tokens in greedy_ids]
    beams = decode(speech_model, batch, DecodingSettings(BeamSettings(3, 3.0, 1.0), max_new_tokens=2))
    assert [len(tokens) for tokens in beams] == [2, 2]


def test_a_repetition_penalty_also_works_without_beams(speech_model, make_speech, greedy_ids):
    batch = make_speech((0, 0))
    mild = decode(speech_model, batch, DecodingSettings(BeamSettings(1, 1.0 + 1e-9, 0.0)))
    assert mild == [greedy_ids[0]]
    # Greedy writes 30 tokens with repetitions; a penalty of a million leaves none.
    long = decode(speech_model, batch, DecodingSettings(max_new_tokens=30))[0]
    assert len(set(long)) < len(long)
    penalised = decode(speech_model, batch, DecodingSettings(BeamSettings(1, 1e6, 0.0), max_new_tokens=30))[0]
    assert len(set(penalised)) == len(penalised)
