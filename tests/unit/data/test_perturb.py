"""Altering waveforms: what each stage does to the numbers, and what its draws depend on."""

import math

import numpy as np
import pytest
import soundfile
import torch
from audio_files import write_audio, write_lines

from asrl.data.perturb import Noise, Perturbation, Recording, Reverb, Speed, find_recordings
from asrl.errors import UserError

SPEECH = torch.tensor([1000.0, -1000.0]).repeat(1000)  # energy 2000 * 10^6


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def recording(path, samples, rate=16000):
    soundfile.write(path, np.asarray(samples), rate, subtype="FLOAT")
    return Recording(str(path), len(samples) / rate)


def tone(num_samples, period):
    return 1000 * torch.sin(2 * math.pi * torch.arange(num_samples) / period)


def test_speed_two_halves_the_length_and_the_period():
    # The filter rings at the edges, so the middle is compared; it is short, so 2 % are allowed.
    faster = Speed([2.0])(tone(16000, 64), generator())
    assert len(faster) == 8000
    torch.testing.assert_close(faster[500:-500], tone(8000, 32)[500:-500], rtol=0, atol=20)
    assert len(Speed([0.9])(tone(9000, 64), generator())) == 10000
    assert len(Speed([1.1])(tone(11000, 64), generator())) == 10000


def test_every_speed_is_drawn_and_one_changes_nothing():
    lengths = {len(Speed([0.5, 1.0, 2.0])(tone(4000, 64), generator(seed))) for seed in range(40)}
    assert lengths == {2000, 4000, 8000}
    assert torch.equal(Speed([1.0])(SPEECH, generator()), SPEECH)


def test_an_utterance_keeps_its_speed_where_the_model_could_not_take_it():
    # 1040 samples are the least: 2079 / 2 = 1039.5 are rounded up to 1040, 2078 give 1039.
    assert len(Speed([2.0])(torch.ones(2079), generator())) == 1040
    assert len(Speed([2.0])(torch.ones(2078), generator())) == 2078
    # 3,200,399 are the most.
    assert len(Speed([0.5])(torch.ones(1_600_200), generator())) == 1_600_200


@pytest.mark.parametrize("factor", [0.49, 2.01, 1.005])
def test_speeds_out_of_range_are_refused(factor):
    with pytest.raises(
        UserError, match=rf"^augment\.speed_factors must be hundredths from 0\.5 to 2, got {factor}"
    ):
        Speed([1.0, factor])


def test_an_impulse_of_any_height_and_delay_changes_nothing(tmp_path):
    delayed = np.zeros(300)
    delayed[200] = -0.5
    for name, samples, sign in (("one", [1.0], 1), ("delayed", delayed, -1)):
        changed = Reverb([recording(tmp_path / f"{name}.wav", samples)], 1.0)(SPEECH, generator())
        torch.testing.assert_close(changed, sign * SPEECH, rtol=0, atol=0.01)


def test_an_echo_by_hand(tmp_path):
    # An impulse of 0.8 and, 100 samples later, 0.4: the click comes out as a and a/2. Its energy of 1000^2 is
    # kept, so a^2 + (a/2)^2 = 1000^2 and a = 1000 / sqrt(1.25) = 894.427.
    click = torch.zeros(2000)
    click[50] = 1000
    response = np.zeros(101)
    response[[0, 100]] = 0.8, 0.4
    changed = Reverb([recording(tmp_path / "echo.wav", response)], 1.0)(click, generator())
    expected = torch.zeros(2000)
    expected[50], expected[150] = 894.427, 447.214
    torch.testing.assert_close(changed, expected, rtol=0, atol=0.01)


def test_the_first_channel_of_a_response_is_taken(tmp_path):
    soundfile.write(tmp_path / "two.wav", np.array([[1.0, 0.0], [0.0, 1.0]]), 16000, subtype="FLOAT")
    changed = Reverb([Recording(str(tmp_path / "two.wav"), 2 / 16000)], 1.0)(SPEECH, generator())
    torch.testing.assert_close(changed, SPEECH, rtol=0, atol=0.01)


def test_a_silent_response_is_refused_and_silent_speech_stays(tmp_path):
    silent = recording(tmp_path / "silent.wav", np.zeros(10))
    with pytest.raises(UserError, match=r"silent\.wav: the impulse response is silent; remove it"):
        Reverb([silent], 1.0)(SPEECH, generator())
    click = recording(tmp_path / "click.wav", [1.0])
    assert not Reverb([click], 1.0)(torch.zeros(2000), generator()).any()


def energy(waveform):
    return waveform.double().square().sum().item()


@pytest.mark.parametrize(("snr", "share"), [(0.0, 1.0), (10.0, 0.1), (-20.0, 100.0)])
@pytest.mark.parametrize("num_samples", [1500, 2000, 5000])
def test_noise_has_the_ratio_that_was_drawn(tmp_path, snr, share, num_samples):
    noise = recording(tmp_path / "noise.wav", np.random.default_rng(0).normal(0, 0.1, num_samples))
    changed = Noise([noise], 1.0, min_snr=snr, max_snr=snr)(SPEECH, generator())
    assert energy(changed - SPEECH) == pytest.approx(share * 2e9, rel=1e-4)


