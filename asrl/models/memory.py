"""This module is the only place that estimates how many bytes a training run needs on each GPU.

Counted from the code of encoder, projector, decoder and ``token_logps``; what is not counted is what lies
outside of tensors (the GPU's context, workspaces inside one kernel, gaps of the allocator).

*Weights*: frozen ones in the decoder's type, trained ones, their gradients and Adam's two moments in float32.

*Kept for the backward*, per frame or position: inputs of norms in float32; inputs of linear maps and of
convolutions, of SiLU, GLU and ReLU, queries, keys, values and contexts in the type that is computed in. The
encoder's attention has a learned bias, so one matrix frames x frames and head is kept whatever the kernel.
Where the decoder computes in float32 without dropout, the projections of LoRA share their input; otherwise
each keeps a cast or dropped one of its own. Checkpointed, a block or layer keeps its input alone.

*Transient*: the largest of what comes on top at the chunk of logits (three float32 copies), at the backward
of a decoder layer, of an encoder block (checkpointed: with its recomputed activations), of the subsampling.

*Rollout*: the key/value cache at its longest, and the largest forward beside it, with ``top_k`` on. It is not
there at the same time as the update, so the larger of both counts.
"""

from dataclasses import dataclass
from typing import NamedTuple

from asrl.models.conformer import SUBSAMPLING_CHANNELS
from asrl.models.sizes import FLOAT, ModelSizes, Recipe

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


