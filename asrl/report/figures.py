"""This module is the only place that draws runs."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from asrl.comparison import Comparison
from asrl.report.runs import RunRecord

# Metric and title; those that no run has are left out.
PANELS = (
    ("reward/mean", "reward"),
    ("dev_greedy/cer", "error rate on dev, greedy"),
    ("cer", "error rate of drawn transcripts"),
    ("loss", "loss"),
    ("group/unique_transcripts", "distinct transcripts of a group"),
    ("completion/num_tokens_mean", "tokens of a transcript"),
    ("entropy", "entropy (nats)"),
    ("clip_ratio/any", "clip ratio"),
    ("kl", "KL to the reference (nats)"),
    ("grad_norm", "norm of the gradient"),
)
SMOOTHED_FROM = 50  # points of a curve
COLUMNS = 3
TABLE_HEAD = (
    "run",
    "set",
    "decoding",
    "before",
    "S / D / I",
    "after",
    "S / D / I",
    "change",
    "95 % interval",
)


def draw_curves(runs: Sequence[RunRecord], path: Path) -> None:
    """Draw every metric that a run has, all runs in the same panel; a moving mean over the points."""
    panels = [panel for panel in PANELS if any(run.curve(panel[0])[0] for run in runs)]
    num_rows = max(1, -(-len(panels) // COLUMNS))
    figure = Figure(figsize=(4.2 * COLUMNS, 2.8 * num_rows), layout="constrained")
    for place, (metric, title) in enumerate(panels, start=1):
        axes = figure.add_subplot(num_rows, COLUMNS, place)
        for number, run in enumerate(runs):
            _draw_curve(axes, *run.curve(metric), label=_legend(run.name), color=f"C{number % 10}")
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("step", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
        if place == 1 and len(runs) > 1:
            axes.legend(fontsize=8)
    figure.savefig(path, dpi=110)


def _draw_curve(axes: Axes, steps: list[int], values: list[float], *, label: str, color: str) -> None:
    if len(values) < SMOOTHED_FROM:
        axes.plot(steps, values, color=color, label=label, marker=".", markersize=3)
        return
    axes.plot(steps, values, color=color, alpha=0.25, linewidth=0.8)
    axes.plot(steps, moving_mean(values, len(values) // 20), color=color, label=label)


def moving_mean(values: Sequence[float], window: int) -> list[float]:
    """Mean of each value and the ``window - 1`` before it, fewer at the start."""
    means = []
    for end in range(1, len(values) + 1):
        part = values[max(0, end - window) : end]
        means.append(sum(part) / len(part))
    return means


def table_rows(runs: Sequence[RunRecord]) -> list[tuple[str, ...]]:
    """Cells of the table of error rates before and after, as ``TABLE_HEAD``."""
    return [(run.name, *_cells(comparison)) for run in runs for comparison in run.comparisons]


def _cells(comparison: Comparison) -> tuple[str, ...]:
    cells = [comparison.split, comparison.mode]
    for rates in (comparison.before, comparison.after):
        kinds = (rates[name] for name in ("substitutions", "deletions", "insertions"))
        cells += [f"{100 * rates['cer']:.2f}", " / ".join(f"{100 * kind:.1f}" for kind in kinds)]
    interval = f"[{100 * comparison.low:+.2f}, {100 * comparison.high:+.2f}]"
    return (*cells, f"{100 * comparison.difference:+.2f}", interval)


def draw_table(runs: Sequence[RunRecord], path: Path) -> None:
    """Draw the table of error rates before and after."""
    rows = table_rows(runs)
    figure = Figure(figsize=(11, 0.6 + 0.3 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    axes.set_axis_off()
    axes.set_title("Error rate before and after, % of reference units", fontsize=10)
    table = axes.table(cellText=rows, colLabels=TABLE_HEAD, loc="center", cellLoc="center")
    table.auto_set_font_size(False)
    table.set_fontsize(8)
    table.auto_set_column_width(list(range(len(TABLE_HEAD))))
    figure.savefig(path, dpi=110)


def _legend(name: str) -> str:
    """A name as it is: matplotlib hides labels with an underscore in front and reads dollars as formulas."""
    return "\u200b" + name.replace("$", r"\$")
