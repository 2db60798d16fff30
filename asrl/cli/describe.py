"""This module is the only place that words ``--help`` of the commands that take settings."""

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from omegaconf import MISSING, OmegaConf

from asrl import config
from asrl.cli.compose import compose_config, config_groups
from asrl.config_checks import CHOICES

USAGE = {
    "train": "accelerate launch train.py [KEY=VALUE ...]",
    "sft": "asrl sft model.path=DIR data.train=MANIFEST [KEY=VALUE ...]",
}


def describe(name: str, arguments: Sequence[str]) -> str:
    """List the groups and the settings of a command, with the values that its other words give them.

    Raises:
        UserError: One of the words is wrong.
    """
    overrides = [argument for argument in arguments if not argument.startswith("-")]
    values = OmegaConf.to_container(compose_config(name, overrides))
    groups = [f"  {group}={' | '.join(options)}" for group, options in config_groups(name).items()]
    heading = "Groups of settings (configs/GROUP/NAME.yaml):"
    lines = ["usage: " + USAGE[name], *(["", heading, *groups] if groups else [])]
    return "\n".join(
        [*lines, "", "Settings, with their values:", *_section(config.SCHEMAS[name], values, "")]
    )


def _section(schema: Any, values: Mapping[str, Any], prefix: str) -> Iterator[str]:
    """Lines of a dataclass: its own settings first, then those of the dataclasses in it."""
    yield f"\n# {(schema.__doc__ or '').splitlines()[0]}"
    comments = _comments()
    nested = [field for field in fields(schema) if is_dataclass(field.default_factory)]
    for field in fields(schema):
        if field not in nested:
            key, value = prefix + field.name, values[field.name]
            comment = comments[schema.__name__, field.name] or " | ".join(CHOICES.get(key, ()))
            for name, leaf in _leaves(key, value):
                yield f"{name} = {leaf}".ljust(46) + f"  # {comment}" if comment else f"{name} = {leaf}"
    for field in nested:
        yield from _section(field.default_factory, values[field.name], f"{prefix}{field.name}.")


def _leaves(key: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for name, child in value.items():
            yield from _leaves(f"{key}.{name}", child)
    else:
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield key, "(to be given)" if value == MISSING else shown


def _comments() -> dict[tuple[str, str], str]:
    """What the source of the schema says behind ``#`` of every field."""
    source = Path(config.__file__).read_text(encoding="utf-8")
    lines = source.splitlines()
    return {
        (node.name, statement.target.id): lines[statement.lineno - 1].partition("  # ")[2]
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }
