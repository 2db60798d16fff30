"""This module is the only place that runs ``asrl report``."""

import argparse
from pathlib import Path

from asrl.cli.summary import training_figures
from asrl.errors import UserError
from asrl.report.figures import draw_curves, draw_table
from asrl.report.page import write_page
from asrl.report.runs import read_run

DESCRIPTION = """\
Sum up runs, finished or not: curves of what they measured, error rates of their first and last evaluation
with intervals, and the utterances that improved or suffered most, aligned.

Writes report.html, which needs no other file, and its pictures curves.png and before_after.png."""


def main() -> None:
    """Entry point of ``asrl report``."""
    parser = argparse.ArgumentParser(
        prog="asrl report", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="directory of a run")
    parser.add_argument(
        "--output", metavar="DIR", help="where to; default: the folder report of the first run"
    )
    arguments = parser.parse_args()
    output = Path(arguments.output or Path(arguments.runs[0]) / "report")
    print(f"wrote {write_report([Path(run) for run in arguments.runs], output)}")


def write_report(directories: list[Path], output: Path) -> Path:
    """Write the report of some runs and return its page.

    Raises:
        UserError: One of them is no run, or the report cannot be written.
    """
    runs = [read_run(directory) for directory in directories]
    try:
        output.mkdir(parents=True, exist_ok=True)
        images = [("Curves", output / "curves.png")]
        draw_curves(runs, images[0][1])
        if any(run.comparisons for run in runs):
            draw_table(runs, output / "before_after.png")
        page = output / "report.html"
        write_page(page, runs, [training_figures(run.metrics) for run in runs], images=images)
    except OSError as error:
        raise UserError(f"{output}: cannot write the report ({error.strerror}); use --output") from error
    return page
