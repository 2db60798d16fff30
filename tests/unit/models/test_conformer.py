import math

import pytest
import torch

from asrl.errors import UserError
from asrl.models.conformer import (
    ConformerEncoder,
    RelativeAttention,
    RelativePositionalEncoding,
    align_distances,
)


def tiny_encoder(length_rule="stride", dropout=0.0):
    return ConformerEncoder(
        idim=15,
        num_layers=2,
        num_heads=2,
        d_model=8,
        kernel_size=5,
        residual_dropout=dropout,
        dropout_rate=dropout,
        length_rule=length_rule,
    )


@pytest.mark.parametrize(
    ("distances", "expected"),
    [
        ([0], [[0]]),
        ([1, 0, -1], [[0, -1], [1, 0]]),
        ([2, 1, 0, -1, -2], [[0, -1, -2], [1, 0, -1], [2, 1, 0]]),
    ],
)
def test_aligned_scores_stand_at_query_minus_key(distances, expected):
    # Every query has the score r at distance r, so the entry (i, j) must be i - j.
    scores = torch.tensor(distances, dtype=torch.float32).expand(1, 2, len(expected), -1)
    aligned = align_distances(scores.contiguous())
    assert aligned.tolist() == [[expected, expected]]


def test_positions_are_sinusoids_from_the_largest_distance_down():
    # d = 4: frequencies 10000^0 = 1 and 10000^(-2/4) = 0.01; two frames are at distances 1, 0, -1.
    table = RelativePositionalEncoding(4)(2)
    expected = [
        [math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)],
        [0, 1, 0, 1],
        [-math.sin(1), math.cos(1), -math.sin(0.01), math.cos(0.01)],
    ]
    torch.testing.assert_close(table, torch.tensor([expected]), rtol=0, atol=1e-6)


def test_attention_equals_the_sum_over_pairs():
    # score[i, j] = ((q_i + u) . k_j + (q_i + v) . p_{i-j}) / sqrt(c), one query, key and head at a time.
    attention = RelativeAttention(num_heads=2, d_model=8, residual_dropout=0.0)
    hidden, num_frames, visible = torch.randn(1, 4, 8), 4, 3
    positions = RelativePositionalEncoding(8)(num_frames)
    query = attention.w_qs(attention.layer_norm_q(hidden))[0].view(4, 2, 4)
    key = attention.w_ks(attention.layer_norm_k(hidden))[0].view(4, 2, 4)
    value = attention.w_vs(attention.layer_norm_v(hidden))[0].view(4, 2, 4)
    by_distance = {
        3 - row: vector.view(2, 4) for row, vector in enumerate(attention.linear_pos(positions)[0])
    }
    context = torch.zeros(4, 2, 4)
    for head in range(2):
        u, v = attention.pos_bias_u[head], attention.pos_bias_v[head]
        for i in range(num_frames):
            scores = torch.stack(
                [
                    ((query[i, head] + u) @ key[j, head] + (query[i, head] + v) @ by_distance[i - j][head])
                    / 2
                    for j in range(visible)
                ]
            )
            context[i, head] = scores.softmax(0) @ value[:visible, head]
    expected = attention.fc(context.view(1, 4, 8))
    is_speech = torch.tensor([[True, True, True, False]])
    torch.testing.assert_close(attention(hidden, positions, is_speech), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("length_rule", ["stride", "arith"])
def test_an_utterance_encodes_alone_as_inside_a_padded_batch(length_rule):
    encoder = tiny_encoder(length_rule).eval()
    short, long = torch.randn(1, 30, 15), torch.randn(1, 61, 15)
    padded = torch.cat([torch.nn.functional.pad(short, (0, 0, 0, 31)), long])
    with torch.no_grad():
        alone = encoder(short, torch.tensor([30]))
        together = encoder(padded, torch.tensor([30, 61]))
    # 8 = ceil(30 / 4) frames, the masked ones of the arith rule included.
    assert alone.hidden.shape[1] == 8
    torch.testing.assert_close(together.hidden[0, :8], alone.hidden[0], rtol=0, atol=2e-6)
    assert together.num_frames.tolist() == {"stride": [8, 16], "arith": [6, 14]}[length_rule]


def test_an_utterance_without_valid_frames_gives_finite_output_and_gradients():
    # arith: 2 frames leave floor((2 - 3) / 4) = -1 valid ones.
    encoder = tiny_encoder("arith")
    features = torch.randn(2, 24, 15)
    features[0, 2:] = 0
    output = encoder(features.requires_grad_(), torch.tensor([2, 24]))
    output.hidden.sum().backward()
    assert output.num_frames.tolist() == [-1, 5]
    assert output.hidden.isfinite().all()
    assert features.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in encoder.parameters())


def test_attention_over_no_valid_frame_adds_nothing():
    attention = RelativeAttention(num_heads=2, d_model=8, residual_dropout=0.0)
    positions = RelativePositionalEncoding(8)(3)
    is_speech = torch.tensor([[False, False, False], [True, True, True]])
    output = attention(torch.randn(2, 3, 8), positions, is_speech)
    assert (output[0] == 0).all()
    assert (output[1] != 0).all()


def test_recomputed_activations_give_the_same_gradients_dropout_included():
    encoder = tiny_encoder(dropout=0.3).train()
    features, num_frames = torch.randn(2, 40, 15), torch.tensor([40, 33])
    gradients = []
    for gradient_checkpointing in (False, True):
        encoder.gradient_checkpointing = gradient_checkpointing
        encoder.zero_grad()
        torch.manual_seed(1)
        encoder(features, num_frames).hidden.square().sum().backward()
        gradients.append(encoder.input_preprocessor.out.weight.grad.clone())
    assert torch.equal(*gradients)


def test_recordings_beyond_the_positional_table_are_refused():
    # 20001 feature frames make 5001 encoder frames.
    with pytest.raises(UserError, match=r"20000 feature frames .200 s., got 20001"):
        tiny_encoder()(torch.zeros(1, 20001, 15), torch.tensor([20001]))


def test_unknown_length_rule_is_refused():
    with pytest.raises(UserError, match="'stride' or 'arith', got 'floor'"):
        tiny_encoder("floor")


def test_mixed_precision_stays_close_to_float32():
    encoder = tiny_encoder().eval()
    features, num_frames = torch.randn(2, 40, 15), torch.tensor([40, 33])
    with torch.no_grad():
        exact = encoder(features, num_frames).hidden
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rounded = encoder(features, num_frames).hidden
    # Outputs have size 1 (layer norm) and bfloat16 rounds to 2^-9 = 0.002; ten such roundings or so add up.
    assert (rounded.float() - exact).abs().mean() < 0.02
