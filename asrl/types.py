"""This module is the only place that defines what crosses the borders between stages.

Axis letters, used in every shape annotation:

    u  utterances        f  feature frames (10 ms)    p  prompt tokens       d  hidden size
    n  rows              m  mel bins                  l  completion tokens   v  vocabulary
    k  reward functions  s  speech embeddings         t  encoder frames       e  encoder width

A row is one transcript to draw or score; an utterance has ``num_generations`` rows, perhaps on several ranks.
"""

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from asrl.utterance import Utterance


@dataclass(frozen=True)
class SpeechBatch:
    """The rows that one rank works on, with each utterance's features held once.

    Attributes:
        utterances: The distinct utterances of the rows, in order of first use.
        features: Log-mel features after CMVN, zero padded on the right.
        num_frames: Valid frames of each utterance.
        row_utterance: Position in ``utterances`` of each row.
        row_index: Position of each row in the batch over all ranks; ``row_index // num_generations`` is its
            group.
        replica: Which of its utterance's ``num_generations`` transcripts the row is; seeds the rollout noise.
        epoch: Pass over the data set that the row belongs to; seeds the rollout noise.
        encoded: Encoder output, kept where the encoder is frozen; None where it has to be computed.
    """

    utterances: tuple[Utterance, ...]
    features: Float[Tensor, "u f m"]
    num_frames: Int[Tensor, " u"]
    row_utterance: Int[Tensor, " n"]
    row_index: Int[Tensor, " n"]
    replica: Int[Tensor, " n"]
    epoch: Int[Tensor, " n"]
    encoded: Float[Tensor, "u t e"] | None = None

    @property
    def row_utterances(self) -> list[Utterance]:
        """The utterance of every row."""
        return [self.utterances[index] for index in self.row_utterance.tolist()]


@dataclass(frozen=True)
class SpeechEmbeddings:
    """What the projector hands to the decoder: one embedding per 80 ms, padded on the right."""

    embeddings: Float[Tensor, "u s d"]
    num_tokens: Int[Tensor, " u"]


@dataclass(frozen=True)
class Prompts:
    """Chat prompts with the speech spliced in, compact (no gap inside), padded on the right."""

    embeddings: Float[Tensor, "u p d"]
    num_tokens: Int[Tensor, " u"]


@dataclass(frozen=True)
class Completions:
    """Transcripts as tokens, one row each, padded on the right.

    Attributes:
        tokens: Token ids; arbitrary where ``mask`` is False.
        mask: True at the completion's tokens, its end token included.
        is_finished: The row ended with the end token rather than at the token limit.
        sampling_logps: Log-probs at the rollout's temperature, unfiltered, in nats; 0 where not ``mask``.

    Example:
        Two rows, the second cut at the limit of three tokens (9 is the end token)::

            tokens [[5, 9, 0], [5, 6, 7]]   mask [[1, 1, 0], [1, 1, 1]]   is_finished [1, 0]
    """

    tokens: Int[Tensor, "n l"]
    mask: Bool[Tensor, "n l"]
    is_finished: Bool[Tensor, " n"]
    sampling_logps: Float[Tensor, "n l"]


class TokenScores(NamedTuple):
    """Log-prob of every completion token and entropy of the distribution it was drawn from, in nats.

    Both are 0 where the completion mask is False. ``entropy`` is detached. A tuple, because the wrappers of
    distributed training look for a model's output tensors in tuples only.
    """

    logps: Float[Tensor, "n l"]
    entropy: Float[Tensor, "n l"]


T = TypeVar("T")


def on_device(data: T, device: torch.device) -> T:
    """Copy a dataclass of this module with its tensors moved to the device."""
    moved = {
        field.name: getattr(data, field.name).to(device)
        for field in dataclasses.fields(data)  # type: ignore[arg-type]
        if isinstance(getattr(data, field.name), Tensor)
    }
    return dataclasses.replace(data, **moved)  # type: ignore[type-var]
