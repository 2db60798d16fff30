"""Features and CMVN statistics, with numbers worked out by hand."""

import math
import struct

import pytest
import torch

from asrl.data.features import (
    Cmvn,
    accumulate_cmvn,
    count_frames,
    fbank,
    read_cmvn,
    read_cmvn_statistics,
    write_cmvn,
)
from asrl.errors import UserError


@pytest.mark.parametrize(
    ("num_samples", "num_frames"),
    # A window is 400 samples, the next starts 160 later: 400 + 4 * 160 = 1040 is the first with five.
    [(0, 0), (399, 0), (400, 1), (559, 1), (560, 2), (1039, 4), (1040, 5), (13040, 80), (32080, 199)],
)
def test_count_frames_counts_whole_windows(num_samples, num_frames):
    assert count_frames(num_samples) == num_frames
    assert fbank(torch.ones(num_samples)).shape == (num_frames, 80)


def test_fbank_of_silence_is_the_logarithm_of_the_floor():
    # The DC offset is removed, the power is 0 and the floor float32's epsilon 2^-23.
    features = fbank(torch.full((800,), 123.0))
    torch.testing.assert_close(features, torch.full((3, 80), -23 * math.log(2)), rtol=0, atol=1e-5)


def test_fbank_of_a_scaled_waveform_is_shifted():
    # Twice the amplitude is four times the power; no dither, so two calls agree.
    waveform = torch.randn(2000) * 1000
    assert torch.equal(fbank(waveform), fbank(waveform))
    torch.testing.assert_close(fbank(2 * waveform) - fbank(waveform), torch.full((11, 80), math.log(4.0)))


def test_fbank_of_a_tone_peaks_in_the_bin_of_its_frequency():
    # mel(f) = 1127 ln(1 + f/700): 20 Hz is 31.75, 8000 Hz is 2840.02, 1000 Hz is 999.99. Between the first
    # two lie 81 steps of 34.67 mel; bin k (from 0) is centred at step k + 1, and 1 kHz lies at step
    # (999.99 - 31.75) / 34.67 = 27.93. That is bin 26.93, so the peak is in bin 27.
    tone = 5000 * torch.sin(2 * math.pi * 1000 * torch.arange(4000) / 16000)
    assert set(fbank(tone).argmax(dim=1).tolist()) == {27}


def test_apply_subtracts_the_mean_and_multiplies():
    cmvn = Cmvn(
        mean=torch.tensor([1.0, -2.0], dtype=torch.float64),
        inverse_std=torch.tensor([0.5, 4.0], dtype=torch.float64),
    )
    normalised = cmvn.apply(torch.tensor([[3.0, -1.0], [0.0, -2.0]]))
    assert normalised.dtype == torch.float32
    assert normalised.tolist() == [[1.0, 4.0], [-0.5, 0.0]]


def two_frames():
    """Bin k is k in the first frame and k + 2 in the second: mean k + 1, variance 1."""
    bins = torch.arange(80.0)
    return torch.stack([bins, bins + 2])


def test_accumulated_statistics_are_sums_squares_and_the_count():
    frames = two_frames()
    statistics = accumulate_cmvn(iter([frames[:1], frames[1:], frames[:0]]))
    assert statistics[0].tolist() == [2 * k + 2 for k in range(80)] + [2]
    assert statistics[1].tolist() == [k * k + (k + 2) ** 2 for k in range(80)] + [0]


def test_written_statistics_read_back_as_mean_and_inverse_deviation(tmp_path):
    path = tmp_path / "cmvn.ark"
    write_cmvn(path, accumulate_cmvn([two_frames()]))
    cmvn = read_cmvn(path)
    assert cmvn.mean.tolist() == [k + 1 for k in range(80)]
    assert cmvn.inverse_std.tolist() == [1.0] * 80
    assert path.read_bytes()[:15] == b"\x00BDM \x04\x02\x00\x00\x00\x04\x51\x00\x00\x00"
    assert struct.unpack("<d", path.read_bytes()[15 + 80 * 8 : 15 + 81 * 8]) == (2.0,)  # [0, 80]


def test_a_constant_bin_is_divided_by_the_smallest_deviation(tmp_path):
    statistics = accumulate_cmvn([torch.ones(4, 80)])  # variance 0, raised to 1e-20
    write_cmvn(tmp_path / "cmvn.ark", statistics)
    assert read_cmvn(tmp_path / "cmvn.ark").inverse_std.tolist() == pytest.approx([1e10] * 80)


def damaged(change):
    content = bytearray(1311)
    content[:15] = b"\x00BDM \x04\x02\x00\x00\x00\x04\x51\x00\x00\x00"
    content[15 + 80 * 8 : 15 + 81 * 8] = struct.pack("<d", 7.0)
    return bytes(change(content) or content)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (damaged(lambda c: c[:-1]), "1311 bytes, got 1310 bytes"),
        (damaged(lambda c: c + b"\0"), "got 1312 bytes"),
        (b"", "got 0 bytes"),
        (damaged(lambda c: c.__setitem__(slice(0, 5), b"\0BFM ")), r"starting with b'\x00BFM "),
        (damaged(lambda c: c.__setitem__(6, 3)), r"starting with b'\x00BDM \x04\x03"),
        (damaged(lambda c: c.__setitem__(slice(15, 23), struct.pack("<d", math.nan))), "NaN"),
        (
            damaged(lambda c: c.__setitem__(slice(655, 663), struct.pack("<d", 0.0))),
            "at least one frame, got 0",
        ),
        (damaged(lambda c: c.__setitem__(slice(655, 663), struct.pack("<d", -3.0))), "got -3"),
    ],
)
def test_damaged_statistics_are_refused_in_one_line(tmp_path, content, words):
    path = tmp_path / "cmvn.ark"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_cmvn(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_statistics_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"cmvn\.ark: cannot read the CMVN statistics \(No such file"):
        read_cmvn(tmp_path / "cmvn.ark")


def test_statistics_survive_the_file_exactly(tmp_path):
    statistics = torch.rand(2, 81, dtype=torch.float64) + 1
    write_cmvn(tmp_path / "cmvn.ark", statistics)
    assert torch.equal(read_cmvn_statistics(tmp_path / "cmvn.ark"), statistics)
