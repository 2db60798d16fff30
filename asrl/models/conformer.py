"""This module is the only place that knows the Conformer encoder of FireRedASR.

Parameter names are those of the released checkpoints. Axes: ``t`` encoder frames (40 ms), ``e`` width of the
encoder, ``h`` heads, ``c`` width of a head, ``r`` relative distances.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from asrl.errors import UserError

MAX_FRAMES = 5000  # encoder frames, 200 s
SUBSAMPLING_CHANNELS = 32
SUBSAMPLING_CONTEXT = 6  # an output frame sees the 6 feature frames after its own


def count_frames(num_frames: Int[Tensor, " u"], length_rule: str) -> Int[Tensor, " u"]:
    """Encoder frames that attention and convolution treat as speech.

    ``stride``: ceil(L / 4), as the released weights were trained; ``arith``: floor((L - 3) / 4), as upstream
    FireRedASR computes it since commit d7c3997, 1 or 2 fewer, and not positive for L <= 6.
    """
    if length_rule == "stride":
        return torch.div(num_frames + 3, 4, rounding_mode="floor")
    return torch.div(num_frames - 3, 4, rounding_mode="floor")


class EncoderOutput(NamedTuple):
    """Every frame of the padded batch, and how many of them the length rule calls valid."""

    hidden: Float[Tensor, "u t e"]
    num_frames: Int[Tensor, " u"]


class Subsampling(nn.Module):
    """Two 3x3 convolutions of stride 2, then a projection to the encoder's width: 10 ms to 40 ms."""

    def __init__(self, idim: int, d_model: int) -> None:
        super().__init__()
        channels = SUBSAMPLING_CHANNELS
        self.conv = nn.Sequential(
            nn.Conv2d(1, channels, 3, stride=2),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, stride=2),
            nn.ReLU(),
        )
        self.out = nn.Linear(channels * (((idim - 1) // 2 - 1) // 2), d_model)

    def forward(self, features: Float[Tensor, "u f m"]) -> Float[Tensor, "u t e"]:
        padded = F.pad(features, (0, 0, 0, SUBSAMPLING_CONTEXT))
        channels_first = self.conv(padded[:, None])
        return self.out(channels_first.transpose(1, 2).flatten(2))


class RelativePositionalEncoding(nn.Module):
    """Sinusoids of the signed distance query - key, the largest positive distance first."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        distance = torch.arange(MAX_FRAMES - 1, -MAX_FRAMES, -1, dtype=torch.float32)[:, None]
        frequency = torch.exp(
            torch.arange(0, d_model, 2, dtype=torch.float32) * -(math.log(10000.0) / d_model)
        )
        table = torch.zeros(2 * MAX_FRAMES - 1, d_model)
        table[:, 0::2] = torch.sin(distance * frequency)
        table[:, 1::2] = torch.cos(distance * frequency)
        self.register_buffer("pe", table[None])

    def forward(self, num_frames: int) -> Float[Tensor, "1 r e"]:
        return self.pe[:, MAX_FRAMES - num_frames : MAX_FRAMES + num_frames - 1]


class FeedForward(nn.Module):
    """Layer norm, expansion by four, swish; the caller halves it and adds the residual."""

    def __init__(self, d_model: int, dropout_rate: float) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.LayerNorm(d_model),
            nn.Linear(d_model, 4 * d_model),
            nn.SiLU(),
            nn.Dropout(dropout_rate),
            nn.Linear(4 * d_model, d_model),
            nn.Dropout(dropout_rate),
        )

    def forward(self, hidden: Float[Tensor, "u t e"]) -> Float[Tensor, "u t e"]:
        return self.net(hidden)


def align_distances(scores: Float[Tensor, "u h t r"]) -> Float[Tensor, "u h t t"]:
    """Re-index scores by (query, distance) to (query, key); a view.

    Row i holds distances t-1 ... -(t-1), so key j sits at column t-1-i+j; in the flattened matrix that is
    ``i * (2t - 2) + (t - 1 + j)``: rows of width 2t - 2 that start at t - 1.
    """
    num_frames = scores.shape[2]
    if num_frames == 1:
        return scores
    flat = scores.flatten(2).narrow(2, num_frames - 1, num_frames * (2 * num_frames - 2))
    return flat.unflatten(2, (num_frames, 2 * num_frames - 2))[..., :num_frames]


class RelativeAttention(nn.Module):
    """Self-attention with relative positions (arXiv 1901.02860) and a separate layer norm for q, k and v."""

    def __init__(self, num_heads: int, d_model: int, residual_dropout: float) -> None:
        super().__init__()
        head_size = d_model // num_heads
        self.num_heads = num_heads
        self.w_qs = nn.Linear(d_model, d_model, bias=False)
        self.w_ks = nn.Linear(d_model, d_model, bias=False)
        self.w_vs = nn.Linear(d_model, d_model, bias=False)
        self.layer_norm_q = nn.LayerNorm(d_model)
        self.layer_norm_k = nn.LayerNorm(d_model)
        self.layer_norm_v = nn.LayerNorm(d_model)
        self.fc = nn.Linear(d_model, d_model, bias=False)
        self.linear_pos = nn.Linear(d_model, d_model, bias=False)
        self.pos_bias_u = nn.Parameter(torch.empty(num_heads, head_size))
        self.pos_bias_v = nn.Parameter(torch.empty(num_heads, head_size))
        nn.init.xavier_uniform_(self.pos_bias_u)
        nn.init.xavier_uniform_(self.pos_bias_v)
        self.dropout = nn.Dropout(residual_dropout)

    def _split(self, hidden: Float[Tensor, "u t e"]) -> Float[Tensor, "u h t c"]:
        return hidden.unflatten(2, (self.num_heads, -1)).transpose(1, 2)

    def forward(
        self,
        hidden: Float[Tensor, "u t e"],
        positions: Float[Tensor, "1 r e"],
        is_speech: Bool[Tensor, "u t"],
    ) -> Float[Tensor, "u t e"]:
        query = self._split(self.w_qs(self.layer_norm_q(hidden)))
        key = self._split(self.w_ks(self.layer_norm_k(hidden)))
        value = self._split(self.w_vs(self.layer_norm_v(hidden)))
        by_distance = self._split(self.linear_pos(positions))
        query_u = query + self.pos_bias_u[:, None].to(query.dtype)
        query_v = query + self.pos_bias_v[:, None].to(query.dtype)
        scale = query.shape[-1] ** -0.5
        bias = align_distances((query_v * scale) @ by_distance.transpose(2, 3))
        # An utterance without a valid frame would be a softmax over nothing, which attention kernels answer
        # differently (0, NaN, NaN gradients): let it see all of its frames and drop the result.
        has_speech = is_speech.any(1)[:, None]
        bias = bias.masked_fill(~(is_speech | ~has_speech)[:, None, None], -torch.inf)
        context = F.scaled_dot_product_attention(
            query_u, key, value, attn_mask=bias.to(query_u.dtype), scale=scale
        )
        context = context.transpose(1, 2).flatten(2) * has_speech[..., None]
        return self.dropout(self.fc(context))


class ConvolutionModule(nn.Module):
    """Gated pointwise and depthwise convolutions; the module named ``batch_norm`` is a layer norm."""

    def __init__(self, d_model: int, kernel_size: int, dropout_rate: float) -> None:
        super().__init__()
        width = 2 * d_model
        self.pre_layer_norm = nn.LayerNorm(d_model)
        self.pointwise_conv1 = nn.Conv1d(d_model, 2 * width, 1, bias=False)
        self.depthwise_conv = nn.Conv1d(
            width, width, kernel_size, padding=(kernel_size - 1) // 2, groups=width, bias=False
        )
        self.batch_norm = nn.LayerNorm(width)
        self.pointwise_conv2 = nn.Conv1d(width, d_model, 1, bias=False)
        self.dropout = nn.Dropout(dropout_rate)

    def forward(
        self, hidden: Float[Tensor, "u t e"], is_speech: Bool[Tensor, "u t"]
    ) -> Float[Tensor, "u t e"]:
        keep = is_speech[..., None]
        out = (self.pre_layer_norm(hidden) * keep).transpose(1, 2)
        out = F.glu(self.pointwise_conv1(out), dim=1)
        out = self.depthwise_conv(out).transpose(1, 2)
        out = F.silu(self.batch_norm(out)).transpose(1, 2)
        return self.dropout(self.pointwise_conv2(out).transpose(1, 2)) * keep


class ConformerBlock(nn.Module):
    """Half feed-forward, attention, convolution, half feed-forward, layer norm (arXiv 2005.08100)."""

    def __init__(
        self, num_heads: int, d_model: int, kernel_size: int, *, residual_dropout: float, dropout_rate: float
    ) -> None:
        super().__init__()
        self.ffn1 = FeedForward(d_model, dropout_rate)
        self.mhsa = RelativeAttention(num_heads, d_model, residual_dropout)
        self.conv = ConvolutionModule(d_model, kernel_size, dropout_rate)
        self.ffn2 = FeedForward(d_model, dropout_rate)
        self.layer_norm = nn.LayerNorm(d_model)

    def forward(
        self,
        hidden: Float[Tensor, "u t e"],
        positions: Float[Tensor, "1 r e"],
        is_speech: Bool[Tensor, "u t"],
    ) -> Float[Tensor, "u t e"]:
        hidden = hidden + 0.5 * self.ffn1(hidden)
        hidden = hidden + self.mhsa(hidden, positions, is_speech)
        hidden = hidden + self.conv(hidden, is_speech)
        hidden = hidden + 0.5 * self.ffn2(hidden)
        return self.layer_norm(hidden)


class ConformerEncoder(nn.Module):
    """Log-mel features to encoder frames, the same ones alone and in any zero-padded batch.

    Source: FireRedTeam/FireRedASR at commit 834635e (``arith``), FireRedTeam/FireRedASR2S at 72096c2
    (``stride``).

    Attributes:
        gradient_checkpointing: Recompute each block in the backward pass instead of keeping its activations.
    """

    def __init__(
        self,
        idim: int,
        num_layers: int,
        num_heads: int,
        d_model: int,
        kernel_size: int,
        residual_dropout: float = 0.1,
        dropout_rate: float = 0.1,
        length_rule: str = "stride",
    ) -> None:
        super().__init__()
        if length_rule not in ("stride", "arith"):
            raise UserError(f"length_rule is 'stride' or 'arith', got {length_rule!r}")
        self.length_rule: str = length_rule
        self.gradient_checkpointing = False
        self.input_preprocessor = Subsampling(idim, d_model)
        self.positional_encoding = RelativePositionalEncoding(d_model)
        self.dropout = nn.Dropout(residual_dropout)
        self.layer_stack = nn.ModuleList(
            ConformerBlock(
                num_heads, d_model, kernel_size, residual_dropout=residual_dropout, dropout_rate=dropout_rate
            )
            for _ in range(num_layers)
        )

    def forward(self, features: Float[Tensor, "u f m"], num_frames: Int[Tensor, " u"]) -> EncoderOutput:
        """Encode features that are zero padded on the right.

        Frames that the length rule masks still carry values, and the projector reads them.

        Raises:
            UserError: An utterance is longer than the positional table, 200 s.
        """
        hidden = self.dropout(self.input_preprocessor(features))
        width = hidden.shape[1]
        if width > MAX_FRAMES:
            raise UserError(
                f"audio must not be longer than {4 * MAX_FRAMES} feature frames (200 s), "
                f"got {features.shape[1]}; cut the recording or lower the limit on duration"
            )
        positions = self.dropout(self.positional_encoding(width))
        num_valid = count_frames(num_frames, self.length_rule)
        is_speech = torch.arange(width, device=hidden.device) < num_valid[:, None]
        with_checkpointing = self.gradient_checkpointing and self.training and torch.is_grad_enabled()
        for block in self.layer_stack:
            if with_checkpointing:
                hidden = checkpoint(block, hidden, positions, is_speech, use_reentrant=False)
            else:
                hidden = block(hidden, positions, is_speech)
        return EncoderOutput(hidden, num_valid)
