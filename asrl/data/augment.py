"""This module is the only place that alters features at random."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from asrl.errors import UserError
from asrl.sampling import stable_hash

MAX_MASKED_SHARE = 0.2  # one time mask hides at most this share of an utterance; p in the paper


@dataclass(frozen=True)
class SpecAugment:
    """Masks over time and frequency (SpecAugment, arXiv 1904.08779, without time warping).

    Masked features become 0, the corpus mean. The masks of an utterance depend on the seed, the epoch and the
    utterance's key alone.

    Raises:
        UserError: A setting is negative.
    """

    num_time_masks: int
    max_time_frames: int
    num_frequency_masks: int
    max_frequency_bins: int
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name != "seed" and value < 0:
                raise UserError(
                    f"augment.spec_augment.{name} must be at least 0, got {value}; 0 switches it off"
                )

    def mask(self, features: Float[Tensor, "f m"], generator: Generator) -> Float[Tensor, "f m"]:
        """Return a copy with masks drawn from ``generator``."""
        features = features.clone()
        num_frames, num_bins = features.shape
        max_frames = min(self.max_time_frames, int(num_frames * MAX_MASKED_SHARE))
        for _ in range(self.num_time_masks):
            features[_draw_span(num_frames, max_frames, generator)] = 0
        for _ in range(self.num_frequency_masks):
            features[:, _draw_span(num_bins, min(self.max_frequency_bins, num_bins), generator)] = 0
        return features

    def __call__(self, features: Float[Tensor, "f m"], *, epoch: int, key: str) -> Float[Tensor, "f m"]:
        """Mask the features of utterance ``key`` as in epoch ``epoch``."""
        generator = torch.Generator().manual_seed(stable_hash(self.seed, "augment", epoch, key))
        return self.mask(features, generator)


def _draw_span(size: int, max_width: int, generator: Generator) -> slice:
    """Draw a width from 0 to ``max_width``, then where the span starts, both uniformly."""
    width = int(torch.randint(max_width + 1, (), generator=generator))
    start = int(torch.randint(size - width + 1, (), generator=generator))
    return slice(start, start + width)
