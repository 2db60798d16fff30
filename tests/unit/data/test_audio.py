"""Reading audio: what the numbers are, and which files are refused."""

import math

import numpy as np
import pytest
import soundfile
import torch

from asrl.data.audio import read_audio
from asrl.errors import UserError


def write(path, waveform, rate=16000, **options):
    soundfile.write(path, np.asarray(waveform), rate, **options)
    return path


@pytest.mark.parametrize(
    ("name", "subtype"), [("a.wav", "PCM_16"), ("a.flac", "PCM_16"), ("a.wav", "PCM_24")]
)
def test_integer_files_come_back_in_the_int16_range(tmp_path, name, subtype):
    codes = np.arange(-1000, 1000, dtype=np.int16)
    codes[:2] = -32768, 32767
    waveform = read_audio(write(tmp_path / name, codes, subtype=subtype))
    assert waveform.dtype == torch.float32
    assert waveform.tolist() == codes.tolist()


def test_float_files_are_scaled_by_32768(tmp_path):
    values = np.tile(np.array([0.5, -0.25, 1.5], dtype=np.float32), 400)
    waveform = read_audio(write(tmp_path / "a.wav", values, subtype="FLOAT"))
    assert waveform.tolist() == [16384.0, -8192.0, 49152.0] * 400


def test_channels_are_averaged(tmp_path):
    stereo = np.tile(np.array([[100, 300], [-50, 51]], dtype=np.int16), (600, 1))
    assert read_audio(write(tmp_path / "a.wav", stereo)).tolist() == [200.0, 0.5] * 600


@pytest.mark.parametrize("rate", [8000, 22050, 44100, 48000])
def test_other_rates_are_resampled(tmp_path, rate):
    # A 500 Hz tone of half a second. The filter rings at the edges, so the middle is compared; it is short,
    # so 2 % of the amplitude are allowed.
    def tone(rate):
        return 10000 * torch.sin(2 * math.pi * 500 * torch.arange(rate // 2) / rate)

    waveform = read_audio(write(tmp_path / "a.wav", tone(rate).numpy() / 32768, rate, subtype="FLOAT"))
    assert len(waveform) == 8000
    torch.testing.assert_close(waveform[500:-500], tone(16000)[500:-500], rtol=0, atol=200)
    assert waveform[500:-500].abs().max() > 9800


@pytest.mark.parametrize("name", ["a.ogg", "a.mp3"])
def test_lossy_formats_are_read(tmp_path, name):
    tone = 0.3 * np.sin(2 * math.pi * 500 * np.arange(16000) / 16000)
    waveform = read_audio(write(tmp_path / name, tone))
    assert waveform[4000:12000].square().mean().sqrt().item() == pytest.approx(
        0.3 * 32768 / math.sqrt(2), rel=0.02
    )


def test_the_shortest_usable_audio_gives_five_frames(tmp_path):
    assert len(read_audio(write(tmp_path / "a.wav", np.zeros(1040)))) == 1040


def refused(path, place="train.jsonl:3"):
    with pytest.raises(UserError) as caught:
        read_audio(path, place=place)
    message = str(caught.value)
    assert "\n" not in message
    prefix = f"{place}: {path}: " if place else f"{path}: "
    assert message.startswith(prefix)
    return message.removeprefix(prefix)


def test_short_audio_is_refused(tmp_path):
    assert refused(write(tmp_path / "a.wav", np.zeros(1039))) == (
        "the model needs at least 0.0650 s of audio (5 frames), got 0.0649 s (4 frames); drop the utterance"
    )
    assert "got 0.0249 s (0 frames)" in refused(write(tmp_path / "b.wav", np.zeros(399)), place="")
    # 600 samples at 8 kHz are 1200 at 16 kHz, enough; 500 are 1000, too few.
    assert len(read_audio(write(tmp_path / "c.wav", np.zeros(600), 8000))) == 1200
    assert "(4 frames)" in refused(write(tmp_path / "d.wav", np.zeros(500), 8000))


def test_long_audio_is_refused(tmp_path):
    # 20,000 frames end at 400 + 19,999 * 160 = 3,200,240 samples; one more starts 160 later.
    assert len(read_audio(write(tmp_path / "a.wav", np.zeros(3_200_399)))) == 3_200_399
    message = refused(write(tmp_path / "b.wav", np.zeros(3_200_400)))
    assert message == "the model takes at most 200 s of audio, got 200.0 s; cut it into pieces"


def test_missing_and_unreadable_files_are_refused(tmp_path):
    assert refused(tmp_path / "none.wav") == "no such audio file"
    assert refused(tmp_path) == "no such audio file"
    assert refused(tmp_path / ("x" * 300)) == "no such audio file"
    text = tmp_path / "text.wav"
    text.write_text("not audio")
    assert refused(text) == "cannot read audio (Format not recognised.); use wav, flac, ogg or mp3"
    headless = tmp_path / "a.raw"
    headless.write_bytes(b"\0" * 4000)
    assert refused(headless).startswith("cannot read audio (")


def test_empty_files_are_refused(tmp_path):
    assert refused(write(tmp_path / "a.wav", np.zeros(0))) == "the audio file is empty"
    (tmp_path / "b.wav").touch()
    assert refused(tmp_path / "b.wav").startswith("cannot read audio (")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_audio_is_refused(tmp_path, bad):
    values = np.zeros(2000, dtype=np.float32)
    values[1234] = bad
    assert refused(write(tmp_path / "a.wav", values, subtype="FLOAT")) == "the audio contains NaN or infinity"
