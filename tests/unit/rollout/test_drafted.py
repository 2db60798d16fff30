from dataclasses import replace

import pytest
import torch
from ties import compare, texts

from asrl.data.sampler import Row
from asrl.logps import vocabulary_logits
from asrl.rollout import drafted, plain
from asrl.rollout.settings import SamplingSettings, greedy

LOGITS = "asrl.models.speech_llm.vocabulary_logits"
SETTINGS = SamplingSettings(temperature=0.8, top_k=50, top_p=0.95, max_new_tokens=10, seed=7)
ROWS = tuple((utterance, replica) for utterance in range(4) for replica in range(3))


def count_forwards(model, run):
    """What ``run`` returns, and how many decoder forwards it took."""
    before = model.work["decoder_forwards"]
    result = run()
    return result, model.work["decoder_forwards"] - before


@pytest.fixture
def never_ends(speech_model, monkeypatch):
    """Make the end token as good as impossible."""
    end_id = torch.tensor([speech_model.prompt.end_id])
    monkeypatch.setattr(LOGITS, lambda *args: vocabulary_logits(*args).index_fill(1, end_id, -1e4))


@pytest.fixture
def loops(speech_model, monkeypatch):
    """Build a model that repeats a phrase for ever: every token decides the next one.

    The stub reads the token at the last position off a decoder that returns its own input.
    """

    def begin(phrase):
        embeddings = speech_model.causal_lm.get_input_embeddings().weight.detach()
        following = dict(zip(phrase, [*phrase[1:], phrase[0]], strict=True))

        def head(hidden, _):
            read = torch.cdist(hidden, embeddings).argmin(1).tolist()
            logits = torch.zeros(len(hidden), len(embeddings))
            for place, token in enumerate(read):
                logits[place, following.get(token, phrase[0])] = 50.0
            return logits

        def decoder(inputs, mask, positions, cache=None):
            speech_model.work["decoder_forwards"] += 1
            if cache is not None:
                cache.update(inputs[:, None], inputs[:, None], 0)
            return inputs

        monkeypatch.setattr(LOGITS, head)
        monkeypatch.setattr(speech_model, "decoder", decoder)

    return begin


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0, 1.3])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (5, 0.8)])
def test_transcripts_are_those_of_the_plain_engine(speech_model, make_speech, temperature, top_k, top_p):
    settings = replace(SETTINGS, temperature=temperature, top_k=top_k, top_p=top_p)
    batch = make_speech(*ROWS)
    expected, got = (engine.generate(speech_model, batch, settings) for engine in (plain, drafted))
    assert compare(speech_model, batch, settings, expected, got).num_ties == 0
    assert torch.equal(got.mask, expected.mask)
    assert torch.equal(got.is_finished, expected.is_finished)
    # Logits near 20, right to about 2e-6, are divided by the temperature.
    tolerance = 1e-5 / min(temperature or 1, 1)
    torch.testing.assert_close(got.sampling_logps, expected.sampling_logps, rtol=0, atol=tolerance)
    assert (got.sampling_logps[~got.mask] == 0).all()


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_short_limits_cut_the_same_rows(speech_model, make_speech, limit):
    batch, settings = make_speech(*ROWS), replace(SETTINGS, max_new_tokens=limit)
    expected, got = (engine.generate(speech_model, batch, settings) for engine in (plain, drafted))
    assert texts(got) == texts(expected)
    assert torch.equal(got.is_finished, expected.is_finished)
    assert max(map(len, texts(got))) == limit


def test_one_row_per_utterance_is_enough(speech_model, make_speech):
    together = texts(drafted.generate(speech_model, make_speech(*ROWS), SETTINGS))
    alone = [texts(drafted.generate(speech_model, make_speech(row), SETTINGS))[0] for row in ROWS]
    assert alone == together


def test_rows_of_an_utterance_need_not_be_neighbours(speech_model, make_speech):
    together = texts(drafted.generate(speech_model, make_speech(*ROWS), SETTINGS))
    order = torch.randperm(len(ROWS), generator=torch.Generator().manual_seed(5)).tolist()
    shuffled = texts(drafted.generate(speech_model, make_speech(*[ROWS[row] for row in order]), SETTINGS))
    assert shuffled == [together[row] for row in order]


