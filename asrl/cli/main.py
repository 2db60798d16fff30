"""This module is the only place that knows the sub-commands of ``asrl``."""

import argparse
import sys
from importlib import import_module

from asrl import __version__
from asrl.errors import exit_with_one_line

# Each is the function ``main`` of asrl.cli.<name>, which reads sys.argv.
COMMANDS = {
    "train": "reinforcement learning; the same as `python train.py`",
    "sft": "supervised training",
    "transcribe": "recordings to text",
    "evaluate": "error rates of a model or of transcripts, and whether two differ",
    "export": "what a run has trained as a FireRedASR-LLM directory",
    "data": "check, convert and sum up data sets",
    "report": "curves, tables and examples of runs as one HTML page",
}


def main() -> None:
    """Entry point of ``asrl``."""
    exit_with_one_line(_run)


def _run() -> None:
    summary = "\n".join(f"  {name:12} {text}" for name, text in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="asrl",
        description="Reinforcement learning for speech-recognition LLMs.",
        epilog=f"commands:\n{summary}\n\n`asrl COMMAND --help` lists the settings of a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"asrl {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    command = parser.parse_args(sys.argv[1:2]).command
    sys.argv = [f"asrl {command}", *sys.argv[2:]]
    # Imported late: `asrl --help` should not wait for torch.
    import_module(f"asrl.cli.{command}").main()