def update_work(
    *,
    num_rows: int,
    num_generations: int,
    num_frames: int,
    num_prompt: int,
    num_tokens: int,
    unique_share: float,
    layout: str,
    max_positions: int | None,
) -> Work:
    """The largest forward of an update, cut as ``micro_batches.cut_rows`` does.

    Args:
        num_rows: ``rows_per_device``.
        num_generations: Rows of an utterance.
        num_frames: Encoder frames of an utterance.
        num_prompt: Prompt tokens, speech included.
        num_tokens: Of each transcript.
        unique_share: Nodes of an utterance's tree per token of its transcripts.
        layout: ``tree`` or ``replicas``.
        max_positions: Of one forward; a piece that exceeds it by itself is a forward of its own.
    """
    bound = max_positions or num_rows * (num_prompt + num_tokens)
    if layout == "replicas":
        size = num_prompt + num_tokens
        count = min(num_rows, max(1, bound // size))
        return Work(count, num_frames, count, size, count * num_tokens)
    group = min(num_generations, num_rows)
    num_nodes = max(num_tokens, round(unique_share * group * num_tokens))
    # An utterance that does not fit is cut into rows.
    num_nodes = max(num_tokens, min(num_nodes, bound - num_prompt))
    count = min(-(-num_rows // group), max(1, bound // (num_prompt + num_nodes)))
    return Work(count, num_frames, count, num_prompt + num_nodes, count * num_nodes)


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
    """Log-probs, probabilities, products of both for a chunk; a trained head's gradient and an addend."""
    chunk = min(work.num_tokens, max(1, recipe.max_logits // sizes.vocab_size))
    gradient = 2 * (chunk + sizes.hidden_size) if recipe.decoder == "full" else 0
    return FLOAT * sizes.vocab_size * max(3 * chunk, gradient)


def update_bytes(sizes: ModelSizes, work: Work, recipe: Recipe, kernels: Kernels) -> Activations:
    """Activations at the peak of one forward and backward."""
    encoder, decoder = (
        _kept_encoder(sizes, work, recipe, kernels),
        _kept_decoder(sizes, work, recipe, kernels),
    )
    again = recipe.has_checkpointing
    layer = again * decoder_layer_bytes(sizes, work, recipe, kernels)
    # Two gradients of the intermediate width, and the residual stream's two.
    layer += 2 * work.positions * (sizes.intermediate_size + sizes.hidden_size) * recipe.decoder_compute
    peak = encoder + decoder + max(logits_bytes(sizes, work, recipe), layer)
    if recipe.trains_encoder:
        block = encoder_block_bytes(sizes, work, recipe, kernels)
        peak = max(peak, encoder + again * block + _block_gradients(sizes, work))
        # Gradients of the first convolution's output, before and after ReLU.
        image = 2 * work.frames * SUBSAMPLING_CHANNELS * 2 * sizes.subsampled_bins[0] * FLOAT
        peak = max(peak, subsampling_bytes(sizes, work) + image)
    return Activations(encoder, decoder, peak - encoder - decoder)


def _kept_encoder(sizes: ModelSizes, work: Work, recipe: Recipe, kernels: Kernels) -> int:
    """Encoder and projector; a frozen encoder leaves its output alone."""
    output = work.frames * sizes.encoder_width * FLOAT
    projector = work.frames // sizes.downsample * sizes.hidden_size * recipe.encoder_compute
    if not recipe.trains_encoder:
        return output + projector
    block = output if recipe.has_checkpointing else encoder_block_bytes(sizes, work, recipe, kernels)
    return subsampling_bytes(sizes, work) + sizes.encoder_layers * block + output + projector


def _kept_decoder(sizes: ModelSizes, work: Work, recipe: Recipe, kernels: Kernels) -> int:
    """Layers, visibility (a flag and an addend for each pair of positions), final norm, scored states."""
    number, width = recipe.decoder_bytes, sizes.hidden_size
    block = work.positions * width * number
    if not recipe.has_checkpointing:
        block = decoder_layer_bytes(sizes, work, recipe, kernels)
    visible = work.positions * work.num_positions * (1 + number)
    ends = work.positions * width * FLOAT + work.num_tokens * width * number
    return sizes.num_layers * block + visible + ends


def _block_gradients(sizes: ModelSizes, work: Work) -> int:
    """Gradients in flight in a block: at its end, or in its attention, where what follows is gone."""
    width, matrix = sizes.encoder_width, sizes.encoder_heads * work.num_frames
    numbers = work.frames * max(7 * width, 3 * matrix - 24 * width)
    return FLOAT * (numbers + 4 * width**2)  # and the gradient of the largest weight


class Rollout(NamedTuple):
    """Bytes while transcripts are drawn, besides weights.

    Attributes:
        cache: Keys and values when every row has its whole prompt and transcript: all that ``plain`` needs;
            ``drafted`` has a row for each different beginning, and columns of wrong guesses.
        forward: The largest forward beside it.
    """

    cache: int
    forward: int

    @property
    def total(self) -> int:
        return sum(self)


def rollout_bytes(sizes: ModelSizes, work: Work, recipe: Recipe) -> Rollout:
    """Memory of drawing one transcript in each row of ``work``."""
    number, width = recipe.decoder_compute, sizes.hidden_size
    cache = work.positions * sizes.num_layers * 2 * sizes.key_width * number
    # A block: its wide feed-forward before and after SiLU, or its attention with three matrices.
    matrix = sizes.encoder_heads * work.num_frames
    block = work.frames * max(9 * sizes.encoder_width, 8 * sizes.encoder_width + 3 * matrix) * FLOAT
    image = 2 * work.frames * SUBSAMPLING_CHANNELS * 2 * sizes.subsampled_bins[0] * FLOAT
    prompts = work.num_encoded * work.num_positions * 4 * (sizes.intermediate_size + width) * number
    logits = 2 * FLOAT * max(recipe.max_logits, sizes.vocab_size)
    return Rollout(cache, max(block, image, prompts, logits))


def static_bytes(sizes: ModelSizes, recipe: Recipe, *, backend: str, num_ranks: int) -> dict[str, int]:
    """What a rank holds all the time, by kind.

    ZeRO-1 cuts optimizer states over the ranks, ZeRO-2 gradients too, ZeRO-3 and FSDP2 also weights.
    DeepSpeed keeps a second copy of its share of the trained weights beside Adam's moments.
    """
    trained = recipe.trained(sizes)
    is_deepspeed = backend.startswith("zero")
    whole = {
        "frozen weights": recipe.frozen_bytes(sizes),
        "trained weights": FLOAT * trained,
        "gradients": FLOAT * trained,
        "optimizer states": FLOAT * (3 if is_deepspeed else 2) * trained,
    }
    num_cut = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 4, "fsdp2": 4}[backend]
    cut = list(whole)[len(whole) - num_cut :]
    share = {kind: -(-size // num_ranks) if kind in cut else size for kind, size in whole.items()}
    return share | {"buffers": _buffers(sizes, recipe, backend=backend, num_ranks=num_ranks)}


def _buffers(sizes: ModelSizes, recipe: Recipe, *, backend: str, num_ranks: int) -> int:
    """Buckets of gradients on their way, and weights gathered at the same time.

    Gathered are the embeddings and the projector, the largest unit (a block or a layer), and the next one.
    """
    if backend == "ddp":
        return FLOAT * recipe.trained(sizes) if num_ranks > 1 else 0
    bucket = FLOAT * ZERO_BUCKET if backend.startswith("zero") else 0
    if backend not in ("zero3", "fsdp2"):
        return bucket
    number = FLOAT if recipe.decoder == "full" else recipe.decoder_bytes
    lora = FLOAT * sizes.lora_layer(recipe.lora_rank) if recipe.decoder == "lora" else 0
    unit = max(FLOAT * sizes.encoder_block, number * sizes.decoder_layer + lora)
    return bucket + number * sizes.embeddings + FLOAT * sizes.projector + 2 * unit
