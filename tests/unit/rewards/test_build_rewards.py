"""From the config to checked values; custom rewards live in a module written by the test."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asrl.errors import UserError
from asrl.rewards import REWARDS, build_rewards
from asrl.utterance import Utterance

UTTERANCE = Utterance("utt1", "utt1.wav", "你好", hotwords=("你好",), columns={"city": "北京"})

CUSTOM = """
def size(hypotheses, utterances):
    return [len(hypothesis) for hypothesis in hypotheses]

def city(hypotheses, utterances, *, bonus, malus=0.0):
    return [bonus if u.columns["city"] in h else malus for h, u in zip(hypotheses, utterances)]

def cut(hypotheses, utterances, is_truncated):
    return [-1.0 if is_cut else None for is_cut in is_truncated]

def everything(hypotheses, utterances, **keywords):
    return [float(len(keywords))] * len(hypotheses)

class Constant:
    def __init__(self, value):
        self.value = value

    def __call__(self, hypotheses, utterances):
        return [self.value] * len(hypotheses)

number = 3
"""


@pytest.fixture(autouse=True)
def _custom_module(tmp_path, monkeypatch):
    (tmp_path / "custom_rewards.py").write_text(CUSTOM)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("custom_rewards", None)


def score(config, hypotheses=("你好",), **keywords):
    rewards = build_rewards(config)
    return {
        name: reward(list(hypotheses), [UTTERANCE] * len(hypotheses), **keywords)
        for name, reward in rewards.items()
    }


def test_built_in_rewards_score_hypotheses():
    config = {"accuracy": {"weight": 2}, "hotword": {"weight": 0.5}, "hallucination": {}}
    assert score(config, ["你好", "你"]) == {
        "accuracy": [1.0, 0.5],
        "hotword": [1.0, 0.0],
        "hallucination": [0.0, 0.0],
    }
    assert {name: reward.weight for name, reward in build_rewards(config).items()} == {
        "accuracy": 2.0,
        "hotword": 0.5,
        "hallucination": 1.0,
    }


def test_options_reach_the_reward():
    assert score({"accuracy": {"floor": None}}, ["啊" * 10]) == {"accuracy": [-4.0]}


def test_one_built_in_under_two_names():
    config = {"hotword": {}, "hotword_recall": {"function": "hotword", "form": "recall"}}
    assert score(config, ["你"]) == {"hotword": [0.0], "hotword_recall": [0.0]}


def test_null_switches_a_reward_off():
    assert list(build_rewards({"accuracy": {}, "hotword": None})) == ["accuracy"]


def test_weight_zero_only_logs():
    rewards = build_rewards({"accuracy": {}, "hotword": {"weight": 0}})
    assert rewards["hotword"].weight == 0.0
    assert rewards["hotword"](["你好"], [UTTERANCE]) == [1.0]


@pytest.mark.parametrize("config", [{}, {"accuracy": None}, {"accuracy": {"weight": 0}, "hotword": None}])
def test_no_active_reward_is_refused(config):
    with pytest.raises(UserError, match="at least one reward needs a weight other than 0"):
        build_rewards(config)


def test_a_custom_function_needs_only_two_arguments():
    assert score({"size": {"function": "custom_rewards:size"}}, ["你好", ""]) == {"size": [2.0, 0.0]}


def test_a_custom_function_sees_columns_and_options():
    config = {"city": {"function": "custom_rewards:city", "bonus": 2.0, "malus": -1.0}}
    assert score(config, ["北京你好", "你好"]) == {"city": [2.0, -1.0]}


def test_truncation_goes_only_to_those_who_take_it():
    config = {
        "cut": {"function": "custom_rewards:cut"},
        "everything": {"function": "custom_rewards:everything", "option": 1},
        "size": {"function": "custom_rewards:size"},
    }
    # everything gets its option and is_truncated
    assert score(config, ["你好", "你"], is_truncated=[True, False]) == {
        "cut": [-1.0, None],
        "everything": [2.0, 2.0],
        "size": [2.0, 1.0],
    }
    assert score({"cut": config["cut"]}) == {"cut": [None]}  # not said: nothing was cut


def test_a_class_is_built_with_the_options():
    assert score({"constant": {"function": "custom_rewards:Constant", "value": 0.25}}) == {"constant": [0.25]}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"acuracy": {}},
            r"reward\.acuracy: unknown reward 'acuracy'; did you mean 'accuracy'\?.*package\.module:",
        ),
        ({"accuracy": {"flor": 0.0}}, r"reward\.accuracy: unknown option 'flor'; did you mean 'floor'"),
        ({"accuracy": {"wieght": 0.0}}, r"reward\.accuracy: unknown option 'wieght'; did you mean 'weight'"),
        ({"accuracy": {"shape": "exq"}}, r"reward\.accuracy: unknown shape 'exq'; did you mean 'exp'"),
        (
            {"accuracy": {"weight": float("nan")}},
            r"reward\.accuracy: weight must be a finite number, got nan",
        ),
        ({"accuracy": {"weight": "1"}}, r"reward\.accuracy: weight must be a finite number, got '1'"),
        ({"accuracy": {"weight": None}}, r"reward\.accuracy: weight must be a finite number, got None"),
        ({"accuracy": {"weight": True}}, r"reward\.accuracy: weight must be a finite number, got True"),
        ({"x": {"function": "custom_rewards:sise"}}, r"reward\.x: .*no 'sise'; did you mean 'size'"),
        ({"x": {"function": "no_such_module:f"}}, r"reward\.x: .*no module 'no_such_module'"),
        (
            {"x": {"function": "custom_rewards:number"}},
            r"reward\.x: function must name a function or a class, got 3",
        ),
        ({"x": {"function": "custom_rewards:size", "a": 1}}, r"reward\.x: unknown option 'a'"),
        (
            {"x": {"function": "custom_rewards:cut", "is_truncated": 1}},
            r"reward\.x: unknown option 'is_truncated'",
        ),
        (
            {"x": {"function": "custom_rewards:city"}},
            r"reward\.x: option 'bonus' has no default and must be given",
        ),
        ({"x": {"function": "custom_rewards:Constant"}}, r"reward\.x: option 'value' has no default"),
    ],
)
def test_mistakes_in_the_config_name_the_key_and_the_way_out(config, message):
    with pytest.raises(UserError, match=message) as caught:
        build_rewards(config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "entry", ["{'accuracy': 1.0}", "{'accuracy': {'floor': 'low'}}", "{'accuracy': {'shape': []}}"]
)
def test_values_of_the_wrong_type_are_user_errors(entry):
    # In a fresh interpreter, because the type checks of the test suite would speak first.
    code = f"""
