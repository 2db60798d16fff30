"""Start the real entry points and read what they wrote."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from safetensors.torch import load_file
from torch import Tensor

from asrl.checkpoint import list_checkpoints

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TIMEOUT = 600  # seconds; a hang is a failure. The first DeepSpeed engine compiles for a minute or two


def write_manifest(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


# What the launch files under configs/accelerate set, by backend.
BACKENDS = {
    "ddp": {},
    **{
        f"zero{stage}": {
            "ACCELERATE_USE_DEEPSPEED": "true",
            "ACCELERATE_DEEPSPEED_ZERO_STAGE": str(stage),
            "DS_ACCELERATOR": "cpu",
        }
        for stage in (1, 2, 3)
    },
    "fsdp2": {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_RESHARD_AFTER_FORWARD": "true"},
}


def tiny_run(model: str | Path, manifest: str | Path, run_dir: Path, *settings: str) -> list[str]:
    """Settings of a run on the tiny model in which every trained tensor has a gradient."""
    return [
        f"model.path={model}",
        "model.lora.start=continue",  # a fresh LoRA would leave its A without one
        f"data.train={manifest}",
        "data.dev=null",
        "data.test=null",
        "data.num_workers=0",
        "logger=none",
        "num_generations=4",
        "rollout.max_new_tokens=6",
        "reward.accuracy=null",
        "+reward.signal.function=toy_rewards:even_characters",
        "optim.num_warmup_steps=0",
        f"run_dir={run_dir}",
        *settings,
    ]


def start(
    arguments: list[str], *, num_processes: int = 1, script: str = "train.py", backend: str = "ddp"
) -> subprocess.Popen:
    """Start a script of the repository, under torchrun if there are several processes."""
    environment = (
        os.environ
        | BACKENDS[backend]
        | {
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": os.pathsep.join([str(HERE), str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
    )
    command = [sys.executable, str(ROOT / script), *arguments]
    if num_processes > 1:
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={num_processes}"]
        command = [sys.executable, *torchrun, str(ROOT / script), *arguments]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a process group of its own, to be signalled as a terminal does
    )


def finish(process: subprocess.Popen) -> SimpleNamespace:
    """Wait for a process; kill it if it hangs."""
    try:
        output, errors = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return SimpleNamespace(status=process.returncode, output=output, errors=errors)


@contextmanager
def restored_signals() -> Iterator[None]:
    """Put back the handlers that a run installs."""
    handlers = {name: signal.getsignal(name) for name in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for name, handler in handlers.items():
            signal.signal(name, handler)


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_metrics(run_dir: Path) -> list[dict]:
    return read_lines(run_dir / "metrics.jsonl")


def final_weights(run_dir: Path) -> dict[str, Tensor]:
    return load_file(list_checkpoints(run_dir)[-1] / "trainable.safetensors")
