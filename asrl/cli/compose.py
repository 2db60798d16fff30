"""This module is the only place that turns command-line words into a checked configuration."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from asrl.config import CONFIG_DIRECTORY, SCHEMAS, TrainConfig, register_schemas
from asrl.config_checks import check_values
from asrl.errors import UserError
from asrl.registry import nearest

HYDRA_FLAGS = (
    *(
        "--help",
        "--hydra-help",
        "--version",
        "--cfg",
        "--resolve",
        "--package",
        "--run",
        "--multirun",
        "--info",
    ),
    *("--config-path", "--config-name", "--config-dir", "--shell-completion", "--experimental-rerun"),
)
# What the position of a run in its data depends on.
FIXED = ("seed", "num_generations", "num_iterations", "steps_per_generation", "data.drop_last")


def known_keys(config: DictConfig, prefix: str = "") -> Iterator[str]:
    """Dotted names of all settings and of the sections that hold them."""
    for key in config:
        yield f"{prefix}{key}"
        if OmegaConf.is_dict(config) and not OmegaConf.is_missing(config, key):
            child = config._get_node(key)
            if isinstance(child, DictConfig) and not child._is_none():
                yield from known_keys(child, f"{prefix}{key}.")


def config_groups(name: str) -> dict[str, list[str]]:
    """Groups of settings of a command, each with the names of its files."""
    defaults = OmegaConf.load(CONFIG_DIRECTORY / f"{name}.yaml").defaults
    keys = [str(key) for entry in defaults if OmegaConf.is_dict(entry) for key in entry]
    folders = {key: CONFIG_DIRECTORY / key for key in keys if not key.startswith("override ")}
    return {key: sorted(path.stem for path in folder.glob("*.yaml")) for key, folder in folders.items()}


def compose_config(name: str, overrides: Sequence[str]) -> DictConfig:
    """Compose ``configs/<name>.yaml`` with the overrides, as Hydra will, and check every value.

    Raises:
        UserError: In one line, with the nearest name that exists.
    """
    if not CONFIG_DIRECTORY.is_dir():
        raise UserError(f"{CONFIG_DIRECTORY} not found; install asrl from its repository: pip install -e .")
    register_schemas()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONFIG_DIRECTORY), version_base="1.3"):
        try:
            composed = OmegaConf.to_container(compose(name, overrides=list(overrides)))
            # Merged into the schema once more: `+key=value` would otherwise add anything.
            config = OmegaConf.merge(OmegaConf.structured(SCHEMAS[name]), composed)
            OmegaConf.to_container(config, resolve=True)  # raises where an interpolation leads nowhere
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            keys = [*config_groups(name), *known_keys(compose(name))]
            if "Config group override must be" in str(error):
                groups = [word for word in overrides if (CONFIG_DIRECTORY / word.split("=")[0]).is_dir()]
                raise UserError(f"{groups[-1]}: a group takes the name of a file in its folder") from error
            raise UserError(_explain(error, keys)) from error
    check_values(config)
    return config


def _explain(error: Exception, keys: list[str]) -> str:
    """Word Hydra's error in one line."""
    messages = []
    cause: BaseException | None = error
    while cause is not None:
        messages.append(str(cause))
        cause = cause.__cause__
    text = "\n".join(messages)
    if match := re.search(r"Key '([^']+)' (?:is not in struct|not in '\w+')\s+full_key: (\S+)", text):
        return _unknown(match[2], keys)
    if (
        match := re.search(r"Could not (?:override|delete from config\.) '([^']+)'", text)
    ) and "full_key" not in text:
        return _unknown(match[1], keys)
    if match := re.search(r"Could not find '([^']+)/([^']+)'", text):
        options = [path.stem for path in (CONFIG_DIRECTORY / match[1]).glob("*.yaml")]
        file = f"configs/{match[1]}/{match[2]}.yaml"
        return f"{match[1]}={match[2]}: there is no {file}{nearest(match[2], options)}"
    if match := re.search(r"^(.*?)\n\s+full_key: (\S+)", messages[-1], re.DOTALL):
        return f"{match[2]}: {match[1].splitlines()[0]}"
    return " ".join(messages[-1].split())


