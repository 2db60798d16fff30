"""The tree layout gives the numbers of the replica layout, which reads every row by itself."""

from dataclasses import replace

import pytest
import torch

from asrl.losses import LEVELS, policy_loss
from asrl.models.trainable import set_dropout

END = 602
# Rows of (utterance, transcript). The first utterance: a shared beginning, the same transcript twice, one
# that is the beginning of another without its end (cut at the token limit), only the end token. The second:
# no sharing.
ROWS = (
    (0, [361, 427, 431, END]),
    (1, [490, 520, 473, 515, END]),
    (0, [361, 427, 500, 431, END]),
    (0, [361, 427, 431, END]),
    (1, [END]),
    (0, [END]),
    (0, [361, 427]),
    (1, [361, 427, 431, END]),
)
# What utterance 0 shares: 361, 427, 431 and END after it, 500, 431, END, and END at once: 8 tokens. Of these
# four END have nothing after them; 4 + 1 inner nodes: 361, 427, 431, 500 and 431 again.
NUM_INNER = (5, 4 + 3)  # utterance 1: 490 520 473 515 and 361 427 431


def padded(rows):
    """Tokens and mask of rows of (utterance, transcript), with garbage in the padding."""
    width = max(len(transcript) for _, transcript in rows)
    tokens = torch.full((len(rows), width), 7)
    for row, (_, transcript) in enumerate(rows):
        tokens[row, : len(transcript)] = torch.tensor(transcript)
    num_tokens = torch.tensor([len(transcript) for _, transcript in rows])
    return tokens, torch.arange(width) < num_tokens[:, None]


@pytest.fixture
def batch(make_batch):
    return make_batch([0, 1], [utterance for utterance, _ in ROWS])


@pytest.fixture
def still_model(model):
    """In train mode, with every dropout off. The checkpoint's LoRA is not zero."""
    set_dropout(model, False)
    return model.train()


def score(model, layout, batch, rows=ROWS, **options):
    model.layout = layout
    tokens, mask = padded(rows)
    return model(batch, tokens, mask, **({"temperature": 1.0} | options))


def both(model, batch, rows=ROWS, **options):
    with torch.no_grad():
        return [score(model, layout, batch, rows, **options) for layout in ("tree", "replicas")]


def assert_equal_scores(tree, replicas, temperature=1.0):
    # Log-probs near -15 in float32; the same sums in another order. The temperature divides their errors too.
    torch.testing.assert_close(tree.logps, replicas.logps, rtol=0, atol=1e-5 / temperature)
    torch.testing.assert_close(tree.entropy, replicas.entropy, rtol=0, atol=1e-5 / temperature)


def gradients(model, batch, layout, level, *, per_token):
    """Gradient of every trained tensor, for policies that have moved and advantages of both signs."""
    generator = torch.Generator().manual_seed(3)
    _, mask = padded(ROWS)
    with torch.no_grad():
        logps = score(model, "replicas", batch).logps
    drift, credit, reference = torch.randn(3, *mask.shape, generator=generator)
    advantages = torch.randn(len(ROWS), generator=generator)
    model.zero_grad()
    output = policy_loss(
        score(model, layout, batch).logps,
        old_logps=logps + 0.1 * drift,
        ref_logps=logps + 0.3 * reference,
        advantages=advantages[:, None] + 0.3 * credit if per_token else advantages,
        mask=mask,
        importance_sampling_level=level,
        beta=0.1,
    )
    output.loss.backward()
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    assert all(parameter.grad is not None for _, parameter in trained)
    return {name: parameter.grad.clone() for name, parameter in trained}


def assert_equal_gradients(gradients, expected):
    """Every tensor to 1e-5 of its own largest entry.

    Except for the bias of the layer norm before the keys: it adds the same vector to all keys, so the scores
    of a query move alike and the softmax takes it out. Its gradient is 0 plus rounding, which has to be small
    against that of the norm's weight.
    """
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        is_zero = name.endswith("mhsa.layer_norm_k.bias")
        scale = expected[name.replace(".bias", ".weight") if is_zero else name].abs().max()
        assert scale > 0, name
        assert (gradients[name] - gradient).abs().max() <= 1e-5 * scale, name


@pytest.mark.parametrize("options", [{}, {"temperature": 0.5}, {"with_adapter": False}])
def test_scores_are_those_of_the_replicas(still_model, batch, options):
    tree, replicas = both(still_model, batch, **options)
    assert_equal_scores(tree, replicas, options.get("temperature", 1.0))
    _, mask = padded(ROWS)
    assert (tree.logps[mask] < 0).all()
    assert (tree.logps[~mask] == 0).all()
    assert (tree.entropy[~mask] == 0).all()