def test_the_same_utterance_in_two_epochs_is_drawn_twice(speech_model, make_speech):
    rows = ((1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1))
    expected, got = (
        texts(engine.generate(speech_model, make_speech(*rows), SETTINGS)) for engine in (plain, drafted)
    )
    assert got == expected
    assert len(set(map(tuple, got))) == 4


@pytest.mark.parametrize(
    "transcript", ["", "good morning, how are you today", "天气" * 40, "<|im_end|>", "。！"]
)
def test_no_reference_changes_a_draw(speech_model, dataset, make_speech, transcript):
    batch = make_speech(*ROWS)
    expected = texts(plain.generate(speech_model, batch, SETTINGS))
    others = tuple(replace(utterance, transcript=transcript) for utterance in batch.utterances)
    got = texts(drafted.generate(speech_model, replace(batch, utterances=others), SETTINGS))
    assert got == expected


@pytest.mark.usefixtures("never_ends")
def test_rows_that_never_end_are_cut_alike(speech_model, make_speech):
    settings = replace(SETTINGS, temperature=0.3, max_new_tokens=60)
    batch = make_speech(*ROWS)
    expected, got = (engine.generate(speech_model, batch, settings) for engine in (plain, drafted))
    assert compare(speech_model, batch, settings, expected, got).num_ties == 0
    assert not got.is_finished.any()
    assert got.mask.all()
    assert got.mask.shape[1] == 60


def test_a_row_is_finished_if_it_ends_at_the_very_limit(speech_model, make_speech):
    batch = make_speech(*ROWS)
    free = drafted.generate(speech_model, batch, replace(SETTINGS, max_new_tokens=400))
    lengths = free.mask.sum(1)
    assert free.is_finished.any()
    shortest = int(lengths[free.is_finished].min())
    for limit in (shortest, shortest - 1):
        cut = drafted.generate(speech_model, batch, replace(SETTINGS, max_new_tokens=limit))
        assert cut.is_finished.tolist() == (free.is_finished & (lengths <= limit)).tolist()
        assert texts(cut) == [row[:limit] for row in texts(free)]


@pytest.mark.parametrize("period", [1, 3, 40])
def test_a_repetition_loop_takes_few_forwards(speech_model, make_speech, loops, period):
    phrase = list(range(100, 100 + period))
    loops(phrase)
    completions, num_forwards = count_forwards(
        speech_model, lambda: drafted.generate(speech_model, make_speech((0, 0), (0, 1)), greedy(2048))
    )
    assert texts(completions) == [[phrase[place % period] for place in range(2048)]] * 2
    # 64 drafted tokens and one more in a forward: 32 of them, and some to find the loop.
    assert num_forwards <= 2048 / 65 + 2 * period + 10 <= 200


def test_a_reference_that_the_model_agrees_with_is_read_in_one_forward(speech_model, make_speech, loops):
    transcript = "abcdefghijklmnopqrstuvwxyz"
    phrase = speech_model.prompt.encode_transcript(transcript)[:-1]
    assert len(set(phrase)) == len(phrase)
    loops(phrase)
    batch = make_speech((0, 0), (0, 1))
    batch = replace(batch, utterances=(replace(batch.utterances[0], transcript=transcript),))
    # The prompt with the reference gives all its tokens and one more, which the next forward reads.
    for limit, expected in ((len(phrase) + 1, 1), (len(phrase) + 2, 2)):
        completions, num_forwards = count_forwards(
            speech_model, lambda limit=limit: drafted.generate(speech_model, batch, greedy(limit))
        )
        assert texts(completions) == [(phrase * 2)[:limit]] * 2
        assert num_forwards == expected


