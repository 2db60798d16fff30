"""This module is the only place that estimates how many bytes a training run needs on each GPU.

Counted from the code of encoder, projector, decoder and ``token_logps``; what is not counted is what lies
outside of tensors (the GPU's context, workspaces inside one kernel, gaps of the allocator).

*Weights*: frozen ones in the decoder's type, trained ones, their gradients and Adam's two moments in float32.

*Kept for the backward*, per frame or position: inputs of norms in float32; inputs of linear maps and of
convolutions, of SiLU, GLU and ReLU, queries, keys, values and contexts in the type that is computed in. The
encoder's attention has a learned bias, so one matrix frames x frames and head is kept whatever the kernel.
Where the decoder computes in float32 without dropout, the projections of LoRA share their input; otherwise
each keeps a cast or dropped one of its own. Checkpointed, a block or layer keeps its input alone.

*Transient*: the largest of what comes on top at the chunk of logits (two float32 copies), at the backward of
a decoder layer, of an encoder block (checkpointed: with its recomputed activations) and of the subsampling.

*Rollout*: the key/value cache at its longest, and the largest forward beside it. It is not there at the same
time as the update, so the larger of both counts.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from asrl.models.conformer import MAX_FRAMES, SUBSAMPLING_CHANNELS

FLOAT = 4  # bytes of float32
ZERO_BUCKET = 500_000_000  # elements of DeepSpeed's reduce bucket, its default


class Kernels(NamedTuple):
    """What the attention and dropout kernels of a device keep for the backward.

    Attributes:
        encoder_saves_attention: Weights of the encoder's attention in float32, rather than its bias.
        decoder_saves_attention: Weights of the decoder's attention; efficient kernels recompute them.
        has_byte_masks: Dropout keeps a byte per element, rather than a number.
    """

    encoder_saves_attention: bool
    decoder_saves_attention: bool
    has_byte_masks: bool


GPU = Kernels(encoder_saves_attention=False, decoder_saves_attention=False, has_byte_masks=True)
CPU = Kernels(encoder_saves_attention=True, decoder_saves_attention=False, has_byte_masks=False)


@dataclass(frozen=True)
class ModelSizes:
    """Sizes of encoder, projector and decoder; the defaults are FireRedASR-LLM-L's."""

    num_bins: int = 80
    encoder_width: int = 1280
    encoder_heads: int = 20
    encoder_layers: int = 16
    kernel_size: int = 33
    downsample: int = 2
    hidden_size: int = 3584
    num_heads: int = 28
    num_key_value_heads: int = 4
    intermediate_size: int = 18944
    num_layers: int = 28
    vocab_size: int = 152_064
    is_tied: bool = False

    @property
    def key_width(self) -> int:
        return self.hidden_size // self.num_heads * self.num_key_value_heads

    @property
    def subsampled_bins(self) -> tuple[int, int]:
        """Bins after the first and the second convolution."""
        first = (self.num_bins - 1) // 2
        return first, (first - 1) // 2

    @property
    def encoder_block(self) -> int:
        """Parameters of one block: 16 e^2 feed-forward, 5 e^2 attention, 6 e^2 convolution, and vectors."""
        return 27 * self.encoder_width**2 + (30 + 2 * self.kernel_size) * self.encoder_width

    @property
    def encoder(self) -> int:
        channels, width = SUBSAMPLING_CHANNELS, self.encoder_width
        convolutions = 10 * channels + 9 * channels**2 + channels
        subsampling = convolutions + (channels * self.subsampled_bins[1] + 1) * width
        return subsampling + self.encoder_layers * self.encoder_block

    @property
    def projector(self) -> int:
        return (self.downsample * self.encoder_width + self.hidden_size + 2) * self.hidden_size

    @property
    def decoder_layer(self) -> int:
        width, key_width = self.hidden_size, self.key_width
        attention = 2 * width**2 + width + 2 * key_width * (width + 1)
        return attention + 3 * width * self.intermediate_size + 2 * width

    @property
    def embeddings(self) -> int:
        """Parameters outside the decoder's layers."""
        return ((1 if self.is_tied else 2) * self.vocab_size + 1) * self.hidden_size

    @property
    def decoder(self) -> int:
        return self.embeddings + self.num_layers * self.decoder_layer

    def lora_layer(self, rank: int) -> int:
        """Parameters of LoRA on the seven projections of one layer."""
        width, inner = self.hidden_size, self.intermediate_size
        return rank * (2 * 2 * width + 2 * (width + self.key_width) + 3 * (width + inner))


