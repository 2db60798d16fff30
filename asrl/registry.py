"""This module is the only place that turns a name from the config into a Python object."""

import difflib
import importlib
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from asrl.errors import UserError

T = TypeVar("T")


def nearest(name: str, candidates: Iterable[str]) -> str:
    """Word the closest candidates as a suggestion, ``; did you mean 'beta'?``; list few if none is close."""
    known = sorted(candidates)
    close = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
    if close:
        return "; did you mean " + " or ".join(repr(match) for match in close) + "?"
    return "; known: " + ", ".join(known) if len(known) <= 12 else ""


def import_object(path: str) -> object:
    """Import ``package.module:attribute``.

    Raises:
        UserError: The path has no colon, or the module or the attribute does not exist.
    """
    module_name, _, attribute = path.partition(":")
    if not attribute:
        raise UserError(f"a custom function is named package.module:function, got {path!r}")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise  # a dependency inside the user's module is missing: their traceback says which
        raise UserError(f"{path!r}: there is no module {module_name!r} on the Python path") from error
    if not hasattr(module, attribute):
        raise UserError(
            f"{path!r}: module {module_name!r} has no {attribute!r}{nearest(attribute, vars(module))}"
        )
    return getattr(module, attribute)


class Registry(Generic[T]):
    """Built-in objects by name; anything else is looked up as ``package.module:attribute``."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that files its argument under ``name``."""

        def add(entry: T) -> T:
            assert name not in self._entries, f"{self.kind} {name!r} is registered twice"
            self._entries[name] = entry
            return entry

        return add

    def get(self, name: str) -> T:
        """Return the entry called ``name``.

        Raises:
            UserError: No built-in has this name and it is not an importable path.
        """
        if name in self._entries:
            return self._entries[name]
        if ":" in name:
            return import_object(name)  # type: ignore[return-value]
        raise UserError(f"unknown {self.kind} {name!r}{nearest(name, self._entries)}")
