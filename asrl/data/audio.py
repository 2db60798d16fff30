"""This module is the only place that opens audio files."""

import os.path
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import soundfile
import torch
from jaxtyping import Float
from torch import Tensor
from torchaudio.functional import resample

from asrl.data.features import MAX_FRAMES, MIN_FRAMES, SHIFT_SECONDS, WINDOW_SECONDS, count_frames
from asrl.errors import UserError
from asrl.utterance import Utterance

INT16_RANGE = 32768.0
MIN_SECONDS = WINDOW_SECONDS + (MIN_FRAMES - 1) * SHIFT_SECONDS
MAX_SECONDS = MAX_FRAMES * SHIFT_SECONDS
MIN_RATE, MAX_RATE = 4000, 768_000  # Hz
MAX_FILTER_TAPS = 10**6
MAX_DENOMINATOR = 1000
# Ends of segments are rounded, and the last one often lies a little behind the end of the file.
OVERSHOOT_SECONDS = 0.1


@dataclass(frozen=True)
class Stretch:
    """Part of an audio file.

    Attributes:
        start: In seconds from the beginning of the file.
        duration: In seconds; None: to the end of the file.
        channel: Counted from 0; None: the mean of all.
    """

    start: float = 0.0
    duration: float | None = None
    channel: int | None = None


WHOLE = Stretch()


def stretch_of(utterance: Utterance) -> Stretch:
    """The part of its file that an utterance is."""
    return Stretch(utterance.start, utterance.duration, utterance.channel)


def read_audio(
    path: str | Path, *, stretch: Stretch = WHOLE, sample_rate: int = 16000, place: str = ""
) -> Float[Tensor, " num_samples"]:
    """Read speech for the model: ``read_waveform``, and neither too short nor too long.

    Raises:
        UserError: As ``read_waveform``, or the model cannot use so little or so much audio.
    """
    waveform = read_waveform(path, stretch=stretch, sample_rate=sample_rate, place=place)
    check_duration(_name(path, place), len(waveform), sample_rate)
    return waveform


def read_waveform(
    path: str | Path, *, stretch: Stretch = WHOLE, sample_rate: int = 16000, place: str = ""
) -> Float[Tensor, " num_samples"]:
    """Read a file of any format, rate and channel count as one channel in the int16 range.

    Channels are averaged before resampling. Full scale is 32768 whatever the file's sample format is.

    Args:
        path: The file.
        stretch: The part of it to read.
        sample_rate: Rate of the result, in Hz.
        place: What to name in front of the path in an error, e.g. ``manifest.jsonl:12``.

    Raises:
        UserError: The file is missing, unreadable, empty or not finite, or has no such stretch.
    """
    name = _name(path, place)
    with _open(path, name) as file:
        first, num_samples = _locate(file, stretch, name)
        if first:
            file.seek(first)
        channels = file.read(num_samples, dtype="float32", always_2d=True)
        file_rate = file.samplerate
    if num_samples == 0:
        raise UserError(f"{name}: the audio file is empty")
    if len(channels) < num_samples - OVERSHOOT_SECONDS * file_rate:
        raise UserError(
            f"{name}: the file is cut short: {num_samples / file_rate:g} s according to its header, "
            f"{len(channels) / file_rate:g} s can be read"
        )
    chosen = torch.from_numpy(channels)
    waveform = (chosen.mean(dim=1) if stretch.channel is None else chosen[:, stretch.channel]) * INT16_RANGE
    if not waveform.isfinite().all():
        raise UserError(f"{name}: the audio contains NaN or infinity")
    return _resample(waveform, file_rate, sample_rate, name)


def _resample(
    waveform: Float[Tensor, " num_samples"], file_rate: int, sample_rate: int, name: str
) -> Float[Tensor, " _"]:
    """Resample; rates without a large common divisor by a ratio that is off by 0.05 % at most.

    The exact filter for 44,101 to 16,000 Hz has 700 million taps.
    """
    if not MIN_RATE <= file_rate <= MAX_RATE:
        raise UserError(
            f"{name}: the sample rate must be from {MIN_RATE} to {MAX_RATE} Hz, got {file_rate}; "
            "the file is damaged or holds no speech"
        )
    ratio = Fraction(file_rate, sample_rate)
    if ratio.numerator * ratio.denominator > MAX_FILTER_TAPS:
        ratio = ratio.limit_denominator(MAX_DENOMINATOR)
    return resample(waveform, ratio.numerator, ratio.denominator)


def measure_audio(path: str | Path, *, stretch: Stretch = WHOLE, place: str = "") -> float:
    """Seconds of a stretch, from the header of the file alone.

    Raises:
        UserError: The file is missing or unreadable, or has no such stretch.
    """
    name = _name(path, place)
    with _open(path, name) as file:
        return _locate(file, stretch, name)[1] / file.samplerate


def check_duration(name: str, num_samples: int, sample_rate: int) -> None:
    """Check that the model can use this much audio.

    Raises:
        UserError: It is too short or too long; begins with ``name``.
    """
    seconds = num_samples / sample_rate
    num_frames = count_frames(num_samples, sample_rate)
    if num_frames < MIN_FRAMES:
        raise UserError(
            f"{name}: the model needs at least {MIN_SECONDS:.4f} s of audio ({MIN_FRAMES} frames), "
            f"got {seconds:.4f} s ({num_frames} frames); drop the utterance"
        )
    if num_frames > MAX_FRAMES:
        raise UserError(
            f"{name}: the model takes at most {MAX_SECONDS:.0f} s of audio, got {seconds:.1f} s; "
            "cut it into pieces"
        )


def _name(path: str | Path, place: str) -> str:
    return f"{place}: {path}" if place else str(path)


@contextmanager
def _open(path: str | Path, name: str) -> Iterator[soundfile.SoundFile]:
    """Open a file; what goes wrong until it is closed becomes a UserError."""
    if not os.path.isfile(path):  # unlike Path.is_file, no error for a name that is too long
        raise UserError(f"{name}: no such audio file")
    try:
        with soundfile.SoundFile(path) as file:
            yield file
    except (soundfile.SoundFileError, OSError, TypeError) as error:  # TypeError: .raw needs a rate
        reason = " ".join(getattr(error, "error_string", str(error)).split())
        raise UserError(f"{name}: cannot read audio ({reason}); use wav, flac, ogg or mp3") from error


def _locate(file: soundfile.SoundFile, stretch: Stretch, name: str) -> tuple[int, int]:
    """First sample and number of samples of a stretch.

    Raises:
        UserError: It is not in the file.
    """
    rate, num_samples = file.samplerate, file.frames
    if stretch.channel is not None and stretch.channel >= file.channels:
        raise UserError(
            f"{name}: there is no channel {stretch.channel}, the file has {file.channels}, the first being 0"
        )
    first = round(stretch.start * rate)
    if first and first >= num_samples:
        raise UserError(
            f"{name}: the utterance starts at {stretch.start:g} s, "
            f"but the file ends at {num_samples / rate:g} s"
        )
    if stretch.duration is None:
        return first, num_samples - first
    end = first + round(stretch.duration * rate)
    if end > num_samples + OVERSHOOT_SECONDS * rate:
        raise UserError(
            f"{name}: the utterance ends at {stretch.start + stretch.duration:g} s, "
            f"but the file ends at {num_samples / rate:g} s"
        )
    return first, min(end, num_samples) - first
