"""Train for some hundred steps and check that neither memory nor the number of open files grows.

Every ten steps, memory and open files of the run and its loader processes are read from /proc. A checkpoint
is saved every 50 steps and a small set is transcribed every 100, so that those count too.

Example:
    python scripts/long_run.py
    python scripts/long_run.py --steps 2000 --limit 2 --csv growth.csv
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import psutil
from tqdm import tqdm

from asrl.errors import UserError, exit_with_one_line

ROOT = Path(__file__).resolve().parents[1]
READ_EVERY = 10
SETTLED = 100  # steps, after which nothing should grow
WINDOW = 5  # readings whose median is compared
IN_FLIGHT = 4  # open files, more or less: batches on their way from a loader process
DEV_UTTERANCES = 16
PATIENCE = 300  # seconds without a new line of metrics
SETTINGS = {
    "data.test": "null",
    "data.num_workers": 1,
    "logger": "none",
    "trainer.rows_per_device": 16,
    "trainer.save_every": 50,
    "trainer.eval_every": 100,
}


@dataclass(frozen=True)
class Reading:
    """What a run and its children use.

    Attributes:
        step: Optimizer steps done.
        memory: Of the run itself, in MiB (resident).
        files: Open in the run and its children.
        processes: The run and its children.
    """

    step: int
    memory: float
    files: int
    processes: int


class Growth(NamedTuple):
    """A value when the run had settled, and at its end."""

    first: float
    last: float


def start(folder: Path, num_steps: int) -> subprocess.Popen:
    """Start a short run of the demo."""
    settings = SETTINGS | {
        "data.dev": write_dev(folder),
        "run_dir": folder / "run",
        "trainer.max_steps": num_steps,
    }
    with (folder / "log").open("w", encoding="utf-8") as log:
        return subprocess.Popen(
            [sys.executable, str(ROOT / "train.py"), *(f"{key}={value}" for key, value in settings.items())],
            cwd=ROOT,
            # oneDNN keeps its kernels of the last 1024 shapes: that ends, but would hide what does not.
            env=os.environ | {"OMP_NUM_THREADS": "1", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "0"},
            stdout=log,
            stderr=log,
        )


def write_dev(folder: Path) -> Path:
    """Write a manifest of the first utterances of the demo's dev set."""
    lines = (ROOT / "demo" / "dev.jsonl").read_text(encoding="utf-8").splitlines()[:DEV_UTTERANCES]
    rows = [row | {"audio": str(ROOT / "demo" / row["audio"])} for row in map(json.loads, lines)]
    path = folder / "dev.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def read_usage(process_id: int, step: int) -> Reading:
    """Read what the run uses at this moment."""
    run = psutil.Process(process_id)
    num_files, family = 0, [run, *run.children(recursive=True)]
    for member in family:
        try:
            num_files += member.num_fds()
        except psutil.NoSuchProcess:  # a loader process that ended this moment
            continue
    return Reading(step, run.memory_info().rss / 2**20, num_files, len(family))


def follow(process: subprocess.Popen, folder: Path, num_steps: int) -> Iterator[Reading]:
    """Yield a reading every few steps, the last before the run ends.

    Raises:
        UserError: The run ended early or stood still.
    """
    metrics = folder / "run" / "metrics.jsonl"
    due, deadline = READ_EVERY, time.monotonic() + PATIENCE
    while due < num_steps:
        lines = metrics.read_text(encoding="utf-8").split("\n")[:-1] if metrics.exists() else []
        step = json.loads(lines[-1])["step"] if lines else 0
        if step >= due:
            yield read_usage(process.pid, step)
            due, deadline = step - step % READ_EVERY + READ_EVERY, time.monotonic() + PATIENCE
        elif process.poll() is not None or time.monotonic() > deadline:
            log = (folder / "log").read_text(encoding="utf-8")
            raise UserError(f"the run ended or stood still after step {step}: {log[-500:]!r}")
        time.sleep(0.05)


def growth(readings: Sequence[Reading], name: str) -> Growth:
    """Median of the first and of the last few readings once the run has settled."""
    values = [getattr(reading, name) for reading in readings if reading.step >= SETTLED]
    return Growth(statistics.median(values[:WINDOW]), statistics.median(values[-WINDOW:]))


def write_csv(path: Path, readings: Sequence[Reading]) -> None:
    """Write every reading."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(asdict(readings[0])))
        writer.writeheader()
        writer.writerows(map(asdict, readings))


def main() -> None:
    """Parse the command line, run and compare.

    Raises:
        UserError: Something grew.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=500, help="optimizer steps, at least 300")
    parser.add_argument(
        "--limit", type=float, default=3.0, help="growth of memory that is allowed, in per cent"
    )
    parser.add_argument("--csv", type=Path, help="also write every reading here")
    options = parser.parse_args()
    if options.steps < 300:
        raise UserError(f"--steps must be at least 300, got {options.steps}")
    with tempfile.TemporaryDirectory() as temporary:
        process = start(Path(temporary), options.steps)
        try:
            readings = list(tqdm(follow(process, Path(temporary), options.steps), unit="reading"))
        finally:
            process.terminate()
            process.wait()
    if options.csv:
        write_csv(options.csv, readings)
    memory, files = growth(readings, "memory"), growth(readings, "files")
    percent = 100 * (memory.last / memory.first - 1)
    first, last = SETTLED, readings[-1].step
    print(
        f"memory: {memory.first:.1f} MiB at step {first}, {memory.last:.1f} at step {last}, {percent:+.2f} %"
    )
    print(f"open files: {files.first:.0f} at step {first}, {files.last:.0f} at step {last}")
    if percent > options.limit or files.last > files.first + IN_FLIGHT:
        raise UserError(
            f"the run grew; at most {options.limit:g} % of memory and {IN_FLIGHT} open files are allowed"
        )


if __name__ == "__main__":
    exit_with_one_line(main)