def _unknown(key: str, keys: list[str]) -> str:
    parts = key.split(".")
    if parts[0] == "reward" and len(parts) > 1 and ".".join(parts[:2]) not in keys:
        example = f"+reward.{parts[1]}.weight=1"
        return f"unknown setting {key!r}; a reward is added to those there are with a plus, as in {example}"
    return f"unknown setting {key!r}{nearest(key, keys)}"


def _check_dashes(name: str, arguments: Sequence[str]) -> None:
    """Refuse ``--max-steps=3`` and ``--max_steps 3``, which Hydra answers with its own usage."""
    for place, argument in enumerate(arguments):
        flag, _, value = argument.partition("=")
        if not flag.startswith("--") or flag in HYDRA_FLAGS:
            continue
        word = flag[2:].replace("-", "_")
        keys = [
            key for key in known_keys(compose_config(name, [])) if key.split(".")[-1] == word or key == word
        ]
        value = value or next(iter(arguments[place + 1 : place + 2]), "...")
        hint = f": {keys[0]}={value}" if keys else f"; `asrl {name} --help` lists them"
        raise UserError(f"{argument}: settings are key=value without dashes{hint}")


def is_sweep(overrides: Sequence[str]) -> bool:
    """Whether an override lists several values, for Hydra's multirun."""
    return any(
        override.is_sweep_override() for override in OverridesParser.create().parse_overrides(list(overrides))
    )


def check_command_line(name: str, arguments: Sequence[str]) -> None:
    """Check the overrides of a command line before Hydra sees them, so that mistakes end in one line.

    Raises:
        UserError: As ``compose_config``.
    """
    _check_dashes(name, arguments)
    overrides = [argument for argument in arguments if not argument.startswith("-")]
    for override in overrides:
        if not re.match(r"[+~]*[\w@/.:]+(=|$)", override):
            raise UserError(f"not a setting of the form key=value: {override!r}")
    try:
        sweeps = is_sweep(overrides)
    except HydraException as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"not a setting of the form key=value: {reason}") from error
    if sweeps:
        # An experiment may switch multirun on by itself.
        if not {"-m", "--multirun"} & set(arguments) and not any(
            o.startswith("experiment=") for o in overrides
        ):
            raise UserError(
                "a setting with several values is a sweep of runs: add --multirun, or quote the value"
            )
        return
    if missing := sorted(OmegaConf.missing_keys(compose_config(name, overrides))):
        raise UserError(f"{missing[0]} has no default and must be given: {missing[0]}=...")


def resumed_config(run_dir: str, overrides: Sequence[str]) -> DictConfig:
    """The configuration that a run was started with, with the settings of this command line on top.

    Raises:
        UserError: There is no such run, or this command line switches a whole group or what the run's
            position in the data depends on.
    """
    path = Path(run_dir) / "config.yaml"
    if not path.is_file():
        raise UserError(f"resume={run_dir}: {path} not found; name the directory of a run")
    try:
        config = OmegaConf.merge(OmegaConf.structured(TrainConfig), OmegaConf.load(path))
    except (YAMLError, OmegaConfBaseException, ValueError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path}: not a configuration of this version ({reason}); start a new run") from error
    started = config
    for override in overrides:
        key = override.lstrip("+~").split("=")[0]
        if (CONFIG_DIRECTORY / key).is_dir():
            raise UserError(
                f"{override}: a resumed run keeps its configuration; override single settings only"
            )
    config = OmegaConf.merge(config, OmegaConf.from_dotlist([o.lstrip("+") for o in overrides]))
    check_values(config)
    for key in FIXED:
        before, now = OmegaConf.select(started, key), OmegaConf.select(config, key)
        if before != now:
            raise UserError(
                f"{key} was {before} when the run began and cannot be {now} now: its position in the data "
                "would mean something else; leave it, or start a new run"
            )
    return config
