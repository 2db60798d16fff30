"""This module is the only place that turns a sentence into a recording: speech, room, noise and codec.

eSpeak NG is loaded from the optional package ``espeakng-loader`` and called through ctypes.
"""

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import soundfile
import torch
import torchaudio

from asrl.errors import UserError

SAMPLE_RATE = 16000
# libsndfile maps 0..1 to 256..6 kbit/s; this is about 28 kbit/s, 6 kB an utterance, and leaves 8 kHz of band.
OPUS_COMPRESSION = 0.93
_ESPEAK_RATE = 22050
_RETRIEVE_SYNCHRONOUSLY = 2
_UTF8 = 1
_SPEED, _PITCH, _RANGE = 1, 3, 4  # espeak_PARAMETER

SEEN_VOICES = (
    *("f1", "f2", "f3", "f4", "m1", "m2", "m3", "m4", "m6", "m7", "Alex", "Alicia", "Andrea", "Andy"),
    *("Annie", "Denis", "Diogo", "Gene", "Hugo", "Lee", "Mario", "Michael", "anika", "travis"),
)
UNSEEN_VOICES = ("f5", "m5", "m8", "belinda", "david", "Jacky")

Waveform = np.ndarray  # float32, one axis, full scale 1.0


@dataclass(frozen=True)
class Condition:
    """Acoustic condition of a split.

    Attributes:
        voices: eSpeak variants that speak (and babble).
        snr: Lowest and highest signal-to-noise ratio, dB.
        t60: Longest reverberation time, seconds.
        language: eSpeak's name of it; "cmn" reads Han characters, polyphones included.
        speed: Lowest and highest speed, eSpeak's words per minute.
    """

    voices: tuple[str, ...]
    snr: tuple[float, float]
    t60: float
    language: str = "cmn"
    speed: tuple[int, int] = (190, 260)


CLEAN = Condition(voices=SEEN_VOICES, snr=(8.0, 30.0), t60=0.25)
NOISY = Condition(voices=SEEN_VOICES + UNSEEN_VOICES, snr=(0.0, 15.0), t60=0.5)


@dataclass(frozen=True)
class Recording:
    """A rendered utterance and what was drawn for it; ``snr`` in dB, ``noise`` is pink or babble."""

    waveform: Waveform
    voice: str
    snr: float
    noise: str


@cache
def load_espeak() -> ctypes.CDLL:
    """The eSpeak NG library, initialised.

    Raises:
        UserError: The optional package is not installed.
    """
    try:
        import espeakng_loader  # noqa: PLC0415 - optional dependency
    except ImportError:
        raise UserError(
            "the corpus is spoken by eSpeak NG, and espeakng-loader is not installed: "
            "pip install 'espeakng-loader>=0.2.4' (extra demo-build)"
        ) from None
    library = ctypes.CDLL(espeakng_loader.get_library_path())
    data = Path(espeakng_loader.get_data_path())
    for voice in NOISY.voices:
        # An unknown variant is silently replaced by the default voice.
        if not (data / "voices" / "!v" / voice).is_file():
            raise UserError(f"espeakng-loader must ship the voice variant {voice!r}: install version 0.2.4")
    library.espeak_Synth.argtypes = [
        *(ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_int),
        *(ctypes.c_uint, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p),
    ]
    library.espeak_ng_SetRandSeed.argtypes = [ctypes.c_long]
    if library.espeak_Initialize(_RETRIEVE_SYNCHRONOUSLY, 0, str(data).encode(), 0) != _ESPEAK_RATE:
        raise UserError(f"eSpeak NG cannot read its data in {data}: reinstall espeakng-loader")
    return library


