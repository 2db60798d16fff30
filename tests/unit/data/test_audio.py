"""Reading audio: what the numbers are, and which files are refused."""

import math

import numpy as np
import pytest
import soundfile
import torch

from asrl.data.audio import Stretch, measure_audio, read_audio, read_waveform
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


@pytest.mark.parametrize("rate", [8000, 22050, 44100, 44101, 48000])
def test_other_rates_are_resampled(tmp_path, rate):
    # A 500 Hz tone of half a second. The filter rings at the edges, so the middle is compared; it is short,
    # so 2 % of the amplitude are allowed.
    def tone(rate):
        return 10000 * torch.sin(2 * math.pi * 500 * torch.arange(rate // 2) / rate)

    waveform = read_audio(write(tmp_path / "a.wav", tone(rate).numpy() / 32768, rate, subtype="FLOAT"))
    assert len(waveform) == 8000
    torch.testing.assert_close(waveform[500:-500], tone(16000)[500:-500], rtol=0, atol=200)
    assert waveform[500:-500].abs().max() > 9800


@pytest.mark.parametrize("rate", [1, 3999, 768_001])
def test_a_rate_that_no_speech_has_is_refused(tmp_path, rate):
    with pytest.raises(UserError, match=rf"^\S+a\.wav: the sample rate must be from 4000 .* got {rate}; "):
        read_audio(write(tmp_path / "a.wav", np.zeros(4000), rate))


def test_a_rate_just_off_the_usual_one_is_resampled_at_once_and_to_within_a_twentieth_of_a_percent(tmp_path):
    waveform = read_audio(write(tmp_path / "a.wav", np.zeros(160_000), 15_999))
    # 10.000625 s are 160,010 samples at 16 kHz.
    assert abs(len(waveform) - 160_010) <= 80


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


def ramp(tmp_path, *, rate=16000, num_samples=16000):
    """A file whose sample number t has the value t."""
    return write(tmp_path / "ramp.wav", np.arange(num_samples, dtype=np.int16), rate)


@pytest.mark.parametrize(
    ("stretch", "first", "end"),
    [
        (Stretch(0.25), 4000, 16000),
        (Stretch(0.25, 0.5), 4000, 12000),
        (Stretch(0.0, 0.1), 0, 1600),
        # 0.1 s at 16 kHz begin at sample 1600; 0.10003 s at 1600.48, so at the same one.
        (Stretch(0.10003, 0.1), 1600, 3200),
        (Stretch(0.5, 0.55), 8000, 16000),  # ends 0.05 s behind the file: cut off
    ],
)
def test_a_stretch_is_read_alone(tmp_path, stretch, first, end):
    path = ramp(tmp_path)
    assert read_audio(path, stretch=stretch).tolist() == list(range(first, end))
    assert measure_audio(path, stretch=stretch) == (end - first) / 16000


@pytest.mark.parametrize("name", ["a.flac", "a.ogg", "a.mp3"])
def test_a_stretch_of_compressed_audio_is_that_of_the_whole(tmp_path, name):
    path = write(tmp_path / name, np.random.default_rng(0).normal(0, 0.1, 32000))
    whole, part = read_audio(path), read_audio(path, stretch=Stretch(0.5, 0.25))
    # After a seek a decoder of mp3 rebuilds its overlap, hence 1 % of the amplitude for it.
    torch.testing.assert_close(part, whole[8000:12000], rtol=0, atol=33 if name == "a.mp3" else 0)


def test_a_stretch_is_in_seconds_at_any_rate(tmp_path):
    path = ramp(tmp_path, rate=8000)
    assert read_audio(path, stretch=Stretch(1.0, 0.5), sample_rate=8000).tolist() == list(range(8000, 12000))


@pytest.mark.parametrize(("channel", "expected"), [(0, 100.0), (1, 300.0), (None, 200.0)])
def test_a_channel_is_chosen_or_all_are_averaged(tmp_path, channel, expected):
    stereo = np.tile(np.array([[100, 300]], dtype=np.int16), (1600, 1))
    path = write(tmp_path / "a.wav", stereo)
    assert read_audio(path, stretch=Stretch(channel=channel)).tolist() == [expected] * 1600


@pytest.mark.parametrize(
    ("stretch", "message"),
    [
        (Stretch(1.0), "the utterance starts at 1 s, but the file ends at 1 s"),
        (Stretch(7.5, 1.0), "the utterance starts at 7.5 s, but the file ends at 1 s"),
        (Stretch(0.5, 0.75), "the utterance ends at 1.25 s, but the file ends at 1 s"),
        (Stretch(channel=1), "there is no channel 1, the file has 1, the first being 0"),
    ],
)
def test_a_stretch_that_the_file_does_not_have_is_refused(tmp_path, stretch, message):
    path = ramp(tmp_path)
    for function in (read_audio, measure_audio):
        with pytest.raises(UserError) as caught:
            function(path, stretch=stretch, place="m.jsonl:3")
        assert str(caught.value) == f"m.jsonl:3: {path}: {message}"


def test_a_file_that_ends_before_its_header_says_is_refused(tmp_path):
    path = write(tmp_path / "a.mp3", np.random.default_rng(0).normal(0, 0.1, 160_000))
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    assert refused(path).startswith("the file is cut short: 10 s according to its header, 5.9")
    damaged = write(tmp_path / "a.flac", np.random.default_rng(0).normal(0, 0.1, 160_000))
    damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size * 6 // 10])
    assert (
        refused(damaged) == "cannot read audio (Error : flac decoder lost sync.); use wav, flac, ogg or mp3"
    )


def test_waveforms_for_other_uses_may_be_short(tmp_path):
    assert read_waveform(write(tmp_path / "a.wav", np.array([0.5, 0.25]))).tolist() == [16384.0, 8192.0]
