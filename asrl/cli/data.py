"""This module is the only place that knows ``asrl data``: check, convert and sum up data sets."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tqdm import tqdm

from asrl.cli.options import refuse_overwriting
from asrl.data.inspection import Inspector, inspect_all
from asrl.data.lines import ManifestLines, open_lines
from asrl.data.manifest import read_manifest
from asrl.data.sources import FORMATS
from asrl.data.survey import Survey, survey, to_json
from asrl.data.writing import write_manifest
from asrl.errors import UserError
from asrl.files import replace_text

NUM_EXAMPLES = 3  # of each kind of problem
NUM_OUTLIERS = 10
BAR_WIDTH = 50
FORMAT_HELP = "layout of the data; auto looks at it (default)"


def main() -> None:
    """Entry point of ``asrl data``."""
    arguments = _parser().parse_args()
    arguments.run(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Check, convert and sum up data: JSONL manifests (ours, WeNet's, FunASR's, ms-swift's), "
        "Kaldi folders, and audio data sets in the formats of Hugging Face."
    )
    commands = parser.add_subparsers(required=True, metavar="{check,convert,stats}")
    summary = "read every line and all audio; exit status 1 if anything is wrong"
    check = _add_command(commands, "check", summary, _check)
    check.add_argument("--output", metavar="CLEAN.jsonl", help="write a manifest without the wrong lines")
    check.add_argument(
        "--max-seconds", type=float, default=30.0, help="audio as long as this is a problem (default: 30)"
    )
    convert = _add_command(commands, "convert", "write data of any layout as a manifest of ours", _convert)
    convert.add_argument("--output", metavar="OUT.jsonl", required=True, help="manifest to write")
    stats = _add_command(commands, "stats", "sum up, from the headers of the audio files alone", _stats)
    for command in (check, stats):
        command.add_argument("--json", metavar="FILE", help="also write what is printed, in full, as JSON")
        command.add_argument(
            "--num-workers",
            type=int,
            default=len(os.sched_getaffinity(0)),
            help="processes that read; 0 reads in this one (default: one per core)",
        )
    return parser


def _add_command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    summary: str,
    run: Callable[[argparse.Namespace], None],
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    parser.add_argument("source", metavar="DATA", help="a manifest or a folder")
    parser.add_argument("--format", choices=FORMATS, default="auto", help=FORMAT_HELP)
    parser.set_defaults(run=run)
    return parser


def _check(arguments: argparse.Namespace) -> None:
    if not arguments.max_seconds > 0:
        raise UserError(f"--max-seconds must be above 0, got {arguments.max_seconds:g}")
    lines = open_lines(arguments.source, format=arguments.format)
    refuse_overwriting("--output", arguments.output, str(lines.source.file))
    result = _survey(lines, arguments, max_seconds=arguments.max_seconds)
    console = Console(width=max(110, Console().width))
    _print_totals(console, result, lines)
    _print_problems(console, result)
    _print_outliers(console, result, lines)
    if arguments.output:
        bad_lines = result.bad_lines
        kept = (lines.read(index) for index in range(len(lines)) if index not in bad_lines)
        num_lines = write_manifest(Path(arguments.output), kept)
        print(f"wrote {arguments.output}: {num_lines} of {len(lines)} lines")
    sys.exit(1 if result.problems else 0)


def _convert(arguments: argparse.Namespace) -> None:
    manifest = read_manifest(arguments.source, format=arguments.format)
    refuse_overwriting("--output", arguments.output, str(manifest.lines.source.file))
    bar = tqdm(manifest, desc="converting", unit=" utterances", leave=False, delay=1)
    num_lines = write_manifest(Path(arguments.output), bar)
    print(f"wrote {arguments.output}: {num_lines} utterances")


def _stats(arguments: argparse.Namespace) -> None:
    lines = open_lines(arguments.source, format=arguments.format)
    result = _survey(lines, arguments, max_seconds=float("inf"))
    console = Console(width=max(110, Console().width))
    _print_totals(console, result, lines)
    if result.problems:
        print(f"{len(result.bad_lines)} lines have problems: see `asrl data check {arguments.source}`")


def _survey(lines: ManifestLines, arguments: argparse.Namespace, *, max_seconds: float) -> Survey:
    """Look at every line, and write the result as JSON if asked to."""
    refuse_overwriting("--json", arguments.json, str(lines.source.file))
    if arguments.num_workers < 0:
        raise UserError(f"--num-workers must be at least 0, got {arguments.num_workers}")
    inspector = Inspector(lines, max_seconds=max_seconds, headers_only=arguments.run is _stats)
    with tqdm(total=len(lines), desc="reading", unit=" utterances", leave=False) as bar:

        def findings() -> Iterator:
            for some in inspect_all(inspector, num_workers=arguments.num_workers):
                bar.update(len(some))
                yield from some

        result = survey(lines, findings())
    if arguments.json:
        content = json.dumps(to_json(result, lines), ensure_ascii=False, indent=1)
        replace_text(Path(arguments.json), content + "\n")
    return result


def _print_totals(console: Console, result: Survey, lines: ManifestLines) -> None:
    """Print sizes, durations, characters per second and hotwords."""
    measured, rates = result.measured, result.rates[~np.isnan(result.rates)]
    line = f"{lines.source.path}: {len(result)} utterances, {measured.sum() / 3600:.2f} hours of audio"
    console.print(line, highlight=False, markup=False)
    if len(measured):
        table = Table(title="Durations", title_justify="left", show_header=False, box=None)
        most = max(count for _, _, count in result.histogram())
        for low, high, count in result.histogram():
            name = f"{low:g} to {high:g} s" if np.isfinite(high) else f"{low:g} s and more"
            table.add_row(name, str(count), "█" * round(BAR_WIDTH * count / most))
        console.print(table)
    if len(rates):
        low, middle, high = np.quantile(rates, (0.05, 0.5, 0.95))
        line = f"Characters per second: {middle:.2f} in the median, nine of ten from {low:.2f} to {high:.2f}"
        console.print(line, highlight=False)
    share = 100 * result.num_with_hotwords / len(result)
    line = f"Hotwords: {share:.1f} % of the utterances have any, {len(result.hotwords)} different ones"
    if result.hotwords:
        counts = result.hotwords.values()
        line += f", each in {min(counts)} to {max(counts)} utterances"
    console.print(line, highlight=False)


def _print_problems(console: Console, result: Survey) -> None:
    if not result.problems:
        console.print("No problems.")
        return
    table = Table("problem", "number", "examples", title="Problems", title_justify="left")
    for kind, problems in result.by_kind().items():
        examples = "\n".join(problem.message for problem in problems[:NUM_EXAMPLES])
        table.add_row(kind.value, str(len(problems)), Text(examples, overflow="fold"))
    console.print(table)


def _print_outliers(console: Console, result: Survey, lines: ManifestLines) -> None:
    """Print where text and audio may not belong together; that is for people to decide."""
    outliers, rates = result.outliers(), result.rates
    if not outliers:
        return
    title = f"Unusual numbers of characters per second ({len(outliers)}): does the text belong to the audio?"
    table = Table("line", "characters/s", "seconds", "text", title=title, title_justify="left")
    for index in outliers[:NUM_OUTLIERS]:
        text = Text(lines.read(index).transcript, overflow="ellipsis", no_wrap=True)
        place = Text(lines.place(index), overflow="fold")
        table.add_row(place, f"{rates[index]:.2f}", f"{result.seconds[index]:.2f}", text)
    console.print(table)
