"""This module is the only place that knows the sub-commands of ``asrl``."""

import argparse
import sys

from asrl.errors import exit_with_one_line

COMMANDS = {
    "train": "reinforcement learning; the same as `python train.py`",
    "sft": "supervised training",
}


def main() -> None:
    """Entry point of ``asrl``."""
    summary = "\n".join(f"  {name:12} {text}" for name, text in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="asrl",
        description="Reinforcement learning for speech-recognition LLMs.",
        epilog=f"commands:\n{summary}\n\n`asrl COMMAND --help` lists the settings of a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    command = parser.parse_args(sys.argv[1:2]).command
    sys.argv = [f"asrl {command}", *sys.argv[2:]]
    exit_with_one_line(lambda: _load(command))


def _load(command: str) -> None:
    # Imported here: `asrl --help` should not wait for torch.
    if command == "train":
        from asrl.cli.train import main as run  # noqa: PLC0415
    else:
        from asrl.cli.sft import main as run  # noqa: PLC0415
    run()
