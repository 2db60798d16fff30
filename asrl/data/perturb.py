"""This module is the only place that alters waveforms at random: speed, reverberation, noise."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import soundfile
import torch
from jaxtyping import Float
from torch import Generator, Tensor
from torchaudio.functional import add_noise, fftconvolve, resample
from tqdm import tqdm

from asrl.data.audio import Stretch, measure_audio, read_waveform
from asrl.data.features import MAX_FRAMES, MIN_FRAMES, count_frames
from asrl.data.manifest import read_manifest
from asrl.errors import UserError
from asrl.sampling import stable_hash

SUFFIXES = {f".{name.lower()}" for name in soundfile.available_formats()} | {".opus", ".oga", ".aif", ".sph"}

Waveform = Float[Tensor, " num_samples"]
Changed = Float[Tensor, " num_changed"]  # another length, where the speed changes
Stage = Callable[[Waveform, Generator], Changed]


@dataclass(frozen=True)
class Recording:
    """A file of noise or an impulse response."""

    path: str
    seconds: float


def find_recordings(path: str, *, setting: str) -> tuple[Recording, ...]:
    """Find the audio files of a folder and the folders in it, or of a manifest, and read their headers.

    Args:
        path: The folder or the manifest.
        setting: The key of the configuration that names it, for error messages.

    Raises:
        UserError: There is no such place, or no audio in it, or a file cannot be read.
    """
    place = f"{setting}={path}"
    if Path(path).is_file():
        files = [utterance.audio for utterance in read_manifest(path, require_text=False)]
    else:
        found = (file for file in Path(path).rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
        files = sorted(map(str, found))
    if not files:
        raise UserError(f"{place}: no audio files here; name a folder of them or a manifest, or null")
    bar = tqdm(files, desc=setting, unit="file", leave=False, delay=1)
    recordings = tuple(Recording(file, measure_audio(file, place=place)) for file in bar)
    for recording in recordings:
        if recording.seconds == 0:
            raise UserError(f"{place}: {recording.path}: the audio file is empty")
    return recordings


@dataclass(frozen=True)
class Speed:
    """Plays an utterance faster or slower, and higher or lower with it (Ko et al., Interspeech 2015).

    An utterance that would become too short or too long for the model is left as it is.

    Args:
        factors: One is drawn; 2.0 halves the length.

    Raises:
        UserError: A factor is out of range.
    """

    factors: Sequence[float]

    def __post_init__(self) -> None:
        for factor in self.factors:
            # Hundredths, because the filter of a resampler grows with the terms of the reduced fraction.
            if not 0.5 <= factor <= 2 or not math.isclose(factor * 100, round(factor * 100)):
                raise UserError(
                    f"augment.speed_factors must be hundredths from 0.5 to 2, got {factor}; "
                    "1.1 is 10 % faster"
                )

    def __call__(self, waveform: Waveform, generator: Generator) -> Changed:
        factor = self.factors[_draw_index(len(self.factors), generator)]
        changed = resample(waveform, round(factor * 100), 100)
        return changed if MIN_FRAMES <= count_frames(len(changed)) <= MAX_FRAMES else waveform


@dataclass(frozen=True)
class Reverb:
    """Puts an utterance into a room.

    The response begins at its direct path, so that nothing is delayed; length and power stay.

    Args:
        responses: Impulse responses; one is drawn. Of several channels the first is taken.
        probability: Share of the utterances that are changed.
        sample_rate: In Hz.
    """

    responses: Sequence[Recording]
    probability: float
    sample_rate: int = 16000

    def __call__(self, waveform: Waveform, generator: Generator) -> Waveform:
        if _draw_uniform(generator) >= self.probability:
            return waveform
        path = self.responses[_draw_index(len(self.responses), generator)].path
        response = read_waveform(path, stretch=Stretch(channel=0), sample_rate=self.sample_rate)
        if not response.any():
            raise UserError(f"augment.reverb.path: {path}: the impulse response is silent; remove it")
        direct = int(response.abs().argmax())
        changed = fftconvolve(waveform, response / response.norm())[direct : direct + len(waveform)]
        return changed * (waveform.norm() / changed.norm()) if changed.any() else waveform


@dataclass(frozen=True)
class Noise:
    """Adds noise at a signal-to-noise ratio.

    Of a recording longer than the utterance a stretch is drawn, a shorter one is repeated. The ratio is that
    of the energies over the whole utterance.

    Args:
        recordings: Noise; one is drawn.
        probability: Share of the utterances that are changed.
        min_snr: Lowest ratio, in dB; one is drawn uniformly.
        max_snr: Highest ratio, in dB.
        sample_rate: In Hz.

    Raises:
        UserError: The lowest ratio is above the highest.
    """

    recordings: Sequence[Recording]
    probability: float
    min_snr: float
    max_snr: float
    sample_rate: int = 16000

    def __post_init__(self) -> None:
        if self.min_snr > self.max_snr:
            raise UserError(
                f"augment.noise.min_snr must be at most augment.noise.max_snr = {self.max_snr:g}, "
                f"got {self.min_snr:g}"
            )

    def __call__(self, waveform: Waveform, generator: Generator) -> Waveform:
        if _draw_uniform(generator) >= self.probability:
            return waveform
        recording = self.recordings[_draw_index(len(self.recordings), generator)]
        snr = self.min_snr + (self.max_snr - self.min_snr) * _draw_uniform(generator)
        noise = self.cut(recording, len(waveform), generator)
        # Digital silence has no ratio to anything.
        return add_noise(waveform, noise, torch.tensor(snr)) if noise.any() else waveform

    def cut(self, recording: Recording, num_samples: int, generator: Generator) -> Waveform:
        """Draw so much of a recording."""
        seconds = num_samples / self.sample_rate
        drawn = _draw_uniform(generator)
        if recording.seconds > seconds:
            stretch = Stretch(drawn * (recording.seconds - seconds), seconds)
            noise = read_waveform(recording.path, stretch=stretch, sample_rate=self.sample_rate)
        else:
            noise = read_waveform(recording.path, sample_rate=self.sample_rate)
            noise = noise.roll(int(drawn * len(noise)))
        # Also where rounding made the stretch a number too short.
        return noise.repeat(math.ceil(num_samples / len(noise)))[:num_samples]


@dataclass(frozen=True)
class Perturbation:
    """Alters a waveform in stages; what is drawn depends on the seed, the epoch and the key alone.

    Args:
        stages: By name; each has random numbers of its own, so that adding one changes no other.
        seed: Of the random numbers.
    """

    stages: Mapping[str, Stage]
    seed: int = 0

    def __call__(self, waveform: Waveform, *, epoch: int, key: str) -> Changed:
        for name, stage in self.stages.items():
            generator = torch.Generator().manual_seed(stable_hash(self.seed, name, epoch, key))
            waveform = stage(waveform, generator)
        return waveform


def _draw_uniform(generator: Generator) -> float:
    return torch.rand((), generator=generator, dtype=torch.float64).item()


def _draw_index(size: int, generator: Generator) -> int:
    return int(torch.randint(size, (), generator=generator))
