"""This module is the only place that sums up a run."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from asrl.comparison import Comparison
from asrl.files import replace_text


def write_summary(path: Path, comparisons: Iterable[Comparison], training: dict[str, Any]) -> None:
    """Write the comparisons and figures of the training itself as JSON."""
    content = {"evaluation": [asdict(comparison) for comparison in comparisons], "training": training}
    replace_text(path, json.dumps(content, ensure_ascii=False, indent=1) + "\n")


def print_summary(comparisons: Sequence[Comparison], training: dict[str, Any], run_dir: Path) -> None:
    """Print a table of the comparisons, then figures of the training and where everything lies."""
    console = Console(width=110)
    table = Table(
        title="Error rate before and after, % of reference units (S substituted, D deleted, I inserted)"
    )
    for column in ("set", "decoding", "before", "S / D / I", "after", "S / D / I", "change", "95 % interval"):
        table.add_column(column, justify="left" if column in ("set", "decoding") else "right")
    for comparison in comparisons:
        table.add_row(
            comparison.split,
            comparison.mode,
            *_rates(comparison.before),
            *_rates(comparison.after),
            f"{100 * comparison.difference:+.2f}",
            f"[{100 * comparison.low:+.2f}, {100 * comparison.high:+.2f}]",
        )
    if comparisons:
        console.print(table)
    console.print(", ".join(f"{name} {_short(value)}" for name, value in training.items()), highlight=False)
    console.print(f"run: {run_dir}", highlight=False)


def _rates(rates: dict[str, float]) -> tuple[str, str]:
    parts = (f"{100 * rates[name]:.1f}" for name in ("substitutions", "deletions", "insertions"))
    return f"{100 * rates['cer']:.2f}", " / ".join(parts)


def _short(value: float | int | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def training_figures(metrics: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Figures of a run from its lines of metrics.

    Clip ratio and KL are means over steps (KL only if there was a reference policy); the first and the last
    reward are means over 25 steps, or half of them in a short run.
    """
    steps = [row for row in metrics if "loss" in row]
    rewards = [row["reward/mean"] for row in steps if "reward/mean" in row]
    figures: dict[str, Any] = {"steps": len(steps)}
    width = max(1, min(25, len(rewards) // 2))
    for name, window in (("first reward", rewards[:width]), ("last reward", rewards[-width:])):
        if window:
            figures[name] = sum(window) / len(window)
    for name, key in (("clip ratio", "clip_ratio/any"), ("kl", "kl")):
        values = [row[key] for row in steps if key in row]
        if values:
            figures[name] = sum(values) / len(values)
            figures[f"largest {name}"] = max(values)
    if steps and "kl" in steps[0]:
        figures["first kl"] = steps[0]["kl"]
    return figures
