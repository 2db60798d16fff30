"""Opening data for a run: its format, and that training data alone is altered."""

import json

import numpy as np
import pytest
import soundfile
import torch
from omegaconf import OmegaConf

from asrl.cli.build import load_dataset, load_held_out_sets, load_training_set
from asrl.config import SCHEMAS
from asrl.errors import UserError


@pytest.fixture
def config(tmp_path, golden):
    """The defaults, with a manifest of one utterance of 1 s and folders of noise and responses."""
    draw = np.random.default_rng(0)
    for name, num_samples in (("a.wav", 16000), ("noise/n.wav", 32000), ("rooms/r.wav", 800)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        soundfile.write(tmp_path / name, draw.normal(0, 0.1, num_samples), 16000)
    (tmp_path / "m.jsonl").write_text(json.dumps({"key": "a", "wav": "a.wav", "txt": "x"}))
    made = OmegaConf.structured(SCHEMAS["train"])
    made.data.train = str(tmp_path / "m.jsonl")
    made.model.path = str(golden / "FireRedASR-LLM-tiny")
    return made


def features(dataset, epoch=0):
    return dataset.featurize(dataset.utterances[0], epoch=epoch)


def plain(config):
    return features(load_dataset(config.data.train, config.model.path))


def test_without_settings_nothing_is_altered(config):
    dataset = load_training_set(config)
    assert dataset.perturb is None
    assert torch.equal(features(dataset), plain(config))
    assert torch.equal(features(dataset, epoch=5), plain(config))


@pytest.mark.parametrize(
    ("settings", "num_frames"),
    [
        ({"speed_factors": [2.0]}, 48),  # of 0.5 s: 1 + (8000 - 400) // 160
        ({"noise": {"path": "noise", "probability": 1.0}}, 98),
        ({"reverb": {"path": "rooms", "probability": 1.0}}, 98),
        ({"spec_augment": {"num_time_masks": 3}}, 98),
    ],
)
@pytest.mark.parametrize("schema", ["train", "sft"])
def test_each_setting_alters_training_data_the_same_way_each_time(
    config, tmp_path, settings, num_frames, schema
):
    for section in ("noise", "reverb"):
        if section in settings:
            settings = {section: settings[section] | {"path": str(tmp_path / settings[section]["path"])}}
    merged = OmegaConf.structured(SCHEMAS[schema])
    merged.data, merged.model = config.data, config.model
    merged.augment = OmegaConf.merge(merged.augment, settings)
    first, second = load_training_set(merged), load_training_set(merged)
    altered = features(first, epoch=1)
    assert len(altered) == num_frames
    assert torch.equal(altered, features(second, epoch=1))
    assert not torch.equal(altered[:10], plain(config)[:10]) or "spec_augment" in settings
    if "speed_factors" not in settings:
        assert any(not torch.equal(altered, features(first, epoch=epoch)) for epoch in range(2, 6)) or (
            "reverb" in settings  # there is one room
        )


def test_held_out_sets_are_never_altered(config, tmp_path):
    config.augment.speed_factors = [2.0]
    config.augment.spec_augment.num_time_masks = 3
    config.augment.noise.path = str(tmp_path / "noise")
    config.data.dev = config.data.train
    sets = load_held_out_sets(config)
    assert list(sets) == ["dev"]
    assert torch.equal(features(sets["dev"], epoch=1), plain(config))


def test_the_seed_of_the_run_decides(config, tmp_path):
    config.augment.noise.path = str(tmp_path / "noise")
    config.augment.noise.probability = 1.0
    first = features(load_training_set(config))
    config.seed += 1
    assert not torch.equal(first, features(load_training_set(config)))


def test_the_format_is_forced_on_the_manifest(config):
    config.data.format = "funasr"
    with pytest.raises(UserError, match=r"m\.jsonl:1: column 'source' is missing"):
        load_training_set(config)


def test_an_empty_folder_of_noise_is_named_at_the_start(config, tmp_path):
    (tmp_path / "empty").mkdir()
    for section in ("noise", "reverb"):
        config.augment[section].path = str(tmp_path / "empty")
        with pytest.raises(
            UserError, match=rf"^augment\.{section}\.path={tmp_path}/empty: no audio files here"
        ):
            load_training_set(config)
        config.augment[section].path = None