from asrl.errors import UserError
from asrl.rewards import build_rewards
try:
    build_rewards({entry})
except UserError as error:
    assert str(error).startswith("reward.accuracy"), error
else:
    raise SystemExit("accepted")
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_built_in_is_listed():
    assert {name for name in ("accuracy", "hotword", "hallucination") if REWARDS.get(name)} == {
        "accuracy",
        "hotword",
        "hallucination",
    }


BOUNDS = {"accuracy": (-1, 1), "exp": (-1, 1), "hotword": (0, 1), "f1": (0, 1), "hallucination": (-1, 0)}
ALL = build_rewards(
    {
        "accuracy": {},
        "exp": {"function": "accuracy", "shape": "exp"},
        "hotword": {},
        "f1": {"function": "hotword", "form": "f1"},
        "hallucination": {},
    }
)
ANY_TEXT = st.one_of(
    st.text(st.characters(exclude_categories=())),
    st.text("你好a 3.'\x00\ud800\ufffd\u0301"),
    st.tuples(st.text("你好a\x00\udfff", max_size=4), st.integers(0, 500)).map(
        lambda pair: pair[0] * pair[1]
    ),
)


def assert_bounded(hypothesis: str, utterance: Utterance) -> None:
    for name, reward in ALL.items():
        (value,) = reward([hypothesis], [utterance], is_truncated=[True])
        assert value is None or BOUNDS[name][0] <= value <= BOUNDS[name][1]


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(ANY_TEXT, ANY_TEXT, ANY_TEXT)
def test_any_string_is_a_legal_hypothesis(hypothesis, transcript, hotword):
    assert_bounded(
        hypothesis, Utterance("u", "u.wav", transcript, hotwords=(hotword, "你好"), distractors=("a b",))
    )


@pytest.mark.parametrize("unit", ["你", "你好", "\x00", "\ud800", "abc ", "a", "‍", "\u0301", "'.", "3."])
def test_a_hypothesis_of_a_hundred_thousand_characters(unit):
    assert_bounded((unit * 100_000)[:100_000], UTTERANCE)
