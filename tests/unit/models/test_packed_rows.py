"""Short utterances share a decoder row; nobody notices."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asrl.models.layouts import DecoderInputs, pack_rows, share_rows, tree_inputs
from asrl.models.trainable import set_dropout
from asrl.tree import build_trees
from asrl.types import Prompts, SpeechBatch


def num_positions(rows, sizes):
    return len(rows) * max(sum(sizes[piece] for piece in pieces) for pieces in rows)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([5], [[0]]),
        ([5, 5, 5], [[0], [1], [2]]),  # nothing to gain: 15 positions either way
        ([9, 4, 5], [[0], [2, 1]]),  # 18 positions, as 9 and 5 + 4, instead of 27
        ([2, 10, 3, 4], [[1, 3, 2, 0]]),  # 10 and 4 + 3 + 2 are 20 in two rows, 19 in one
        # Rows of 10 fit 10, 6 and 6: 30. One row of 22 does with 22.
        ([6, 10, 6], [[1, 0, 2]]),
    ],
)
def test_short_pieces_share_rows_where_that_saves_padding(sizes, expected):
    assert share_rows(sizes) == expected


@given(st.lists(st.integers(1, 60), min_size=1, max_size=12))
def test_every_piece_has_one_place_and_packing_never_adds_padding(sizes):
    rows = share_rows(sizes)
    assert sorted(piece for pieces in rows for piece in pieces) == list(range(len(sizes)))
    assert sum(sizes) <= num_positions(rows, sizes) <= len(sizes) * max(sizes)
    assert max(sum(sizes[piece] for piece in pieces) for pieces in rows) <= 4 * max(sizes)


def test_packed_rows_by_hand():
    # Pieces of 4, 1 and 3 positions; the second and third share a row, the longer one first.
    inputs = DecoderInputs(
        embeddings=torch.tensor([[1.0, 2, 3, 4], [5, 0, 0, 0], [6, 7, 8, 0]])[..., None],
        is_visible=torch.ones(4, 4).tril().bool().repeat(3, 1, 1),
        position_ids=torch.tensor([[0, 1, 2, 2], [0, 1, 2, 3], [0, 1, 1, 3]]),
        predictor_row=torch.tensor([0, 0, 1, 2]),
        predictor_column=torch.tensor([2, 3, 0, 2]),
    )
    packed = pack_rows(inputs, [4, 1, 3])
    assert packed.embeddings[..., 0].tolist() == [[1, 2, 3, 4], [6, 7, 8, 5]]
    assert packed.position_ids.tolist() == [[0, 1, 2, 2], [0, 1, 1, 0]]
    assert packed.is_visible[0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert packed.is_visible[1].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1]]
    assert packed.predictor_row.tolist() == [0, 0, 1, 1]
    assert packed.predictor_column.tolist() == [2, 3, 3, 2]
    assert packed.gather_predictors(packed.embeddings)[:, 0].tolist() == [3, 4, 5, 8]


def test_tree_inputs_by_hand():
    # Prompts 1 2 and 3; transcripts 11 12, 11 13 14 of the first, 12 of the second. Inner nodes: 11 and 13.
    tokens = torch.tensor([[11, 12, 0], [11, 13, 14], [12, 0, 0]])
    mask = torch.tensor([[True, True, False], [True, True, True], [True, False, False]])
    trees = build_trees(tokens, mask, torch.tensor([0, 0, 1]), 2)
    prompts = Prompts(torch.tensor([[1.0, 2], [3, 99]])[..., None], torch.tensor([2, 1]))
    inputs = tree_inputs(prompts, trees, lambda tokens: tokens.float()[..., None])
    # 1 2 11 13 and 3 do not fit a row of four, but do fit one of five.
    assert inputs.embeddings[..., 0].tolist() == [[1, 2, 11, 13, 3]]
    assert inputs.position_ids.tolist() == [[0, 1, 2, 3, 0]]
    assert inputs.is_visible[0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [0, 0, 0, 0, 1],
    ]
    # Nodes 11, 12, 13, 14 of the first utterance, 12 of the second.
    assert inputs.predictor_row.tolist() == [0] * 5
    assert inputs.predictor_column.tolist() == [1, 2, 2, 3, 4]


@pytest.fixture
def short_and_long(features):
    """One long utterance and four short ones of different lengths, with rows of each."""
    chosen = [features[1], *[features[0][:num_frames] for num_frames in (80, 40, 24, 9)]]
    row_utterance = torch.tensor([2, 0, 1, 1, 3, 4, 4, 2])
    return SpeechBatch(
        utterances=(),
        features=torch.nn.utils.rnn.pad_sequence(chosen, batch_first=True),
        num_frames=torch.tensor([len(frames) for frames in chosen]),
        row_utterance=row_utterance,
        row_index=torch.arange(8),
        replica=torch.zeros_like(row_utterance),
        epoch=torch.zeros_like(row_utterance),
    )


def test_utterances_that_share_a_row_score_as_alone(model, short_and_long):
    set_dropout(model, False)
    tokens = torch.randint(300, 600, (8, 5), generator=torch.Generator().manual_seed(2))
    tokens[3, :2] = tokens[2, :2]
    mask = torch.arange(5) < torch.tensor([5, 4, 5, 3, 1, 2, 5, 5])[:, None]
    scores = {}
    grads = {}
    for layout in ("tree", "replicas"):
        model.layout = layout
        model.zero_grad()
        model.work.clear()
        scores[layout] = model(short_and_long, tokens, mask, temperature=1.0)
        scores[layout].logps.sum().backward()
        grads[layout] = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        if layout == "tree":
            num_prompt = model.count_prompt(short_and_long.num_frames).tolist()
            # Some rows are shared: fewer positions than five rows as long as the longest prompt alone.
            assert model.work["decoder_positions"] < 5 * max(num_prompt)
    torch.testing.assert_close(scores["tree"].logps, scores["replicas"].logps, rtol=0, atol=1e-5)
    torch.testing.assert_close(scores["tree"].entropy, scores["replicas"].entropy, rtol=0, atol=1e-5)
    for name, gradient in grads["replicas"].items():
        if not name.endswith("mhsa.layer_norm_k.bias"):  # 0 plus rounding
            scale = gradient.abs().max()
            assert (grads["tree"][name] - gradient).abs().max() <= 1e-5 * scale, name
