"""This module is the only place that opens audio files."""

import os.path
from pathlib import Path

import soundfile
import torch
from jaxtyping import Float
from torch import Tensor
from torchaudio.functional import resample

from asrl.data.features import MAX_FRAMES, MIN_FRAMES, SHIFT_SECONDS, WINDOW_SECONDS, count_frames
from asrl.errors import UserError

INT16_RANGE = 32768.0
MIN_SECONDS = WINDOW_SECONDS + (MIN_FRAMES - 1) * SHIFT_SECONDS
MAX_SECONDS = MAX_FRAMES * SHIFT_SECONDS


def read_audio(
    path: str | Path, *, sample_rate: int = 16000, place: str = ""
) -> Float[Tensor, " num_samples"]:
    """Read a file of any format, rate and channel count as one channel in the int16 range.

    Channels are averaged before resampling. Full scale is 32768 whatever the file's sample format is.

    Args:
        path: The file.
        sample_rate: Rate of the result, in Hz.
        place: What to name in front of the path in an error, e.g. ``manifest.jsonl:12``.

    Raises:
        UserError: The file is missing, unreadable, empty, too short or too long for the model, or not finite.
    """
    name = f"{place}: {path}" if place else str(path)
    if not os.path.isfile(path):  # unlike Path.is_file, no error for a name that is too long
        raise UserError(f"{name}: no such audio file")
    try:
        channels, file_rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, OSError, TypeError) as error:  # TypeError: .raw needs a rate
        reason = " ".join(getattr(error, "error_string", str(error)).split())
        raise UserError(f"{name}: cannot read audio ({reason}); use wav, flac, ogg or mp3") from error
    if len(channels) == 0:
        raise UserError(f"{name}: the audio file is empty")
    waveform = torch.from_numpy(channels).mean(dim=1) * INT16_RANGE
    if not waveform.isfinite().all():
        raise UserError(f"{name}: the audio contains NaN or infinity")
    waveform = resample(waveform, file_rate, sample_rate)
    _check_duration(name, len(waveform), sample_rate)
    return waveform


def _check_duration(name: str, num_samples: int, sample_rate: int) -> None:
    """Raise a UserError unless the model can use this much audio."""
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
