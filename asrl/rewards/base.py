"""This module is the only place that says what a reward is and checks what comes back from one."""

import inspect
import math
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Protocol, TypeAlias, TypeVar

from asrl.errors import UserError
from asrl.registry import Registry, nearest
from asrl.utterance import Utterance

T = TypeVar("T")

# What a user writes: (hypotheses, utterances), and is_truncated= if it asks for that, to one value per row.
RewardFunction: TypeAlias = Callable[..., Any]

# Built-in rewards: each entry takes the reward's options and returns the function that scores.
REWARDS: Registry[Callable[..., RewardFunction]] = Registry("reward")


class Reward(Protocol):
    """Scores hypotheses, one value per row; None where the reward does not apply to the row.

    Whether it applies may depend on the utterance only: a hypothesis that made it None would escape it.
    Any string is a legal hypothesis. ``is_truncated`` says which were cut at the token limit; None: none was.
    """

    def __call__(
        self,
        hypotheses: Sequence[str],
        utterances: Sequence[Utterance],
        *,
        is_truncated: Sequence[bool] | None = None,
    ) -> list[float | None]: ...


@dataclass(frozen=True)
class WeightedReward:
    """A reward function, checked, and its weight in the sum of rewards.

    Calling it gives the *unweighted* rewards.

    Attributes:
        name: Its key in the config, for metrics and error messages.
        weight: Factor in the sum; 0 only logs the reward.
        function: Called as ``function(hypotheses, utterances)``, and with ``is_truncated=`` if it takes that.
    """

    name: str
    weight: float
    function: RewardFunction
    is_given_truncation: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_given_truncation", _takes_keyword(self.function, "is_truncated"))

    def __call__(
        self,
        hypotheses: Sequence[str],
        utterances: Sequence[Utterance],
        *,
        is_truncated: Sequence[bool] | None = None,
    ) -> list[float | None]:
        """Score one hypothesis per row.

        Raises:
            UserError: The function failed, or did not return one finite number or None per row.
        """
        truncated = [False] * len(hypotheses) if is_truncated is None else is_truncated
        assert len(hypotheses) == len(utterances) == len(truncated)
        try:
            values = self._call(hypotheses, utterances, truncated)
        except Exception as error:  # it is the user's code: whatever it raises is the user's to fix
            raise self._failure(error, hypotheses, utterances, truncated) from error
        if not isinstance(values, list) or len(values) != len(hypotheses):
            got = f"{len(values)} values" if isinstance(values, list) else _shorten(repr(values))
            raise UserError(
                f"reward.{self.name}: a reward returns one float or None per row, got {got} for "
                f"{len(hypotheses)} rows; return a list as long as the hypotheses"
            )
        return [self._checked(*row) for row in zip(values, hypotheses, utterances, strict=True)]

    def _call(
        self, hypotheses: Sequence[str], utterances: Sequence[Utterance], truncated: Sequence[bool]
    ) -> object:
        """Call the function; an array or an iterator becomes a list."""
        options = {"is_truncated": truncated} if self.is_given_truncation else {}
        returned = self.function(hypotheses, utterances, **options)
        is_listed = isinstance(returned, Iterable) and not isinstance(returned, str | bytes | Mapping | Set)
        return list(returned) if is_listed else returned

    def _failure(
        self,
        error: Exception,
        hypotheses: Sequence[str],
        utterances: Sequence[Utterance],
        truncated: Sequence[bool],
    ) -> UserError:
        """The error to raise for one of the function's own: names the first row that it fails on."""
        rows = f"{len(hypotheses)} rows together, though for none of them alone"
        for hypothesis, utterance, is_cut in zip(hypotheses, utterances, truncated, strict=True):
            try:
                self._call([hypothesis], [utterance], [is_cut])
            except Exception as single:  # as above
                error, rows = single, _describe(hypothesis, utterance)
                break
        frame = traceback.extract_tb(error.__traceback__)[-1]
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return UserError(
            f"reward.{self.name}: the function failed with {_shorten(reason)} at "
            f"{frame.filename}:{frame.lineno} for {rows}; any string is a legal hypothesis: fix the function"
        )

    def _checked(self, value: object, hypothesis: str, utterance: Utterance) -> float | None:
        if value is None:
            return None
        if isinstance(value, Real) and math.isfinite(value):
            return float(value)
        raise UserError(
            f"reward.{self.name}: values must be finite floats, or None where the reward does not apply; "
            f"got {_shorten(repr(value))} for {_describe(hypothesis, utterance)}"
        )


def _describe(hypothesis: str, utterance: Utterance) -> str:
    return f"utterance {utterance.key!r}, hypothesis {_shorten(hypothesis)!r}"


def _shorten(text: str) -> str:
    return text if len(text) <= 80 else text[:80] + "…"


def _takes_keyword(function: RewardFunction, name: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # compiled functions may have no signature: they get the two arguments
        return False
    return any(parameter.name == name or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def check_number(name: str, value: object) -> float:
    """Return the option ``name`` as a float.

    Raises:
        UserError: It is not a finite number.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise UserError(
            f"{name} must be a finite number, got {value!r}; write it without quotes, such as 1.0"
        )
    return float(value)


def check_choice(name: str, value: object, choices: Mapping[str, T]) -> T:
    """Return what the option ``name`` chooses.

    Raises:
        UserError: It is not one of the choices.
    """
    if not isinstance(value, str) or value not in choices:
        raise UserError(f"unknown {name} {value!r}{nearest(str(value), choices)}")
    return choices[value]
