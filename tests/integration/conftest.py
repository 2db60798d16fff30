"""Run the real entry points, in processes of their own, on a tiny random model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TIMEOUT = 300  # seconds; a hang is a failure


@pytest.fixture(scope="session")
def manifest(tmp_path_factory) -> Path:
    """Twelve short utterances of the demo."""
    lines = (ROOT / "demo" / "train.jsonl").read_text(encoding="utf-8").splitlines()[:12]
    path = tmp_path_factory.mktemp("data") / "train.jsonl"
    rows = [json.loads(line) for line in lines]
    for row in rows:
        row["audio"] = str(ROOT / "demo" / row["audio"])
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def launch(arguments: list[str], *, num_processes: int = 1, script: str = "train.py") -> subprocess.CompletedProcess:
    """Run a script of the repository, under torchrun if there are several processes."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}
    command = [sys.executable, script, *arguments]
    if num_processes > 1:
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={num_processes}"]
        command = [sys.executable, *torchrun, script, *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )


@pytest.fixture
def train(manifest, golden):
    """Run train.py on the tiny model; the run must succeed."""

    def run(run_dir: Path, *overrides: str, num_processes: int = 1) -> None:
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
            "trainer.rows_per_device": 12,
            "trainer.max_steps": 4,
            "trainer.save_every": 0,
            "run_dir": run_dir,
        }
        given = dict(override.split("=", 1) for override in overrides)
        arguments = [f"{key}={value}" for key, value in (defaults | given).items()]
        result = launch(arguments, num_processes=num_processes)
        assert result.returncode == 0, result.stderr[-3000:]

    return run