@pytest.mark.parametrize(
    ("transcript", "expected"),
    [
        # The first forward writes up to m, which the reference lacks here; the second writes the rest.
        ("abcdefghijkl1nopqrstuvwxyz", 2),
        ("abcdefghijkl12mnopqrstuvwxyz", 2),
        # An inserted m is taken for a substituted n: one forward writes only that n. Then the draft is short.
        ("abcdefghijklnopqrstuvwxyz", 4),
    ],
    ids=["substituted", "deleted", "inserted"],
)
def test_after_an_error_the_reference_is_read_on(speech_model, make_speech, loops, transcript, expected):
    phrase = speech_model.prompt.encode_transcript("abcdefghijklmnopqrstuvwxyz")[:-1]
    loops(phrase)
    batch = make_speech((0, 0))
    batch = replace(batch, utterances=(replace(batch.utterances[0], transcript=transcript),))
    settings = greedy(len(phrase))
    completions, num_forwards = count_forwards(
        speech_model, lambda: drafted.generate(speech_model, batch, settings)
    )
    assert texts(completions) == [phrase]
    assert num_forwards == expected


def test_every_utterance_is_encoded_once(speech_model, make_speech):
    before = speech_model.work["encoder_utterances"]
    drafted.generate(speech_model, make_speech(*ROWS), SETTINGS)
    assert speech_model.work["encoder_utterances"] - before == 4


def test_a_rank_without_rows_keeps_joining_forwards_until_all_are_done(speech_model, make_speech):
    batch = make_speech(*ROWS)
    expected, num_forwards = count_forwards(
        speech_model, lambda: drafted.generate(speech_model, batch, SETTINGS)
    )
    told = []

    def another_rank_needs_three_rounds_more(is_busy):
        told.append(is_busy)
        return len(told) <= num_forwards - 1 + 3

    got, num_joined = count_forwards(
        speech_model,
        lambda: drafted.generate(
            speech_model, batch, SETTINGS, is_any_rank_busy=another_rank_needs_three_rounds_more
        ),
    )
    assert num_joined == num_forwards + 3
    # After the prompts, a question before every round: the busy ones, three idle ones, and the last answer.
    assert told == [True] * (num_forwards - 1) + [False] * 4
    assert texts(got) == texts(expected)
    assert torch.equal(got.sampling_logps, expected.sampling_logps)


@pytest.mark.parametrize("is_training", [True, False])
def test_the_mode_of_the_model_is_restored_and_dropout_is_off(speech_model, make_speech, is_training):
    speech_model.eval()
    expected = texts(drafted.generate(speech_model, make_speech(*ROWS[:2]), SETTINGS))
    speech_model.train(is_training)
    try:
        assert texts(drafted.generate(speech_model, make_speech(*ROWS[:2]), SETTINGS)) == expected
        assert speech_model.training is is_training
    finally:
        speech_model.eval()


def test_the_mode_is_restored_after_an_error(speech_model, make_speech, monkeypatch):
    def fail(*_):
        raise RuntimeError("out of memory")

    speech_model.train()
    monkeypatch.setattr(LOGITS, fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        drafted.generate(speech_model, make_speech((0, 0)), SETTINGS)
    assert speech_model.training
    speech_model.eval()


def test_the_global_random_state_is_neither_read_nor_moved(speech_model, make_speech):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = texts(drafted.generate(speech_model, make_speech(*ROWS[:2]), SETTINGS))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert texts(drafted.generate(speech_model, make_speech(*ROWS[:2]), SETTINGS)) == first


def test_a_kept_encoder_output_gives_the_same_transcripts(speech_model, dataset):
    batch = dataset.collate([Row(index, 0, index, 0) for index in range(4)])
    with torch.no_grad():
        hidden = speech_model.encoder(batch.features, batch.num_frames).hidden
    kept = replace(batch, encoded=hidden)
    before = speech_model.work["encoder_utterances"]
    for engine in (plain, drafted):
        assert texts(engine.generate(speech_model, kept, SETTINGS)) == texts(
            engine.generate(speech_model, batch, SETTINGS)
        )
    assert speech_model.work["encoder_utterances"] - before == 8  # not for the kept ones
