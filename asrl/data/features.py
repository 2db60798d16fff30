"""This module is the only place that turns a waveform into log-mel features and normalises them."""

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torchaudio.compliance import kaldi

from asrl.errors import UserError

NUM_MEL_BINS = 80
WINDOW_SECONDS = 0.025
SHIFT_SECONDS = 0.010
MIN_FRAMES = 5  # fewer give no speech embedding: the encoder keeps every 4th, the projector halves again
MAX_FRAMES = 20_000  # the encoder's position table ends at 5000 frames of 40 ms

# A binary Kaldi matrix of doubles with 2 rows and 81 columns, without an archive key.
CMVN_HEADER = b"\0BDM " + struct.pack("<bibi", 4, 2, 4, NUM_MEL_BINS + 1)
CMVN_BYTES = len(CMVN_HEADER) + 8 * 2 * (NUM_MEL_BINS + 1)
MIN_VARIANCE = 1e-20


def count_frames(num_samples: int, sample_rate: int = 16000) -> int:
    """Count the whole windows of 25 ms, one every 10 ms, that fit into a waveform."""
    window, shift = int(sample_rate * WINDOW_SECONDS), int(sample_rate * SHIFT_SECONDS)
    return max(0, 1 + (num_samples - window) // shift)


def fbank(waveform: Float[Tensor, " num_samples"], *, sample_rate: int = 16000) -> Float[Tensor, "f 80"]:
    """Log-mel energies of a waveform in the int16 range as Kaldi computes them, without dither or CMVN.

    Computed in float64: quiet bins of a float32 Fourier transform are off by up to 2e-4.
    """
    if count_frames(len(waveform), sample_rate) == 0:
        return torch.zeros(0, NUM_MEL_BINS)
    exact = waveform.double()[None]
    return kaldi.fbank(
        exact, num_mel_bins=NUM_MEL_BINS, dither=0.0, sample_frequency=float(sample_rate)
    ).float()


@dataclass(frozen=True)
class Cmvn:
    """Mean and variance normalisation with statistics of a whole corpus."""

    mean: Float64[Tensor, " m"]
    inverse_std: Float64[Tensor, " m"]

    def apply(self, features: Float[Tensor, "f m"]) -> Float[Tensor, "f m"]:
        """Return ``(features - mean) * inverse_std``, computed in float64, as float32."""
        return ((features.double() - self.mean) * self.inverse_std).float()


def accumulate_cmvn(features: Iterable[Float[Tensor, "f 80"]]) -> Float64[Tensor, "2 81"]:
    """Sum up features: row 0 holds the sums and the frame count, row 1 the sums of squares and 0."""
    statistics = torch.zeros(2, NUM_MEL_BINS + 1, dtype=torch.float64)
    for matrix in features:
        exact = matrix.double()
        statistics[0, :-1] += exact.sum(0)
        statistics[1, :-1] += exact.square().sum(0)
        statistics[0, -1] += len(exact)
    return statistics


def write_cmvn(path: str | Path, statistics: Float64[Tensor, "2 81"]) -> None:
    """Write what ``accumulate_cmvn`` returns as ``cmvn.ark``."""
    values = statistics.flatten().tolist()
    Path(path).write_bytes(CMVN_HEADER + struct.pack(f"<{len(values)}d", *values))


def read_cmvn_statistics(path: str | Path) -> Float64[Tensor, "2 81"]:
    """Read the sums in ``cmvn.ark``.

    Raises:
        UserError: The file is missing, is not such a matrix, or holds numbers that no corpus can give.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot read the CMVN statistics ({error.strerror})") from error
    if len(content) != CMVN_BYTES or not content.startswith(CMVN_HEADER):
        raise UserError(
            f"{path}: CMVN statistics are a binary Kaldi matrix of 2 x 81 doubles in {CMVN_BYTES} bytes, got "
            f"{len(content)} bytes starting with {content[:15]!r}; copy cmvn.ark from the checkpoint again"
        )
    values = struct.unpack_from(f"<{2 * (NUM_MEL_BINS + 1)}d", content, len(CMVN_HEADER))
    if not all(map(math.isfinite, values)):
        raise UserError(f"{path}: CMVN statistics must be finite, found NaN or infinity; the file is damaged")
    statistics = torch.tensor(values, dtype=torch.float64).view(2, NUM_MEL_BINS + 1)
    count = statistics[0, -1].item()
    if count <= 0:
        raise UserError(f"{path}: CMVN statistics must count at least one frame, got {count:g}")
    return statistics


def read_cmvn(path: str | Path) -> Cmvn:
    """Read ``cmvn.ark`` as a normalisation.

    Raises:
        UserError: As ``read_cmvn_statistics``.
    """
    statistics = read_cmvn_statistics(path)
    mean, mean_square = statistics[:, :-1] / statistics[0, -1]
    variance = (mean_square - mean.square()).clamp(min=MIN_VARIANCE)
    return Cmvn(mean=mean, inverse_std=1 / variance.sqrt())