def test_ratios_are_drawn_over_the_whole_range(tmp_path):
    mix = Noise([recording(tmp_path / "noise.wav", np.ones(5000) * 0.1)], 1.0, min_snr=5.0, max_snr=15.0)
    ratios = [10 * math.log10(2e9 / energy(mix(SPEECH, generator(seed)) - SPEECH)) for seed in range(60)]
    assert 5 <= min(ratios) < 6
    assert 14 < max(ratios) <= 15


def test_long_noise_is_cut_anywhere_and_short_noise_is_repeated(tmp_path):
    mix = Noise([], 1.0, min_snr=0.0, max_snr=0.0)
    long = recording(tmp_path / "long.wav", np.arange(8000) / 32768)
    starts = set()
    for seed in range(40):
        cut = mix.cut(long, 2000, generator(seed))
        starts.add(cut[0].item())
        assert cut.tolist() == list(range(int(cut[0]), int(cut[0]) + 2000))
    assert min(starts) < 600
    assert max(starts) > 5400  # of 6000
    short = mix.cut(recording(tmp_path / "short.wav", np.arange(700) / 32768), 2000, generator()).tolist()
    first = short[0]
    assert first != 0  # it begins anywhere
    assert short == [(first + number) % 700 for number in range(2000)]


def test_noise_of_another_rate_is_long_enough(tmp_path):
    noise = recording(tmp_path / "noise.wav", np.random.default_rng(0).normal(0, 0.1, 44100), 44100)
    for seed in range(10):
        assert len(Noise([], 1.0, 0.0, 0.0).cut(noise, 15_999, generator(seed))) == 15_999


def test_digital_silence_is_not_mixed_in(tmp_path):
    mix = Noise([recording(tmp_path / "silent.wav", np.zeros(5000))], 1.0, min_snr=0.0, max_snr=0.0)
    assert torch.equal(mix(SPEECH, generator()), SPEECH)


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_the_share_that_is_changed(tmp_path, probability):
    noise = recording(tmp_path / "noise.wav", np.ones(5000) * 0.1)
    stages = (
        Noise([noise], probability, 0.0, 0.0),
        Reverb([recording(tmp_path / "r.wav", [1.0, 1.0])], probability),
    )
    for stage in stages:
        changed = sum(not torch.equal(stage(SPEECH, generator(seed)), SPEECH) for seed in range(200))
        # Three standard deviations of a binomial are 3 * sqrt(200 * 0.3 * 0.7) = 19.4.
        assert changed == pytest.approx(200 * probability, abs=20 if probability == 0.3 else 0)


def test_a_range_the_wrong_way_round_is_refused():
    with pytest.raises(UserError) as caught:
        Noise([], 1.0, min_snr=10.0, max_snr=5.0)
    assert str(caught.value) == "augment.noise.min_snr must be at most augment.noise.max_snr = 5, got 10"


def test_draws_depend_on_seed_epoch_and_key_alone(tmp_path):
    noise = recording(tmp_path / "noise.wav", np.random.default_rng(0).normal(0, 0.1, 90_000))

    def alter(seed=0, epoch=0, key="a", stages=("speed", "noise")):
        torch.rand(1)  # moves the global random state on
        every = {"speed": Speed([0.9, 1.0, 1.1]), "noise": Noise([noise], 1.0, 0.0, 20.0)}
        return Perturbation({name: every[name] for name in stages}, seed)(SPEECH, epoch=epoch, key=key)

    assert torch.equal(alter(), alter())
    for other in (alter(seed=1), alter(epoch=1), alter(key="b")):
        assert not torch.equal(other[:1000], alter()[:1000])
    # One stage does not move the draws of another.
    assert len(alter(stages=("speed",))) == len(alter())


def test_recordings_of_a_folder_are_found_at_any_depth(tmp_path):
    write_audio(tmp_path / "b.wav", 0.5)
    write_audio(tmp_path / "deep" / "er" / "a.FLAC", 0.25)
    (tmp_path / "README.txt").write_text("no audio")
    assert find_recordings(str(tmp_path), setting="augment.noise.path") == (
        Recording(str(tmp_path / "b.wav"), 0.5),
        Recording(str(tmp_path / "deep" / "er" / "a.FLAC"), 0.25),
    )


def test_recordings_of_a_manifest_need_no_text(tmp_path):
    write_audio(tmp_path / "b.wav", 0.5)
    path = write_lines(tmp_path / "noise.jsonl", {"key": "b", "audio": "b.wav"})
    assert find_recordings(str(path), setting="x") == (Recording(str(tmp_path / "b.wav"), 0.5),)


def test_unusable_folders_are_refused_in_one_line(tmp_path):
    def refused(path):
        with pytest.raises(UserError) as caught:
            find_recordings(str(path), setting="augment.noise.path")
        assert "\n" not in str(caught.value)
        return str(caught.value).removeprefix(f"augment.noise.path={path}: ")

    nothing = "no audio files here; name a folder of them or a manifest, or null"
    assert refused(tmp_path) == nothing
    assert refused(tmp_path / "none") == nothing
    write_audio(tmp_path / "empty" / "a.wav", 0)
    assert refused(tmp_path / "empty") == f"{tmp_path}/empty/a.wav: the audio file is empty"
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.wav").write_text("no audio")
    assert refused(tmp_path / "text").startswith(f"{tmp_path}/text/a.wav: cannot read audio (")