def speak(text: str, *, voice: str, condition: Condition, generator: np.random.Generator) -> Waveform:
    """Speech at 16 kHz with a random speed, pitch and pitch range.

    eSpeak carries state from one utterance into the next, so equal seeds give equal speech only when the
    process has spoken the same things before: call this from a freshly forked process.
    """
    library = load_espeak()
    chunks: list[Waveform] = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
    def keep(wave: ctypes._Pointer, num_values: int, _: int | None) -> int:
        if wave and num_values:
            chunks.append(np.ctypeslib.as_array(wave, (num_values,)).astype(np.float32) / 32768)
        return 0

    library.espeak_SetSynthCallback(keep)
    name = f"{condition.language}+{voice}"
    if library.espeak_SetVoiceByName(name.encode()):
        raise UserError(f"eSpeak NG has no voice {name}: reinstall espeakng-loader")
    for parameter, low, high in ((_SPEED, *condition.speed), (_PITCH, 30, 70), (_RANGE, 30, 70)):
        library.espeak_SetParameter(parameter, int(generator.integers(low, high + 1)), 0)
    # Unless told otherwise, eSpeak seeds the noise in its breathy voices from the clock.
    library.espeak_ng_SetRandSeed(1)
    encoded = text.encode()
    library.espeak_Synth(encoded, len(encoded) + 1, 0, 1, 0, _UTF8, None, None)
    assert chunks, f"eSpeak NG said nothing for {text}"
    wave = torch.from_numpy(np.concatenate(chunks))
    return torchaudio.functional.resample(wave, _ESPEAK_RATE, SAMPLE_RATE).numpy()


def reverberate(waveform: Waveform, *, t60: float, generator: np.random.Generator) -> Waveform:
    """Speech in a room: its tail of noise decays by 60 dB in ``t60`` seconds and lies 2-12 dB below."""
    num_taps = max(2, int(t60 * SAMPLE_RATE))
    decay = np.exp(-np.log(1000) * np.arange(num_taps) / num_taps)
    tail = generator.standard_normal(num_taps) * decay
    response = tail * np.sqrt(10 ** (-generator.uniform(2, 12) / 10) / np.sum(tail**2))
    response[0] = 1.0
    num_values = len(waveform) + num_taps - 1
    spectrum = np.fft.rfft(waveform, num_values) * np.fft.rfft(response, num_values)
    return np.fft.irfft(spectrum, num_values)[: len(waveform)]


def pink_noise(num_values: int, *, generator: np.random.Generator) -> Waveform:
    """Noise whose power falls with 1/f."""
    spectrum = np.fft.rfft(generator.standard_normal(num_values))
    return np.fft.irfft(spectrum / np.sqrt(np.maximum(1, np.arange(len(spectrum)))), num_values)


def mix(speech: Waveform, noise: Waveform, *, snr: float) -> Waveform:
    """Speech plus noise scaled to the signal-to-noise ratio in dB."""
    gain = np.sqrt(np.mean(speech**2) / np.mean(noise**2)) * 10 ** (-snr / 20)
    return speech + gain * noise


def record(text: str, *, babble_text: str, condition: Condition, seed: str) -> Recording:
    """Render a sentence under a condition; the same seed gives the same recording (in a fresh process).

    Babble is played backwards: at 0 dB two intelligible talkers would leave the transcript undefined.
    """
    generator = np.random.default_rng(list(seed.encode()))
    voice, babbler = map(str, generator.choice(condition.voices, size=2, replace=False))
    snr = round(float(generator.uniform(*condition.snr)), 1)
    speech = np.pad(
        speak(text, voice=voice, condition=condition, generator=generator),
        generator.integers(0, 1600, size=2),
    )
    speech = reverberate(speech, t60=generator.uniform(0.05, condition.t60), generator=generator)
    is_babble = generator.random() < 0.5
    if is_babble:
        babble = speak(babble_text, voice=babbler, condition=condition, generator=generator)[::-1]
        noise = np.roll(np.resize(babble, len(speech)), generator.integers(len(speech)))
    else:
        noise = pink_noise(len(speech), generator=generator)
    mixed = mix(speech, noise, snr=snr)
    level = 10 ** (generator.uniform(-30, -20) / 20) / np.sqrt(np.mean(mixed**2))
    mixed = mixed * min(level, 0.9 / np.max(np.abs(mixed)))
    return Recording(mixed.astype(np.float32), voice, snr, "babble" if is_babble else "pink")


def write_opus(path: Path, waveform: Waveform) -> None:
    """Encode as Ogg/Opus; it decodes to 16 kHz, the same number of values and no delay.

    The stream's serial number is random, so the bytes of two encodings differ while the audio does not.
    """
    soundfile.write(
        *(path, waveform, SAMPLE_RATE), format="OGG", subtype="OPUS", compression_level=OPUS_COMPRESSION
    )
