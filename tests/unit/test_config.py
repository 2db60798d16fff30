from pathlib import Path

import pytest
from omegaconf import OmegaConf

from asrl.cli.compose import compose_config, config_groups
from asrl.config import CONFIG_DIRECTORY, SCHEMAS
from asrl.config_checks import CHOICES, RANGES, check_combinations, check_values
from asrl.errors import UserError

TRAIN = OmegaConf.structured(SCHEMAS["train"])
SFT = OmegaConf.structured(SCHEMAS["sft"])
EXPERIMENTS = sorted(path.stem for path in (CONFIG_DIRECTORY / "experiment").glob("*.yaml"))
GROUPS = sorted(
    (path.parent.name, path.stem)
    for path in CONFIG_DIRECTORY.glob("*/*.yaml")
    if path.parent.name not in ("experiment", "accelerate", "recipe")
)


def commands_with(group):
    """Commands whose defaults list the group."""
    return [name for name in SCHEMAS if group in config_groups(name)]


def has(schema, key):
    """Whether a command has a setting, be its default null."""
    section, _, name = key.rpartition(".")
    return name in (OmegaConf.select(schema, section or ".") or {})


def with_value(key, value):
    """The defaults of the command that has the key, with one other value."""
    schema = TRAIN if has(TRAIN, key) else SFT
    config = OmegaConf.merge(schema)
    OmegaConf.update(config, key, value)
    return config


def test_the_defaults_are_allowed():
    check_values(TRAIN)
    check_values(SFT)
    check_combinations(TRAIN)


@pytest.mark.parametrize("key", [*CHOICES, *RANGES])
def test_every_checked_key_exists(key):
    assert has(TRAIN, key) or has(SFT, key)


@pytest.mark.parametrize("key", CHOICES)
def test_a_value_off_the_list_is_refused_with_the_key_and_the_list(key):
    allowed = CHOICES[key]
    typo = allowed[-1][:-1] + "x" if len(allowed[-1]) > 2 else "xx"
    with pytest.raises(UserError) as error:
        check_values(with_value(key, typo))
    assert str(error.value).startswith(f"{key} must be one of {', '.join(allowed)}, got {typo!r}")
    for value in allowed:
        check_values(with_value(key, value))


@pytest.mark.parametrize("key", RANGES)
def test_a_value_out_of_range_is_refused_with_the_key_and_the_range(key):
    low, high, includes_low = RANGES[key]
    for value in (low - 1, *([] if includes_low else [low]), high + 1):
        with pytest.raises(UserError, match=f"^{key} must be .* at most {high}, got {value}"):
            check_values(with_value(key, value))
    for value in (high, *([low] if includes_low else [])):
        check_values(with_value(key, value))


@pytest.mark.parametrize("key", ["beta", "epsilon", "optim.learning_rate.decoder", "rollout.top_p"])
def test_nan_is_refused(key):
    with pytest.raises(UserError, match=key):
        check_values(with_value(key, float("nan")))


REFUSED = {
    "several updates without old log-probs": (
        {"old_logps": "detach", "num_iterations": 2, "steps_per_generation": 3},
        "old_logps=detach needs one update per batch .* = 6; use old_logps=recompute",
    ),
    "two steps without old log-probs": (
        {"old_logps": "detach", "steps_per_generation": 2},
        "old_logps=detach .* = 2",
    ),
    "log-probs of the rollout although there is dropout": (
        {"old_logps": "rollout", "dropout": True},
        "old_logps=rollout .* dropout=true; use dropout=false",
    ),
    "no adapter to switch off": (
        {"beta": 0.1, "model.train_decoder": "full"},
        "reference=adapter_off needs model.train_decoder=lora, got 'full'",
    ),
    "the adapter is the starting policy": (
        {"beta": 0.1, "model.lora.start": "continue"},
        "reference=adapter_off with model.lora.start=continue",
    ),
    "epsilon_high of zero": ({"epsilon_high": 0.0}, "epsilon_high must be above 0, got 0.0"),
    "cispo without a cap": ({"loss_type": "cispo"}, "loss_type=cispo .* epsilon_high"),
    "delta inside the clipping range": (
        {"delta": 1.3, "epsilon_high": 0.3},
        r"delta must be above 1 \+ epsilon_high, got 1.3",
    ),
    "delta inside the range of epsilon": ({"delta": 1.2}, r"delta must be above 1 \+ epsilon_high, got 1.2"),
    "delta that nothing reads": (
        {"delta": 4.0, "loss_type": "sapo"},
        "loss_type=sapo has no second clipping bound, got delta=4.0",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_contradiction_is_refused(name):
    settings, message = REFUSED[name]
    config = OmegaConf.merge(TRAIN)
    for key, value in settings.items():
        OmegaConf.update(config, key, value)
    check_values(config)
    with pytest.raises(UserError, match=message):
        check_combinations(config)


ALLOWED = {
    "one update from its own log-probs": {"old_logps": "detach"},
    "no KL, no adapter": {"beta": 0.0, "model.train_decoder": "full", "model.lora.start": "continue"},
    "a frozen copy of the adapter": {"beta": 0.1, "reference": "frozen", "model.lora.start": "continue"},
    "cispo with its cap": {"loss_type": "cispo", "epsilon_high": 5.0},
    "delta beyond the clipping range": {"delta": 1.21},
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_only_looks_like_a_contradiction_is_allowed(name):
    config = OmegaConf.merge(TRAIN)
    for key, value in ALLOWED[name].items():
        OmegaConf.update(config, key, value)
    check_combinations(config)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_composes_and_agrees_with_itself(name):
    config = compose_config("train", [f"experiment={name}"])
    check_combinations(config)
    assert "${" not in config.run_dir


@pytest.mark.parametrize(("group", "name"), GROUPS)
def test_every_option_of_every_group_composes(group, name):
    commands = commands_with(group)
    assert commands, f"no command reads configs/{group}"
    for command in commands:
        config = compose_config(command, [f"{group}={name}"])
        if command == "train":
            check_combinations(config)


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_command_composes(name):
    config = compose_config(name, [])
    assert OmegaConf.get_type(config) is SCHEMAS[name]


def test_the_groups_are_not_empty():
    assert len(EXPERIMENTS) >= 5
    assert {group for group, _ in GROUPS} >= {
        "data",
        "logger",
        "model",
        "optim",
        "reward",
        "rollout",
        "trainer",
    }


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_says_which_command_runs_it(name):
    text = Path(CONFIG_DIRECTORY / "experiment" / f"{name}.yaml").read_text(encoding="utf-8")
    assert f"train.py experiment={name}" in text
