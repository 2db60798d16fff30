"""Recordings of every odd kind."""

from pathlib import Path

import numpy as np
import soundfile
from cases import Case, write_manifest

RATE = 16000
NAME = r"{folder}/train\.jsonl:1: odd: {folder}/odd\.\w+: "
NOISE = np.random.default_rng(0).normal(0, 0.1, RATE)


def listed(path: Path) -> Path:
    return write_manifest(path.parent, {"key": "odd", "audio": path.name, "text": "你好"})


def recording(samples: np.ndarray = NOISE, rate: int = RATE, name: str = "odd.wav", **options: str):
    def make(folder: Path) -> Path:
        soundfile.write(folder / name, samples, rate, **options)
        return listed(folder / name)

    return make


def content(raw: bytes, name: str = "odd.wav"):
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(raw)
        return listed(folder / name)

    return make


def cut(name: str, share: float):
    """A recording of which only the first part of the bytes is left."""

    def make(folder: Path) -> Path:
        manifest = recording(name=name)(folder)
        raw = (folder / name).read_bytes()
        (folder / name).write_bytes(raw[: int(len(raw) * share)])
        return manifest

    return make


def renamed(name: str):
    """An mp3 under another name."""

    def make(folder: Path) -> Path:
        soundfile.write(folder / "true.mp3", NOISE, RATE)
        (folder / "true.mp3").rename(folder / name)
        return listed(folder / name)

    return make


def garbled(name: str):
    """A recording of which the second half is overwritten."""

    def make(folder: Path) -> Path:
        manifest = recording(name=name)(folder)
        raw = (folder / name).read_bytes()
        half = len(raw) // 2
        (folder / name).write_bytes(raw[:half] + np.random.default_rng(1).bytes(len(raw) - half))
        return manifest

    return make


def header_of_rate(rate: int):
    """A wav header that claims this rate, whatever soundfile would write."""

    def make(folder: Path) -> Path:
        manifest = recording()(folder)
        raw = bytearray((folder / "odd.wav").read_bytes())
        raw[24:28] = rate.to_bytes(4, "little")
        (folder / "odd.wav").write_bytes(raw)
        return manifest

    return make


def spoilt(value: float) -> np.ndarray:
    samples = NOISE.copy()
    samples[100] = value
    return samples


UNREADABLE = NAME + r"cannot read audio \(.+\); use wav, flac, ogg or mp3"
TOO_SHORT = NAME + r"the model needs at least 0\.0650 s of audio .*; drop the utterance"
RATE_REFUSED = NAME + r"the sample rate must be from 4000 to 768000 Hz, got {rate}; .*"
RECORDINGS = [
    Case("empty file", content(b""), UNREADABLE),
    Case("text under the name of a wav", content(b"this is not audio"), UNREADABLE),
    Case("picture under the name of a wav", content(b"\x89PNG\r\n\x1a\n" + b"\0" * 99), UNREADABLE),
    Case("zeros under the name of a wav", content(b"\0" * 4096), UNREADABLE),
    Case("raw samples without a header", content(b"\0" * 4096, "odd.raw"), UNREADABLE),
    Case("header alone", recording(np.zeros(0)), NAME + "the audio file is empty"),
    Case("half a header", cut("odd.wav", 0.0005), UNREADABLE),
    Case("wav cut short: what is left counts", cut("odd.wav", 0.6)),
    Case("flac cut short", cut("odd.flac", 0.6), NAME + "(cannot read audio|the file is cut short).*"),
    Case("flac garbled", garbled("odd.flac"), NAME + "(cannot read audio|the file is cut short).*"),
    Case("NaN", recording(spoilt(np.nan), subtype="FLOAT"), NAME + "the audio contains NaN or infinity"),
    Case("infinity", recording(spoilt(np.inf), subtype="FLOAT"), NAME + "the audio contains NaN or infinity"),
    Case("one sample", recording(NOISE[:1]), TOO_SHORT),
    Case("one sample less than five frames", recording(NOISE[:1039]), TOO_SHORT),
    Case("five frames", recording(NOISE[:1040])),
    Case("too long", recording(np.zeros(4000 * 201), 4000), NAME + "the model takes at most 200 s of .*"),
    Case("90 s", recording(np.zeros(4000 * 90), 4000)),
    Case("7 Hz", recording(rate=7), RATE_REFUSED.replace("{rate}", "7")),
    Case("0 Hz", header_of_rate(0), NAME + "(cannot read audio|the sample rate must be).*"),
    Case("4 GHz", header_of_rate(2**32 - 1), NAME + "(cannot read audio|the sample rate must be).*"),
    Case("rate without a common divisor", recording(rate=15999)),
    Case("8 kHz", recording(rate=8000)),
    Case("192 kHz", recording(rate=192_000)),
    Case("8 bits", recording(subtype="PCM_U8")),
    Case("24 bits", recording(subtype="PCM_24")),
    Case("32 bits", recording(subtype="PCM_32")),
    Case("floats beyond full scale", recording(50 * NOISE, subtype="FLOAT")),
    Case("doubles", recording(subtype="DOUBLE")),
    Case("mu-law", recording(subtype="ULAW")),
    Case("8 channels", recording(np.tile(NOISE[:4000, None], (1, 8)))),
    Case("silence", recording(np.zeros(RATE))),
    Case("full scale all along", recording(np.ones(RATE))),
    Case("mp3 under the name of a wav", renamed("odd.wav")),
    Case("mp3 without an ending", renamed("odd_")),
    Case("ogg", recording(name="odd.ogg")),
    Case("flac", recording(name="odd.flac")),
]