@dataclass(frozen=True)
class Recipe:
    """What is trained and how it is computed.

    Attributes:
        decoder: What of the decoder is trained.
        decoder_bytes: Of one frozen decoder weight.
        has_autocast: Computes in bfloat16 where float32 is not needed.
        has_checkpointing: Blocks and layers are recomputed in the backward.
        has_dropout: Dropout rates are above 0.
        max_logits: As of ``SpeechLLM``.
    """

    trains_encoder: bool = True
    trains_projector: bool = True
    decoder: Literal["lora", "full", "none"] = "lora"
    lora_rank: int = 64
    decoder_bytes: int = 2
    has_autocast: bool = False
    has_checkpointing: bool = True
    has_dropout: bool = False
    max_logits: int = 2**26

    @property
    def encoder_compute(self) -> int:
        """Bytes of a number that encoder and projector compute with."""
        return 2 if self.has_autocast else FLOAT

    @property
    def decoder_compute(self) -> int:
        return 2 if self.has_autocast else self.decoder_bytes

    def trained(self, sizes: ModelSizes) -> int:
        """Number of trained parameters."""
        decoder = {
            "lora": sizes.num_layers * sizes.lora_layer(self.lora_rank),
            "full": sizes.decoder,
            "none": 0,
        }
        return (
            self.trains_encoder * sizes.encoder
            + self.trains_projector * sizes.projector
            + decoder[self.decoder]
        )

    def frozen_bytes(self, sizes: ModelSizes) -> int:
        """Bytes of frozen weights and of the table of positions."""
        speech = (not self.trains_encoder) * sizes.encoder + (not self.trains_projector) * sizes.projector
        table = (2 * MAX_FRAMES - 1) * sizes.encoder_width
        decoder = 0 if self.decoder == "full" else sizes.decoder * self.decoder_bytes
        return FLOAT * (speech + table) + decoder


@dataclass(frozen=True)
class Work:
    """One forward of the policy.

    Attributes:
        num_encoded: Utterances that the encoder reads (in the replica layout: rows).
        num_frames: Encoder frames of each, padding included.
        num_rows: Decoder rows.
        num_positions: Positions of each, padding included.
        num_tokens: Tokens scored, in all rows.
    """

    num_encoded: int
    num_frames: int
    num_rows: int
    num_positions: int
    num_tokens: int

    @property
    def frames(self) -> int:
        return self.num_encoded * self.num_frames

    @property
    def positions(self) -> int:
        return self.num_rows * self.num_positions


class Activations(NamedTuple):
    """Bytes at the peak of one forward and backward, besides weights and their gradients."""

    encoder: int
    decoder: int
    transient: int

    @property
    def total(self) -> int:
        return sum(self)


def encoder_block_bytes(sizes: ModelSizes, work: Work, recipe: Recipe, kernels: Kernels) -> int:
    """What one Conformer block keeps for its backward."""
    number = recipe.encoder_compute
    weight = FLOAT if kernels.encoder_saves_attention else number
    feed_forward = FLOAT + 9 * number
    # Three normed inputs, shifted and scaled query, distances of every utterance (2 t - 1), context.
    attention = FLOAT + 7 * number + 3 * weight + (0 if kernels.encoder_saves_attention else number)
    convolution = 5 * FLOAT + 9 * number
    per_width = 2 * feed_forward + attention + convolution + FLOAT
    if recipe.has_dropout:
        per_width += 12 * (1 if kernels.has_byte_masks else number)
    matrix = sizes.encoder_heads * work.num_frames * weight
    # Autocast keeps the weights that it rounded.
    rounded = 2 * sizes.encoder_block if recipe.has_autocast else 0
    return work.frames * (sizes.encoder_width * per_width + matrix) + rounded


def subsampling_bytes(sizes: ModelSizes, work: Work) -> int:
    """What the subsampling keeps: features, both activations, and the second one rearranged."""
    first, second = sizes.subsampled_bins
    per_frame = 4 * sizes.num_bins + SUBSAMPLING_CHANNELS * (2 * first + 2 * second)
    return work.frames * per_frame * FLOAT


def decoder_layer_bytes(sizes: ModelSizes, work: Work, recipe: Recipe, kernels: Kernels) -> int:
    """What one Qwen2 layer keeps for its backward."""
    width, inner, number = sizes.hidden_size, sizes.intermediate_size, recipe.decoder_compute
    # Two norms; query, keys and values repeated for every head, context; gate, its SiLU, and what it gates.
    per_position = 2 * width * FLOAT + 4 * width * number + 3 * inner * number
    if recipe.decoder == "lora":
        per_position += _lora_inputs(sizes, recipe, kernels)
    elif recipe.decoder == "full":
        per_position += (4 * width + inner) * number
    matrix = work.num_positions * number if kernels.decoder_saves_attention else FLOAT
    return work.positions * (per_position + sizes.num_heads * matrix)


def _lora_inputs(sizes: ModelSizes, recipe: Recipe, kernels: Kernels) -> int:
    """Inputs of both LoRA matrices, per position; the context is kept already where it can be shared."""
    width, inner = sizes.hidden_size, sizes.intermediate_size
    number = 2 if recipe.has_autocast else FLOAT
    between = 7 * recipe.lora_rank * number
    if recipe.decoder_compute == FLOAT and not recipe.has_dropout:
        return (2 * width + inner) * number + between
    masks = recipe.has_dropout * (1 if kernels.has_byte_masks else number)
    return (6 * width + inner) * (number + masks) + between


def logits_bytes(sizes: ModelSizes, work: Work, recipe: Recipe) -> int:
    """Two float32 copies of a chunk of logits; a trained head adds its gradient and one chunk's share."""
    chunk = min(work.num_tokens, max(1, recipe.max_logits // sizes.vocab_size))
    head = 2 * sizes.vocab_size * sizes.hidden_size if recipe.decoder == "full" else 0
    return FLOAT * (2 * chunk * sizes.vocab_size + head)
