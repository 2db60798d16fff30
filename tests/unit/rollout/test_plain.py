from dataclasses import replace

import pytest
import torch

from asrl.logps import vocabulary_logits
from asrl.rollout.plain import generate
from asrl.rollout.settings import SamplingSettings, greedy

SETTINGS = SamplingSettings(temperature=0.8, top_k=50, top_p=0.95, max_new_tokens=8, seed=7)
ROWS = ((0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (3, 0))


def texts(completions):
    """Tokens of every row, without padding."""
    rows = zip(completions.tokens, completions.mask, strict=True)
    return [tokens[mask].tolist() for tokens, mask in rows]


@pytest.fixture
def always_ends(speech_model, monkeypatch):
    """Make the end token as good as certain at every step."""
    certain = torch.tensor([speech_model.prompt.end_id])
    monkeypatch.setattr(
        "asrl.models.speech_llm.vocabulary_logits",
        lambda *args: vocabulary_logits(*args).index_fill(1, certain, 1e4),
    )


@torch.no_grad()
def test_greedy_takes_the_argmax_of_forward_at_every_step(speech_model, make_speech):
    batch = make_speech((0, 0), (1, 0))
    tokens = generate(speech_model, batch, greedy(3)).tokens
    vocabulary = torch.arange(len(speech_model.causal_lm.lm_head.weight))
    for row in range(2):
        for step in range(3):
            # Every word of the vocabulary continues the row's own beginning: the drawn one scores highest.
            candidates = tokens[row, : step + 1].repeat(len(vocabulary), 1)
            candidates[:, step] = vocabulary
            logps = []
            for part in candidates.split(160):
                alone = make_speech(*([(row, 0)] * len(part)))
                mask = torch.ones_like(part, dtype=torch.bool)
                logps.append(speech_model(alone, part, mask, temperature=1.0).logps[:, step])
            assert int(torch.cat(logps).argmax()) == tokens[row, step]


def test_transcripts_are_the_same_in_any_batch_and_order(speech_model, make_speech):
    together = texts(generate(speech_model, make_speech(*ROWS), SETTINGS))
    assert len({tuple(row) for row in together}) == len(ROWS)
    alone = [texts(generate(speech_model, make_speech(row), SETTINGS))[0] for row in ROWS]
    assert alone == together
    backwards = texts(generate(speech_model, make_speech(*ROWS[::-1]), SETTINGS))
    assert backwards[::-1] == together


@pytest.mark.parametrize("change", ["seed", "epoch", "replica"])
def test_noise_depends_on_the_key_of_the_row(speech_model, make_speech, change):
    original = texts(generate(speech_model, make_speech((1, 0, 0)), SETTINGS))
    settings = replace(SETTINGS, seed=8) if change == "seed" else SETTINGS
    row = {"seed": (1, 0, 0), "epoch": (1, 0, 1), "replica": (1, 1, 0)}[change]
    assert texts(generate(speech_model, make_speech(row), settings)) != original


def test_a_higher_limit_only_appends(speech_model, make_speech):
    short = texts(generate(speech_model, make_speech(*ROWS), SETTINGS))
    long = texts(generate(speech_model, make_speech(*ROWS), replace(SETTINGS, max_new_tokens=12)))
    assert [row[: len(begun)] for row, begun in zip(long, short, strict=True)] == short


def test_rows_cut_at_the_limit_are_not_finished(speech_model, make_speech):
    completions = generate(speech_model, make_speech(*ROWS), SETTINGS)
    end_id = speech_model.prompt.end_id
    for row, is_finished in zip(texts(completions), completions.is_finished.tolist(), strict=True):
        assert is_finished == (row[-1] == end_id)
        assert is_finished or len(row) == 8
        assert end_id not in row[:-1]


@pytest.mark.usefixtures("always_ends")
@pytest.mark.parametrize("limit", [1, 8])
def test_hypotheses_of_only_the_end_token_are_finished_and_one_token_long(speech_model, make_speech, limit):
    completions = generate(speech_model, make_speech(*ROWS), replace(SETTINGS, max_new_tokens=limit))
    assert texts(completions) == [[speech_model.prompt.end_id]] * len(ROWS)
    assert completions.mask.tolist() == [[True]] * len(ROWS)
    assert completions.is_finished.all()
    # The other logits are some 10,000 below.
    assert completions.sampling_logps.abs().max() == 0


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_sampling_logps_are_those_of_forward(speech_model, make_speech, temperature):
    batch = make_speech(*ROWS)
    completions = generate(speech_model, batch, replace(SETTINGS, temperature=temperature, max_new_tokens=6))
    with torch.no_grad():
        scores = speech_model(batch, completions.tokens, completions.mask, temperature=temperature)
    torch.testing.assert_close(completions.sampling_logps, scores.logps, rtol=0, atol=1e-5)
    assert (completions.sampling_logps[completions.mask] < 0).all()


@pytest.mark.parametrize("is_training", [True, False])
def test_the_mode_of_the_model_is_restored_and_dropout_is_off(speech_model, make_speech, is_training):
    expected = texts(generate(speech_model, make_speech(*ROWS[:2]), SETTINGS))
    speech_model.train(is_training)
    try:
        assert texts(generate(speech_model, make_speech(*ROWS[:2]), SETTINGS)) == expected
        assert speech_model.training is is_training
    finally:
        speech_model.eval()


def test_the_global_random_state_is_neither_read_nor_moved(speech_model, make_speech):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = texts(generate(speech_model, make_speech(*ROWS[:2]), SETTINGS))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert texts(generate(speech_model, make_speech(*ROWS[:2]), SETTINGS)) == first


def test_the_mode_is_restored_after_an_error(speech_model, make_speech, monkeypatch):
    def fail(*_):
        raise RuntimeError("out of memory")

    speech_model.train()
    monkeypatch.setattr(speech_model, "encode", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        generate(speech_model, make_speech((0, 0)), SETTINGS)
    assert speech_model.training
    speech_model.eval()
