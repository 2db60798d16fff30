"""Character and word error rates of held-out scenes before and after reinforcement learning, with intervals.

Example:
    python scripts/recipes/fillets_cs/report.py runs/fillets_cs-sequence-seed42
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from asrl.bootstrap import BootstrapInterval, paired_bootstrap
from asrl.errors import UserError, exit_with_one_line
from asrl.evaluate import Transcription, read_transcriptions, summarise
from asrl.jsonl import read_json_lines
from asrl.text import ErrorCounts, character_error_counts, error_counts

# Czech is written in words, so the mixed error rate is its word error rate.
RATES: dict[str, Callable[[str, str], ErrorCounts]] = {
    "CER": character_error_counts,
    "WER": error_counts,
}
REWARD_STEPS = 25


def rate_interval(counts: Sequence[ErrorCounts]) -> BootstrapInterval:
    """A corpus error rate and its interval: the difference to transcripts without errors."""
    flawless = [ErrorCounts(one.num_reference_tokens, 0, 0, 0) for one in counts]
    return paired_bootstrap(flawless, counts)


def evaluations(run_dir: Path, split: str, mode: str) -> tuple[list[Transcription], list[Transcription]]:
    """The first and the last transcriptions of a set.

    Raises:
        UserError: The run has not been evaluated twice.
    """
    files = sorted((run_dir / "evaluations").glob(f"{split}-{mode}-*.jsonl"))
    if len(files) < 2:
        raise UserError(
            f"{run_dir}: {split} {mode} needs an evaluation before and one after training, got {len(files)}; "
            "let the run finish"
        )
    return read_transcriptions(files[0]), read_transcriptions(files[-1])


def compare(split: str, mode: str, before: list[Transcription], after: list[Transcription]) -> dict[str, Any]:
    """Every figure of one set decoded one way."""
    row: dict[str, Any] = {"split": split, "mode": mode, "utterances": len(before)}
    for name, count in RATES.items():
        counts = [[count(t.transcript, t.hypothesis) for t in moment] for moment in (before, after)]
        row[name] = {
            "before": describe_counts(counts[0]),
            "after": describe_counts(counts[1]),
            "change": vars(paired_bootstrap(*counts)),
        }
    row["rates"] = {"before": summarise(before), "after": summarise(after)}
    return row


def describe_counts(counts: Sequence[ErrorCounts]) -> dict[str, float]:
    """The error rate with its interval, and its parts."""
    total = sum(counts, ErrorCounts(0, 0, 0, 0))
    interval = rate_interval(counts)
    parts = {name: getattr(total, name) for name in ("substitutions", "deletions", "insertions")}
    shares = {name: value / total.num_reference_tokens for name, value in parts.items()}
    return {"rate": total.rate, "low": interval.low, "high": interval.high} | shares


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The comparison as a Markdown table, in per cent."""
    lines = [
        "| set | decoding | rate | before [95 %] (S / D / I) | after [95 %] (S / D / I) | change [95 %] |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        for name in RATES:
            cells = [row["split"], row["mode"], name]
            cells += [describe_rate(row[name][moment]) for moment in ("before", "after")]
            change = row[name]["change"]
            low, high = 100 * change["low"], 100 * change["high"]
            cells.append(f"{100 * change['difference']:+.1f} [{low:+.1f}, {high:+.1f}]")
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def describe_rate(rate: dict[str, float]) -> str:
    """One cell of the table."""
    parts = " / ".join(f"{100 * rate[name]:.1f}" for name in ("substitutions", "deletions", "insertions"))
    return f"{100 * rate['rate']:.1f} [{100 * rate['low']:.1f}, {100 * rate['high']:.1f}] ({parts})"


def hotword_table(rows: Sequence[dict[str, Any]]) -> str:
    """How the hotwords of each set fared, before and after."""
    lines = [
        "| set | decoding | hotword recall | precision | distractors inserted |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        moments = [row["rates"][moment] for moment in ("before", "after")]
        cells = [row["split"], row["mode"]]
        for name in ("hotword_recall", "hotword_precision"):
            cells.append(" -> ".join(_percent(rates.get(name)) for rates in moments))
        cells.append(" -> ".join(str(rates.get("hotword_false_insertions", 0)) for rates in moments))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _percent(ratio: float | None) -> str:
    return "none" if ratio is None else f"{100 * ratio:.1f} %"


def reward_curve(run_dir: Path) -> list[dict[str, float]]:
    """Means of every reward over each 25 steps."""
    steps = [row for row in read_json_lines(run_dir / "metrics.jsonl") if "reward/mean" in row]
    spread = ("reward/std", "reward/frac")
    names = [name for name in steps[0] if name.startswith("reward/") and not name.startswith(spread)]
    curve = []
    for start in range(0, len(steps), REWARD_STEPS):
        window = steps[start : start + REWARD_STEPS]
        means = {name: sum(row[name] for row in window) / len(window) for name in names}
        curve.append({"step": window[-1]["step"]} | means)
    return curve


def main() -> None:
    """Compare, print and save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run_dir", type=Path, help="directory of the finished run")
    run_dir = parser.parse_args().run_dir
    rows = [
        compare(split, mode, *evaluations(run_dir, split, mode))
        for split in ("dev", "test")
        for mode in ("greedy", "sampled")
    ]
    report = {"evaluation": rows, "rewards": reward_curve(run_dir)}
    (run_dir / "czech.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(table(rows), hotword_table(rows), sep="\n\n")
    for row in report["rewards"]:
        print(", ".join(f"{name} {value:.4g}" for name, value in row.items()))


if __name__ == "__main__":
    exit_with_one_line(main)
