import pytest
from omegaconf import OmegaConf

from asrl.cli.compose import (
    check_command_line,
    compose_config,
    is_sweep,
    known_keys,
    resumed_config,
)
from asrl.errors import UserError


def message_of(*overrides, name="train"):
    with pytest.raises(UserError) as error:
        check_command_line(name, overrides)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_known_keys_are_dotted_and_include_sections():
    config = OmegaConf.create({"a": {"b": {"c": 1}, "d": None}, "e": "???"})
    assert list(known_keys(config)) == ["a", "a.b", "a.b.c", "a.d", "e"]


def test_command_line_beats_experiment_beats_group():
    config = compose_config("train", ["experiment=dropout_control"])
    assert config.trainer.max_steps == 60  # 300 in trainer/demo.yaml
    assert (
        compose_config("train", ["experiment=dropout_control", "trainer.max_steps=3"]).trainer.max_steps == 3
    )


def test_a_group_can_be_exchanged_under_an_experiment():
    config = compose_config("train", ["experiment=demo_token", "reward=hotword"])
    assert config.importance_sampling_level == "token"
    assert config.reward.hotword.weight == 0.5


def test_a_reward_can_be_added_and_switched_off():
    config = compose_config("train", ["+reward.hotword.weight=0.25", "reward.accuracy=null"])
    assert config.reward.hotword.weight == 0.25
    assert config.reward.accuracy is None


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("importance_sampling_levle=token", "unknown setting 'importance_sampling_levle'; did you mean 'imp"),
        ("trainer.max_step=1", "unknown setting 'trainer.max_step'; did you mean 'trainer.max_steps'"),
        ("+trainer.max_step=1", "unknown setting 'trainer.max_step'; did you mean 'trainer.max_steps'"),
        ("~seeds", "unknown setting 'seeds'; did you mean 'seed'"),
        ("+seeds=1", "unknown setting 'seeds'; did you mean 'seed'"),
        ("optim=dmo", "optim=dmo: there is no configs/optim/dmo.yaml; did you mean 'demo'"),
        (
            "experiment=demo_tokens",
            "there is no configs/experiment/demo_tokens.yaml; did you mean 'demo_token'",
        ),
        ("optims=demo", "unknown setting 'optims'; did you mean 'optim'"),
        ("trainer.max_steps=many", "trainer.max_steps: Value 'many'"),
        ("trainer.max_steps=1.5", "trainer.max_steps: Value '1.5'"),
        ("dropout=perhaps", "dropout: Value 'perhaps'"),
        ("importance_sampling_level=tokens", "importance_sampling_level must be one of token, sequence"),
        (
            "trainer.rows_per_device=0",
            "trainer.rows_per_device must be at least 1 and at most 1000000, got 0",
        ),
        (
            "reward.hotword.weight=0.5",
            "is added to those there are with a plus, as in +reward.hotword.weight=1",
        ),
        ("reward.accuracy.wieght=0.5", "reward.accuracy"),
        ("--max-steps=3", "--max-steps=3: settings are key=value without dashes: trainer.max_steps=3"),
        ("--trainer.max_steps=3", "settings are key=value without dashes: trainer.max_steps=3"),
        ("--seed=3", "--seed=3: settings are key=value without dashes: seed=3"),
        ("--fast", "--fast: settings are key=value without dashes; `asrl train --help` lists them"),
        ("just words", "not a setting of the form key=value: 'just words'"),
        ("seed=[1", "not a setting of the form key=value: "),
        ("run_dir=${nowhere}", "run_dir: Interpolation key 'nowhere' not found"),
        ("data=manifest", "data.train has no default and must be given: data.train=..."),
    ],
)
def test_a_wrong_word_is_explained_in_one_line(override, expected):
    assert expected in message_of(override)


def test_a_wrong_word_of_another_command_is_explained_with_its_keys():
    assert "did you mean 'num_epochs'" in message_of("num_epoch=1", name="sft")


def test_flags_are_left_to_hydra():
    check_command_line("train", ["--cfg", "seed=1"])


def test_a_setting_with_dashes_and_a_space_is_explained():
    expected = "--max_steps: settings are key=value without dashes: trainer.max_steps=3"
    assert message_of("--max_steps", "3", "seed=1") == expected


def test_a_sweep_without_multirun_is_refused():
    with pytest.raises(UserError, match="add --multirun"):
        check_command_line("train", ["seed=1,2"])
    check_command_line("train", ["seed=1,2", "--multirun"])


def test_a_list_of_values_is_a_sweep_and_a_quoted_comma_is_not():
    assert is_sweep(["seed=1,2"])
    assert not is_sweep(["seed=1", "run_dir='a,b'"])


@pytest.fixture
def run_dir(tmp_path):
    config = compose_config("train", ["seed=7", "trainer.max_steps=5", "+reward.hotword.weight=0.5"])
    OmegaConf.save(config, tmp_path / "config.yaml")
    return tmp_path


def test_a_resumed_run_keeps_its_settings_and_takes_new_ones_on_top(run_dir):
    config = resumed_config(str(run_dir), [f"resume={run_dir}", "trainer.max_steps=9"])
    assert (config.seed, config.trainer.max_steps, config.resume) == (7, 9, str(run_dir))
    assert config.reward.hotword.weight == 0.5


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("logger=none", "logger=none: a resumed run keeps its configuration"),
        ("experiment=demo_token", "a resumed run keeps its configuration"),
        ("trainer.max_steps=0", "trainer.max_steps must be at least 1"),
        ("seed=8", "^seed was 7 when the run began and cannot be 8 now: its position in the data"),
        ("num_generations=4", "^num_generations was 8 when"),
        ("num_iterations=2", "^num_iterations was 1 when"),
        ("steps_per_generation=2", "^steps_per_generation was 1 when"),
        ("data.drop_last=true", "^data.drop_last was False when the run began and cannot be True"),
    ],
)
def test_a_resumed_run_refuses_what_it_cannot_change(run_dir, override, expected):
    with pytest.raises(UserError, match=expected):
        resumed_config(str(run_dir), [override])


def test_a_resumed_run_may_be_cut_into_passes_in_another_way(run_dir):
    config = resumed_config(str(run_dir), ["trainer.rows_per_device=32", "seed=7"])
    assert config.trainer.rows_per_device == 32


def test_resuming_what_is_not_a_run_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"config\.yaml not found; name the directory of a run"):
        resumed_config(str(tmp_path), [])


@pytest.mark.parametrize(
    "content", [b"seed: 7\ntrainer: {max_st", b"\xff\xfe", b"- 1\n", b"seed: many", b"sead: 7"]
)
def test_a_config_that_is_not_one_of_a_run_is_refused(run_dir, content):
    (run_dir / "config.yaml").write_bytes(content)
    with pytest.raises(UserError, match=r"^\S+config\.yaml: not a configuration[^\n]+$"):
        resumed_config(str(run_dir), [])
