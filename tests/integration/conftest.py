"""Run the real entry points on a tiny random model, in this process or in processes of their own."""

import json
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from runs import ROOT, finish, restored_signals, start, write_manifest

from asrl.cli import train as train_command
from asrl.cli.compose import compose_config
from asrl.errors import exit_with_one_line


@pytest.fixture(scope="session")
def rows() -> list[dict]:
    """Manifest lines of twelve short utterances of the demo."""
    lines = (ROOT / "demo" / "train.jsonl").read_text(encoding="utf-8").splitlines()[:12]
    return [row | {"audio": str(ROOT / "demo" / row["audio"])} for row in map(json.loads, lines)]


@pytest.fixture(scope="session")
def manifest(tmp_path_factory, rows) -> Path:
    return write_manifest(tmp_path_factory.mktemp("data") / "train.jsonl", rows)


@pytest.fixture(scope="session")
def arguments(manifest, golden):
    """The command line of a short run on the tiny model; overrides replace and add settings."""

    def build(run_dir: Path, *overrides: str) -> list[str]:
        defaults = {
            "model.path": golden / "FireRedASR-LLM-tiny",
            "data.train": manifest,
            "data.dev": "null",
            "data.test": "null",
            "data.num_workers": 0,
            "logger": "none",
            "logger.completions_every": 1,
            "num_generations": 4,
            "rollout.max_new_tokens": 6,
            "reward.accuracy.weight": 0.5,
            "+reward.signal.function": "toy_rewards:even_characters",
            "optim.num_warmup_steps": 0,
            "trainer.rows_per_device": 12,
            "trainer.max_steps": 2,
            "trainer.save_every": 0,
            "run_dir": run_dir,
        }
        given = dict(override.split("=", 1) for override in overrides)
        return [f"{key}={value}" for key, value in (defaults | given).items()]

    return build


@pytest.fixture
def train(arguments):
    """Run train.py in processes of its own; the run must succeed."""

    def run(run_dir: Path, *overrides: str, num_processes: int = 1, backend: str = "ddp") -> SimpleNamespace:
        words = arguments(run_dir, *overrides)
        result = finish(start(words, num_processes=num_processes, backend=backend))
        assert result.status == 0, result.errors[-3000:]
        return result

    return run


@pytest.fixture(scope="session")
def train_here(arguments):
    """Run a training in this process, which saves the start-up; return its figures."""

    def run(run_dir: Path, *overrides: str) -> dict:
        with restored_signals():
            return train_command.run(compose_config("train", arguments(run_dir, *overrides)))

    return run


@pytest.fixture
def command(monkeypatch, capfd):
    """Run ``asrl COMMAND`` with a whole command line in this process, as a shell would see it."""

    def run(name: str, *words: str) -> SimpleNamespace:
        monkeypatch.setattr(sys, "argv", ["asrl", *words])
        status = 0
        capfd.readouterr()
        try:
            with restored_signals():
                exit_with_one_line(import_module(f"asrl.cli.{name}").main)
        except SystemExit as end:
            status = end.code
        captured = capfd.readouterr()
        return SimpleNamespace(status=status, output=captured.out, errors=captured.err)

    return run
