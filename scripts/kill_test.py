"""Kill a short run again and again, resume it each time, and compare it with one that was left alone.

Every kill is a ``kill -9``, of one rank and of all processes in turn, at a random moment: while the run
starts, trains or saves. In the end metrics, transcripts and weights must be the same, byte for byte.

Example:
    python scripts/kill_test.py --kills 20
    python scripts/kill_test.py --kills 20 --num-processes 2 --json kills.json
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from asrl.checkpoint import find_checkpoint, list_checkpoints
from asrl.errors import UserError, exit_with_one_line

ROOT = Path(__file__).resolve().parents[1]
STEPS_PER_KILL = 6
ROWS_PER_STEP = 16
PATIENCE = 300  # seconds without a new line of metrics
SETTINGS = {
    "data.dev": "null",
    "data.test": "null",
    "data.num_workers": 1,
    "logger": "none",
    "logger.completions_every": 1,
    "dropout": "true",
    "old_logps": "recompute",
    "num_iterations": 2,
    "trainer.save_every": 2,
}


@dataclass(frozen=True)
class Kill:
    """One kill and what it cost.

    Attributes:
        killed: ``one rank`` or ``all``.
        moment: ``start`` or ``training``.
        step: Optimizer steps that had been written down.
        resumed: Step of the checkpoint that the run went on from; 0: the beginning.
        was_saving: A checkpoint was half written.
    """

    killed: str
    moment: str
    step: int
    resumed: int
    was_saving: bool

    @property
    def lost(self) -> int:
        """Steps to be done again."""
        return self.step - self.resumed


def start(words: Sequence[str], num_processes: int, log: Path) -> subprocess.Popen:
    """Start ``train.py``, under torchrun if there are several processes."""
    command = [sys.executable]
    if num_processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={num_processes}"]
    with log.open("a", encoding="utf-8") as file:
        return subprocess.Popen(
            [*command, str(ROOT / "train.py"), *words],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=file,
            stderr=file,
        )


def words_of(run_dir: Path, num_steps: int, num_processes: int) -> list[str]:
    """Command line that starts the run, or resumes it once it has a configuration."""
    if (run_dir / "config.yaml").exists():
        return [f"resume={run_dir}"]
    shutil.rmtree(run_dir, ignore_errors=True)
    sizes = {"trainer.rows_per_device": ROWS_PER_STEP // num_processes, "trainer.max_steps": num_steps}
    return [f"{key}={value}" for key, value in (SETTINGS | sizes | {"run_dir": run_dir}).items()]


def finish(run_dir: Path, num_steps: int, num_processes: int) -> None:
    """Start or resume the run and let it end.

    Raises:
        UserError: It failed.
    """
    log = run_dir.with_suffix(".log")
    process = start(words_of(run_dir, num_steps, num_processes), num_processes, log)
    if process.wait():
        raise UserError(f"{run_dir}: the run failed with status {process.returncode}; see {log}")


def count_steps(run_dir: Path) -> int:
    """Lines of metrics, one for each optimizer step."""
    path = run_dir / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for_steps(process: subprocess.Popen, run_dir: Path, num_steps: int) -> None:
    """Wait until so many steps are done.

    Raises:
        UserError: The run ended or stood still.
    """
    deadline = time.monotonic() + PATIENCE
    while count_steps(run_dir) < num_steps:
        if process.poll() is not None or time.monotonic() > deadline:
            raise UserError(f"{run_dir}: the run ended or stood still; see {run_dir.with_suffix('.log')}")
        time.sleep(0.01)


def kill(process: subprocess.Popen, *, only_one_rank: bool, choose: random.Random) -> None:
    """``kill -9`` one rank, or every process; wait until all are gone."""
    parent = psutil.Process(process.pid)
    family = [parent, *parent.children(recursive=True)]
    ranks = parent.children() if process.args[1] == "-m" else []
    if only_one_rank and ranks:
        choose.choice(ranks).kill()
        process.wait(PATIENCE)  # torchrun notices and ends the others
    for member in family:
        if member.is_running():
            member.kill()
    psutil.wait_procs(family, timeout=PATIENCE)


def kill_once(
    run_dir: Path,
    num_processes: int,
    *,
    only_one_rank: bool,
    num_steps: int,
    budget: int,
    choose: random.Random,
) -> Kill:
    """Start or resume the run and kill it at a random moment within ``budget`` more steps."""
    log, before = run_dir.with_suffix(".log"), time.monotonic()
    process = start(words_of(run_dir, num_steps, num_processes), num_processes, log)
    resumed_from = saved_step(run_dir)
    if choose.random() < 0.2:
        moment = "start"
        time.sleep(choose.uniform(0, 6))
    else:
        moment = "training"
        wait_until_truncated(run_dir, resumed_from, before)
        wait_for_steps(process, run_dir, resumed_from + choose.randint(1, budget))
        time.sleep(choose.uniform(0, 0.4))
    kill(process, only_one_rank=only_one_rank, choose=choose)
    return Kill(
        killed="one rank" if only_one_rank else "all",
        moment=moment,
        step=count_steps(run_dir),
        resumed=saved_step(run_dir),
        was_saving=any((run_dir / "checkpoints").glob(".writing-*")),
    )


def wait_until_truncated(run_dir: Path, step: int, since: float) -> None:
    """Wait until a resumed run has cut its metrics back to its checkpoint."""
    while count_steps(run_dir) > step and time.monotonic() < since + PATIENCE:
        time.sleep(0.01)


def saved_step(run_dir: Path) -> int:
    """Step of the checkpoint that a resumed run goes on from."""
    return int(find_checkpoint(run_dir).path.name[5:]) if list_checkpoints(run_dir) else 0


def compare(run_dir: Path, expected_dir: Path) -> dict[str, bool]:
    """Which files of two finished runs are the same, byte for byte."""
    names = ["metrics.jsonl", "completions.jsonl"]
    newest = list_checkpoints(expected_dir)[-1].relative_to(expected_dir)
    names += [str(newest / "trainable.safetensors"), str(newest / "state.json")]
    return {
        name: (run_dir / name).exists()
        and (run_dir / name).read_bytes() == (expected_dir / name).read_bytes()
        for name in names
    }


def run_test(
    folder: Path, *, num_kills: int, num_processes: int, seed: int
) -> tuple[list[Kill], dict[str, bool]]:
    """Run once undisturbed and once with kills."""
    num_steps = STEPS_PER_KILL * num_kills
    finish(folder / "undisturbed", num_steps, num_processes)
    run_dir, choose, kills = folder / "killed", random.Random(seed), []
    for number in tqdm(range(num_kills), desc="kills"):
        budget = max(1, (num_steps - saved_step(run_dir)) // (num_kills - number) - 2)
        kills.append(
            kill_once(
                run_dir,
                num_processes,
                only_one_rank=number % 2 == 0,
                num_steps=num_steps,
                budget=budget,
                choose=choose,
            )
        )
    finish(run_dir, num_steps, num_processes)
    return kills, compare(run_dir, folder / "undisturbed")


def print_results(kills: Sequence[Kill], is_same: dict[str, bool]) -> None:
    """Print a line for each kill, then what is the same."""
    table = Table(
        "kill", "killed", "during", "at step", "went on from", "steps lost", "half-written checkpoint"
    )
    for number, one in enumerate(kills, start=1):
        saving = "yes" if one.was_saving else ""
        table.add_row(*map(str, (number, one.killed, one.moment, one.step, one.resumed, one.lost, saving)))
    console = Console(width=100)
    console.print(table)
    for name, same in is_same.items():
        console.print(f"{name}: {'the same, byte for byte' if same else 'DIFFERENT'}")


def main() -> None:
    """Parse the command line, run and compare.

    Raises:
        UserError: The runs differ.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20, help="how often the run is killed")
    parser.add_argument("--num-processes", type=int, default=1, choices=[1, 2, 4], help="ranks of the run")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--folder", type=Path, help="where the runs are kept; a temporary one if left out")
    parser.add_argument("--json", type=Path, help="also write the results here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        kills, is_same = run_test(
            folder, num_kills=options.kills, num_processes=options.num_processes, seed=options.seed
        )
    print_results(kills, is_same)
    if options.json:
        results = {"kills": [asdict(one) for one in kills], "is_same": is_same}
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if not all(is_same.values()):
        raise UserError(f"{options.folder or 'the run'}: differs from the undisturbed one after its kills")


if __name__ == "__main__":
    exit_with_one_line(main)
