"""This module is the only place that words the options of the commands that use a model."""

import argparse
import math
from pathlib import Path

from asrl.cli.build import DTYPES
from asrl.data.sources import FORMATS
from asrl.errors import UserError
from asrl.rollout.beam import BeamSettings
from asrl.rollout.decoding import DecodingSettings
from asrl.streaming import Budget

# Of upstream's example script, which decodes with 3 beams.
REPETITION_PENALTY = 3.0
LENGTH_PENALTY = 1.0
MAX_BEAMS = 100
MAX_TOKENS = 10**5


def add_model_options(group: argparse._MutuallyExclusiveGroup) -> None:
    """Add the two ways to name a model."""
    group.add_argument("--model", metavar="DIR", help="a FireRedASR-LLM directory, as released or exported")
    group.add_argument(
        "--checkpoint",
        metavar="C",
        help="what a run has trained: its directory (the newest checkpoint), RUN/checkpoints/step-..., or "
        "RUN/checkpoints/best",
    )


def add_format_option(parser: argparse.ArgumentParser) -> None:
    """Add how to read the manifest."""
    parser.add_argument(
        "--format", choices=FORMATS, default="auto", help="of the manifest; auto (default) looks at it"
    )


def add_decoding_options(parser: argparse.ArgumentParser) -> None:
    """Add what says how to transcribe."""
    decoding = parser.add_argument_group("decoding")
    decoding.add_argument("--beam", type=int, default=1, metavar="N", help="beams; 1 (default) is greedy")
    decoding.add_argument(
        "--max-new-tokens",
        type=int,
        default=0,
        metavar="N",
        help="most tokens of a transcript; 0 (default): one per 80 ms of speech, as upstream",
    )
    decoding.add_argument(
        "--repetition-penalty",
        type=float,
        metavar="P",
        help=f"of tokens that the transcript has already; default {REPETITION_PENALTY} with beams "
        "(upstream's example), 1 without",
    )
    decoding.add_argument(
        "--length-penalty",
        type=float,
        metavar="P",
        help=f"exponent of the length that a beam's score is divided by; default {LENGTH_PENALTY} (likewise)",
    )
    decoding.add_argument(
        "--length-rule",
        choices=("stride", "arith"),
        help="stride: the original release and FireRedASR2S (default; of a run: its own), arith: FireRedASR "
        "since December 2025",
    )


def add_work_options(parser: argparse.ArgumentParser) -> None:
    """Add what says how to go about it."""
    work = parser.add_argument_group("work (changes no result)")
    work.add_argument(
        "--batch-size", type=int, default=16, metavar="N", help="most utterances at a time; default 16"
    )
    work.add_argument(
        "--max-batch-seconds",
        type=float,
        default=240.0,
        metavar="S",
        help="most audio at a time, padding included; default 240 s",
    )
    work.add_argument("--num-workers", type=int, default=2, metavar="N", help="loader processes; default 2")
    work.add_argument("--device", help="e.g. cuda:1 or cpu; default: an accelerator if there is one")
    work.add_argument(
        "--dtype",
        choices=tuple(DTYPES),
        help="of the frozen decoder; bfloat16 needs half the memory and rounds; default float32, of a run: "
        "its own",
    )
    work.add_argument(
        "--skip-bad",
        action="store_true",
        help="go on without audio that cannot be read, with a warning for each, rather than stop",
    )


def decoding_settings(arguments: argparse.Namespace) -> DecodingSettings:
    """How to transcribe, from the options.

    Raises:
        UserError: A number is out of range, or contradicts another.
    """
    with_beams = arguments.beam > 1
    if arguments.length_penalty is not None and not with_beams:
        raise UserError("--length-penalty compares beams: add --beam 2 or more, or leave it out")
    repetition, length = arguments.repetition_penalty, arguments.length_penalty
    if repetition is None:
        repetition = REPETITION_PENALTY if with_beams else 1.0
    if length is None:
        length = LENGTH_PENALTY if with_beams else 0.0
    check_range("--beam", arguments.beam, 1, MAX_BEAMS)
    check_range("--max-new-tokens", arguments.max_new_tokens, 0, MAX_TOKENS)
    if not 0 < repetition < math.inf:
        raise UserError(f"--repetition-penalty must be above 0, got {repetition}; 1 is none")
    if not math.isfinite(length):
        raise UserError(f"--length-penalty must be finite, got {length}; 0 is none")
    return DecodingSettings(BeamSettings(arguments.beam, repetition, length), arguments.max_new_tokens)


def budget(arguments: argparse.Namespace) -> Budget:
    """How much to transcribe at a time, from the options.

    Raises:
        UserError: A number is out of range.
    """
    check_range("--batch-size", arguments.batch_size, 1)
    check_range("--num-workers", arguments.num_workers, 0)
    if not 0 < arguments.max_batch_seconds < math.inf:
        raise UserError(f"--max-batch-seconds must be above 0, got {arguments.max_batch_seconds}")
    return Budget(arguments.batch_size, arguments.max_batch_seconds, arguments.num_workers)


def check_range(option: str, value: int, least: int, most: int = 10**9) -> None:
    """Check a whole number.

    Raises:
        UserError: It is out of range.
    """
    if value < least:
        raise UserError(f"{option} must be at least {least}, got {value}")
    if value > most:
        raise UserError(f"{option} must be at most {most}, got {value}")


def refuse_overwriting(option: str, path: str | None, *inputs: str | None) -> None:
    """Check that a result does not take the place of what it is made of.

    Raises:
        UserError: It would.
    """
    if path is not None and any(given and Path(given).resolve() == Path(path).resolve() for given in inputs):
        raise UserError(f"{option} {path}: is what this command reads; name another file")
