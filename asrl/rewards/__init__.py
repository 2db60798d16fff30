"""This module is the only place that builds rewards from the config; importing it registers the built-ins.

The rewards need no torch, so that other trainers can use them:
``build_rewards({"accuracy": {}})["accuracy"]`` is a callable on (hypotheses, utterances).
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import asrl.rewards.accuracy
import asrl.rewards.hallucination
import asrl.rewards.hotword  # noqa: F401 - the three register themselves
from asrl.errors import UserError
from asrl.registry import nearest
from asrl.rewards.base import REWARDS, Reward, RewardFunction, WeightedReward, check_number

__all__ = ["REWARDS", "Reward", "RewardFunction", "WeightedReward", "build_rewards"]


def build_rewards(config: Mapping[str, Mapping[str, Any] | None]) -> dict[str, WeightedReward]:
    """The rewards that are switched on, by the name that the config gives them.

    Args:
        config: For each reward None (off) or its options. ``weight`` (1.0 if left out; 0 only logs it) and
            ``function`` are read here, the rest goes to the reward. ``function`` is a built-in reward's name
            (the key itself if left out), ``package.module:function`` for a function that scores, or
            ``package.module:Class`` for a class whose instances do.

    Raises:
        UserError: An entry is wrong, or no reward has a weight other than 0.
    """
    rewards = {name: _build(name, options) for name, options in config.items() if options is not None}
    if all(reward.weight == 0 for reward in rewards.values()):
        raise UserError(
            "reward: at least one reward needs a weight other than 0, but all are off or at 0: "
            f"{', '.join(config) or 'none is listed'}; try reward.accuracy.weight=1.0"
        )
    return rewards


def _build(name: str, options: Mapping[str, Any]) -> WeightedReward:
    if not isinstance(options, Mapping):
        raise UserError(
            f"reward.{name} must be a mapping of options or null, got {options!r}; try {{weight: 1.0}}"
        )
    keywords = dict(options)
    try:
        weight = check_number("weight", keywords.pop("weight", 1.0))
        function = _resolve(str(keywords.pop("function", name)), keywords)
    except UserError as error:
        raise UserError(f"reward.{name}: {error}") from error
    return WeightedReward(name=name, weight=weight, function=function)


def _resolve(path: str, options: Mapping[str, Any]) -> RewardFunction:
    """Turn a built-in's name or an import path, and the options, into the function that scores."""
    try:
        entry = REWARDS.get(path)
    except UserError as error:
        if ":" in path:
            raise
        raise UserError(f"{error} A reward of your own needs function: package.module:function") from error
    if not callable(entry):
        raise UserError(f"function must name a function or a class, got {entry!r} at {path!r}")
    if ":" in path and not inspect.isclass(entry):
        _check_options(entry, options, num_positional=2)
        return functools.partial(entry, **options)
    _check_options(entry, options, num_positional=0)
    function: RewardFunction = entry(**options)
    return function


def _check_options(entry: Callable[..., Any], options: Mapping[str, Any], *, num_positional: int) -> None:
    try:
        signature = inspect.signature(entry)
    except ValueError:  # compiled, without a signature: calling it is the only check there is
        return
    keywords = [
        parameter
        for parameter in list(signature.parameters.values())[num_positional:]
        if parameter.name != "is_truncated"
    ]
    is_open = any(parameter.kind is parameter.VAR_KEYWORD for parameter in keywords)
    names = [p.name for p in keywords if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    for option in options:
        if option not in names and not is_open:
            raise UserError(f"unknown option {option!r}{nearest(option, ['weight', 'function', *names])}")
    for parameter in keywords:
        if parameter.name in names and parameter.default is parameter.empty and parameter.name not in options:
            raise UserError(f"option {parameter.name!r} has no default and must be given")
