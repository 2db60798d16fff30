"""Run the demo with several seeds, one after the other, and sum up in a table, a picture and JSON.

Example:
    python scripts/run_seeds.py --seeds 1 2 3 --output runs/seeds
    python scripts/run_seeds.py --seeds 1 2 3 --output runs/seeds importance_sampling_level=token
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from tqdm import tqdm

from asrl.bootstrap import paired_bootstrap
from asrl.errors import UserError, exit_with_one_line
from asrl.evaluate import read_transcriptions
from asrl.jsonl import read_json_lines
from asrl.text import ErrorCounts

mpl.use("Agg")
import matplotlib.pyplot as plt

RATES = ("cer", "substitutions", "deletions", "insertions")


def run_seed(seed: int, run_dir: Path, overrides: Sequence[str]) -> None:
    """Train with one seed, unless that run is there already.

    Raises:
        UserError: The run failed.
    """
    if (run_dir / "summary.json").exists():
        return
    command = [sys.executable, "train.py", f"seed={seed}", f"run_dir={run_dir}", "logger=none", *overrides]
    if subprocess.run(command, check=False).returncode:
        raise UserError(f"{run_dir}: the run with seed {seed} failed; its message is above")


def pooled_interval(run_dirs: Sequence[Path], split: str, mode: str) -> tuple[float, float, float]:
    """Change of the mean error rate of all seeds, with its 95 % interval over utterances.

    An utterance's errors are added up over the seeds first: they are not independent of each other.
    """
    moments: list[list[ErrorCounts]] = []
    for moment in (0, -1):
        seeds = []
        for run_dir in run_dirs:
            files = sorted((run_dir / "evaluations").glob(f"{split}-{mode}-*.jsonl"))
            seeds.append([t.counts for t in read_transcriptions(files[moment])])
        moments.append([sum(utterance, ErrorCounts(0, 0, 0, 0)) for utterance in zip(*seeds, strict=True)])
    interval = paired_bootstrap(*moments)
    return interval.difference, interval.low, interval.high


def collect(run_dirs: Sequence[Path]) -> dict[str, Any]:
    """Mean rates before and after, the spread over seeds, and pooled intervals."""
    summaries = [json.loads((run_dir / "summary.json").read_text(encoding="utf-8")) for run_dir in run_dirs]
    rows = []
    for index, first in enumerate(summaries[0]["evaluation"]):
        seeds = [summary["evaluation"][index] for summary in summaries]
        difference, low, high = pooled_interval(run_dirs, first["split"], first["mode"])
        row = {
            "split": first["split"],
            "mode": first["mode"],
            "difference": difference,
            "low": low,
            "high": high,
        }
        for moment in ("before", "after"):
            row[moment] = {rate: statistics.mean(seed[moment][rate] for seed in seeds) for rate in RATES}
            row[f"{moment}_per_seed"] = [seed[moment]["cer"] for seed in seeds]
        rows.append(row)
    return {"evaluation": rows, "training": [summary["training"] for summary in summaries]}


def table(results: dict[str, Any]) -> str:
    """The results as a Markdown table, in per cent."""
    lines = [
        "| set | decoding | before (S / D / I) | after (S / D / I) | per seed | change | 95 % interval |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in results["evaluation"]:
        cells = [row["split"], row["mode"]]
        for moment in ("before", "after"):
            parts = " / ".join(f"{100 * row[moment][rate]:.1f}" for rate in RATES[1:])
            cells.append(f"{100 * row[moment]['cer']:.2f} ({parts})")
        cells.append(", ".join(f"{100 * cer:.2f}" for cer in row["after_per_seed"]))
        cells.append(f"{100 * row['difference']:+.2f}")
        cells.append(f"[{100 * row['low']:+.2f}, {100 * row['high']:+.2f}]")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(results: dict[str, Any], run_dirs: Sequence[Path], path: Path) -> None:
    """Reward and error rate over training, and the error rate before and after."""
    figure, (curve, bars) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for run_dir in run_dirs:
        steps = [row for row in read_json_lines(run_dir / "metrics.jsonl") if "reward/mean" in row]
        window = max(1, len(steps) // 16)
        centres = range(window, len(steps) + 1)
        means = [statistics.mean(row["reward/mean"] for row in steps[end - window : end]) for end in centres]
        curve.plot(list(centres), means, label=run_dir.name)
    curve.set(
        xlabel="optimizer step", ylabel=f"mean reward (last {window} steps)", title="Reward while training"
    )
    curve.legend(frameon=False)
    names = [f"{row['split']}\n{row['mode']}" for row in results["evaluation"]]
    for offset, moment, colour in ((-0.2, "before", "#b0b0b0"), (0.2, "after", "#2a6f97")):
        heights = [100 * row[moment]["cer"] for row in results["evaluation"]]
        places = [place + offset for place in range(len(names))]
        bars.bar(places, heights, width=0.38, color=colour, label=moment)
        for place, height in zip(places, heights, strict=True):
            bars.text(place, height + 0.4, f"{height:.1f}", ha="center", fontsize=9)
    bars.set(
        xticks=range(len(names)), xticklabels=names, ylabel="character error rate, %", title="Held-out speech"
    )
    bars.legend(frameon=False)
    for axes in (curve, bars):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def main() -> None:
    """Parse the command line, run and sum up."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument(
        "--output", type=Path, default=Path("runs/seeds"), help="directory for runs and results"
    )
    options, overrides = parser.parse_known_args()
    run_dirs = [options.output / f"seed-{seed}" for seed in options.seeds]
    for seed, run_dir in tqdm(list(zip(options.seeds, run_dirs, strict=True)), desc="seeds"):
        run_seed(seed, run_dir, overrides)
    results = collect(run_dirs)
    (options.output / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (options.output / "results.md").write_text(table(results) + "\n", encoding="utf-8")
    draw(results, run_dirs, options.output / "results.png")
    print(table(results))


if __name__ == "__main__":
    exit_with_one_line(main)
