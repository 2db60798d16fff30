"""This module is the only place that counts parameters from sizes, without building a model."""

from dataclasses import dataclass
from typing import Literal

from asrl.models.conformer import MAX_FRAMES, SUBSAMPLING_CHANNELS

FLOAT = 4  # bytes of float32


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