def test_switching_the_adapter_off_changes_the_scores(still_model, batch):
    with_adapter, without = (both(still_model, batch, with_adapter=flag)[0] for flag in (True, False))
    assert (with_adapter.logps - without.logps).abs().max() > 0.1


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("level", LEVELS)
def test_gradients_are_those_of_the_replicas(still_model, batch, level, per_token):
    expected = gradients(still_model, batch, "replicas", level, per_token=per_token)
    got = gradients(still_model, batch, "tree", level, per_token=per_token)
    assert any(".lora_A." in name for name in got)
    assert any(name.startswith("encoder.") for name in got)
    assert any(name.startswith("projector.") for name in got)
    assert_equal_gradients(got, expected)


def test_gradients_are_the_same_when_activations_are_recomputed(still_model, batch):
    expected = gradients(still_model, batch, "tree", "token", per_token=True)
    still_model.enable_gradient_checkpointing()
    assert_equal_gradients(gradients(still_model, batch, "tree", "token", per_token=True), expected)


def test_the_order_of_the_rows_does_not_matter(still_model, make_batch, batch):
    order = [5, 3, 7, 0, 1, 6, 4, 2]
    shuffled = [ROWS[row] for row in order]
    expected, _ = both(still_model, batch)
    tree, _ = both(still_model, make_batch([0, 1], [utterance for utterance, _ in shuffled]), shuffled)
    torch.testing.assert_close(tree.logps, expected.logps[order], rtol=0, atol=1e-5)
    torch.testing.assert_close(tree.entropy, expected.entropy[order], rtol=0, atol=1e-5)


@pytest.mark.parametrize("rows", [(1, 4, 7), (0, 2), (6,), (4, 5)])
def test_some_rows_score_as_among_all(still_model, batch, rows):
    expected, _ = both(still_model, batch)
    some = [ROWS[row] for row in rows]
    part = replace(
        batch,
        row_utterance=batch.row_utterance[list(rows)],
        row_index=batch.row_index[list(rows)],
        replica=batch.replica[list(rows)],
        epoch=batch.epoch[list(rows)],
    )
    before = still_model.work["encoder_utterances"]
    with torch.no_grad():
        tree = score(still_model, "tree", part, some)
    # Utterances without rows are not even encoded.
    assert still_model.work["encoder_utterances"] - before == len({utterance for utterance, _ in some})
    width = tree.logps.shape[1]
    torch.testing.assert_close(tree.logps, expected.logps[list(rows), :width], rtol=0, atol=1e-5)


def test_rows_of_only_the_end_token_read_the_prompt_alone(still_model, make_batch):
    rows = [(0, [END]), (0, [END]), (1, [END])]
    tree, replicas = both(still_model, make_batch([0, 1], [0, 0, 1]), rows)
    assert_equal_scores(tree, replicas)


@pytest.mark.parametrize("num_rows", [1, 2, 16])
def test_identical_transcripts_are_read_once(still_model, make_batch, num_rows):
    rows = [(0, [361, 427, 431, END])] * num_rows
    still_model.work.clear()
    with torch.no_grad():
        tree = score(still_model, "tree", make_batch([0], [0] * num_rows), rows)
    # The prompt of 24 tokens (80 frames) and all but the end token.
    assert still_model.work == {"encoder_utterances": 1, "decoder_forwards": 1, "decoder_positions": 24 + 3}
    assert (tree.logps == tree.logps[0]).all()


def test_every_utterance_is_encoded_once_and_every_beginning_is_read_once(still_model, batch):
    num_prompt = still_model.count_prompt(batch.num_frames).tolist()
    assert num_prompt[0] == 24
    for layout, num_encoded, num_positions in (
        # Both prompts and both trees, one after the other in one row.
        ("tree", 2, sum(num_prompt) + sum(NUM_INNER)),
        # Eight rows, padded to the longest one, which is the five tokens of utterance 1.
        ("replicas", 8, 8 * (num_prompt[1] + 5)),
    ):
        still_model.work.clear()
        with torch.no_grad():
            score(still_model, layout, batch)
        assert still_model.work == {
            "encoder_utterances": num_encoded,
            "decoder_forwards": 1,
            "decoder_positions": num_positions,
        }


def test_the_kept_output_of_a_frozen_encoder_gives_the_same_scores(still_model, batch):
    expected = both(still_model, batch)
    assert still_model.keep_encoded(batch) is batch  # trained: computed anew by every forward
    still_model.encoder.requires_grad_(False)
    still_model.train()
    kept = still_model.keep_encoded(batch)
    before = still_model.work["encoder_utterances"]
    for scores, other in zip(both(still_model, kept), expected, strict=True):
        assert_equal_scores(scores, other)
    assert still_model.work["encoder_utterances"] == before


def test_dropout_masks_are_shared_by_the_rows_of_an_utterance(model, make_batch):
    # In the tree layout equal transcripts are one path, whatever is dropped.
    rows = [(0, [361, 427, END])] * 3
    scores = score(model.train(), "tree", make_batch([0], [0] * 3), rows)
    assert (scores.logps == scores.logps[0]).all()
    other = score(model, "tree", make_batch([0], [0] * 3), rows)
    assert (scores.logps - other.logps).abs().max() > 1e-4
