"""This module is the only place that writes the HTML page of a report."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from asrl.alignment import Step, align
from asrl.evaluate import Transcription
from asrl.report.figures import TABLE_HEAD, table_rows
from asrl.report.runs import Change, RunRecord
from asrl.text import text_units

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0 } th, td { border: 1px solid #ccc; padding: .25em .6em }
th { background: #f3f3f3; text-align: left } img { max-width: 100% } .key { color: #777; font-size: 85% }
.substitution { background: #ffe2b8 } .deletion { background: #ffc9c9; text-decoration: line-through }
.insertion { background: #cfe3ff }
"""
NUM_EXAMPLES = 10


def write_page(
    path: Path,
    runs: Sequence[RunRecord],
    figures: Sequence[Mapping[str, Any]],
    *,
    images: Sequence[tuple[str, Path]],
) -> None:
    """Write one page that needs no other file.

    Args:
        path: Where to.
        runs: What it is about.
        figures: Of the training of each run, by what they are called.
        images: Titles and PNG files, which are copied into the page.
    """
    names = ", ".join(run.name for run in runs)
    body = [f"<h1>{escape(names)}</h1>", _training_table(runs, figures)]
    if rows := table_rows(runs):
        title = "Error rate before and after, % of reference units (substituted / deleted / inserted)"
        body += [f"<h2>{title}</h2>", _table(TABLE_HEAD, rows)]
    body += [f"<h2>{escape(title)}</h2>{_image(file)}" for title, file in images]
    for run in runs:
        body += _examples(f"{run.name}: most improved", run.most_improved(NUM_EXAMPLES))
        body += _examples(f"{run.name}: most harmed", run.most_harmed(NUM_EXAMPLES))
    head = f'<meta charset="utf-8"><title>{escape(names)}</title><style>{STYLE}</style>'
    path.write_text(f"<!doctype html><html><head>{head}</head><body>{''.join(body)}</body></html>\n", "utf-8")


def _training_table(runs: Sequence[RunRecord], figures: Sequence[Mapping[str, Any]]) -> str:
    names = list(dict.fromkeys(name for each in figures for name in each))
    rows = [
        (run.name, *(_short(each.get(name, "")) for name in names))
        for run, each in zip(runs, figures, strict=True)
    ]
    return _table(("run", *names), rows)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = ["".join(f"<th>{escape(cell)}</th>" for cell in head)]
    lines += ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def _image(file: Path) -> str:
    content = base64.b64encode(file.read_bytes()).decode("ascii")
    return f'<img alt="" src="data:image/png;base64,{content}">'


def _examples(title: str, changes: Sequence[Change]) -> list[str]:
    if not changes:
        return []
    rows = []
    for change in changes:
        texts = _aligned(change.before), _aligned(change.after)
        errors = f"{change.before.counts.errors} → {change.after.counts.errors}"
        key = f"{escape(change.split)} {escape(change.before.key)}"
        rows.append(
            f'<tr><td>{escape(change.before.transcript)}<br><span class="key">{key}</span></td>'
            f"<td>{texts[0]}</td><td>{texts[1]}</td><td>{errors}</td></tr>"
        )
    head = "".join(f"<th>{name}</th>" for name in ("reference", "before", "after", "errors"))
    return [f"<h2>{escape(title)}</h2><table><tr>{head}</tr>", *rows, "</table>"]


def _aligned(transcription: Transcription) -> str:
    """The hypothesis with its errors in colour; what is missing is shown struck out."""
    steps = align(text_units(transcription.transcript), text_units(transcription.hypothesis))
    return " ".join(map(_colour, steps))


def _colour(step: Step) -> str:
    unit = escape(step.hypothesis or step.reference)
    if step.kind == "hit":
        return unit
    meant = f' title="{escape(step.reference)}"' if step.kind == "substitution" else ""
    return f'<span class="{step.kind}"{meant}>{unit}</span>'
