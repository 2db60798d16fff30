"""This module is the only place that runs ``asrl evaluate``."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from asrl.alignment import Step, count_steps, show
from asrl.bootstrap import BootstrapInterval, paired_bootstrap
from asrl.cli.options import (
    add_decoding_options,
    add_format_option,
    add_model_options,
    add_work_options,
    check_range,
    refuse_overwriting,
)
from asrl.cli.transcribe import open_recordings, transcribe_all
from asrl.cli.weights import find_source
from asrl.data.manifest import read_manifest
from asrl.errors import UserError
from asrl.evaluate import Transcription, error_rates, read_hypotheses, summarise
from asrl.files import replace_text
from asrl.scoring import RULES, numbers_to_chinese
from asrl.text import ErrorCounts
from asrl.utterance import Utterance

DESCRIPTION = """\
Error rates of a model, or of transcripts that are there already, against the texts of a manifest.

Utterances of the manifest without a hypothesis are left out and counted. With --compare, the difference to
another file comes with a 95 % interval: a paired bootstrap over the utterances that both have."""

TITLES = {
    "cer": "error rate",
    "substitutions": "substituted",
    "deletions": "deleted",
    "insertions": "inserted",
    "sentence_error_rate": "utterances with an error",
    "loop_rate": "utterances with a loop",
    "hallucination_rate": "hallucinations",
    "truncated": "cut at the token limit",
    "hotword_recall": "hotword recall",
    "hotword_precision": "hotword precision",
    "hotword_f1": "hotword F1",
}


def main() -> None:
    """Entry point of ``asrl evaluate``."""
    arguments = _parser().parse_args()
    check_range("--show", arguments.show, 0)
    for option in ("json", "output"):
        inputs = arguments.manifest, arguments.hypotheses, arguments.compare
        refuse_overwriting(f"--{option}", getattr(arguments, option), *inputs)
    compared = read_hypotheses(Path(arguments.compare)) if arguments.compare is not None else None
    utterances, found = _hypotheses(arguments)
    rules = Scorer(arguments.rules, arguments.numbers_to_chinese)
    transcriptions = _matched(utterances, found)
    if not transcriptions:
        raise UserError(f"{arguments.manifest}: no utterance has a hypothesis; check that the keys agree")
    steps = [rules.steps(each) for each in transcriptions]
    counts = [count_steps(each) for each in steps]
    num_missing = len(utterances) - len(transcriptions)
    rates = summarise(transcriptions) | error_rates(counts)
    comparison = None
    if compared is not None:
        others = _matched(utterances, compared)
        comparison = _compare(rules, others, transcriptions, arguments.compare)
    _print_worst(transcriptions, steps, arguments.show)
    _print_rates(rates, counts, arguments.rules, num_missing)
    if comparison:
        print(comparison.describe())
    if arguments.json:
        content = {
            "rules": arguments.rules,
            "num_utterances": len(transcriptions),
            "num_missing": num_missing,
            "rates": rates,
            "comparison": asdict(comparison) if comparison else None,
        }
        replace_text(Path(arguments.json), json.dumps(content, ensure_ascii=False, indent=1) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="asrl evaluate", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--manifest", required=True, metavar="M", help="holds the reference texts")
    add_format_option(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    add_model_options(what)
    what.add_argument(
        "--hypotheses",
        metavar="OUT.jsonl",
        help="output of `asrl transcribe`, of an evaluation of a run, or any lines with key and hypothesis",
    )
    parser.add_argument("--output", metavar="OUT.jsonl", help="where the model's transcripts go, resumably")
    parser.add_argument("--json", metavar="FILE", help="write the rates as JSON, too")
    parser.add_argument(
        "--rules",
        choices=tuple(RULES),
        default="asrl",
        help="how texts are cut into units and compared; upstream-v1: FireRedASR, upstream-v2: FireRedASR2S",
    )
    parser.add_argument(
        "--numbers-to-chinese",
        action="store_true",
        help="write Arabic numerals as Chinese ones on both sides (upstream's do_tn; needs cn2an)",
    )
    parser.add_argument(
        "--show", type=int, default=0, metavar="N", help="line up the N hypotheses with most errors"
    )
    parser.add_argument("--compare", metavar="OTHER.jsonl", help="hypotheses to compare with")
    add_decoding_options(parser)
    add_work_options(parser)
    return parser


def _hypotheses(arguments: argparse.Namespace) -> tuple[Sequence[Utterance], Mapping[str, Transcription]]:
    """The utterances of the manifest, and hypotheses by key, of the model if it is to write them first."""
    if arguments.hypotheses:
        if arguments.output:
            raise UserError("--output is for the transcripts of a model; with --hypotheses they are there")
        utterances: Sequence[Utterance] = read_manifest(
            arguments.manifest, format=arguments.format, check_audio=False, require_text=False
        )
        _check_texts(utterances, arguments.manifest)
        found = read_hypotheses(Path(arguments.hypotheses))
    else:
        source = find_source(model=arguments.model, checkpoint=arguments.checkpoint)
        dataset = open_recordings(source, arguments)
        _check_texts(dataset.utterances, arguments.manifest)
        outcome = transcribe_all(source, dataset, arguments, output=arguments.output)
        print(outcome.describe(), file=sys.stderr)
        utterances, found = dataset.utterances, {line.key: line for line in outcome.transcriptions}
    return utterances, found


def _check_texts(utterances: Sequence[Utterance], manifest: str) -> None:
    if not any(utterance.transcript for utterance in utterances):
        raise UserError(f"{manifest}: no line has a text to compare with; add the column 'text'")


def _matched(utterances: Sequence[Utterance], found: Mapping[str, Transcription]) -> list[Transcription]:
    """Hypotheses of the utterances that have a text, with the texts and hotwords of the manifest now."""
    return [
        Transcription(
            place,
            u.key,
            u.transcript,
            found[u.key].hypothesis,
            found[u.key].is_truncated,
            u.hotwords,
            u.distractors,
        )
        for place, u in enumerate(utterances)
        if u.key in found and u.transcript
    ]


@dataclass(frozen=True)
class Scorer:
    """Lines up a hypothesis and its transcript.

    Attributes:
        rules: Name of the rules.
        with_chinese_numbers: Numerals are rewritten first.
    """

    rules: str
    with_chinese_numbers: bool

    def steps(self, transcription: Transcription) -> list[Step]:
        """The alignment."""
        texts = transcription.transcript, transcription.hypothesis
        if self.with_chinese_numbers:
            texts = numbers_to_chinese(texts[0]), numbers_to_chinese(texts[1])
        return RULES[self.rules].steps(*texts)


@dataclass(frozen=True)
class Difference:
    """This file's error rate minus the other's, with its interval.

    Attributes:
        other: The other file.
        num_utterances: That both have.
        interval: Of the difference.
    """

    other: str
    num_utterances: int
    interval: BootstrapInterval

    def describe(self) -> str:
        """One line that sums it up."""
        low, high = 100 * self.interval.low, 100 * self.interval.high
        verdict = "lower" if high < 0 else "higher" if low > 0 else "no clear difference"
        return (
            f"against {self.other}: {100 * self.interval.difference:+.2f} points, "
            f"95 % interval [{low:+.2f}, {high:+.2f}] over {self.num_utterances} utterances: {verdict}"
        )


def _compare(
    scorer: Scorer, others: Sequence[Transcription], these: Sequence[Transcription], other: str
) -> Difference:
    common = {line.place for line in others} & {line.place for line in these}
    if not common:
        raise UserError(f"{other}: has no utterance in common with these hypotheses; check the keys")
    before, after = (
        [count_steps(scorer.steps(line)) for line in lines if line.place in common]
        for lines in (others, these)
    )
    return Difference(other, len(common), paired_bootstrap(before, after))


def _print_worst(transcriptions: Sequence[Transcription], steps: Sequence[list[Step]], number: int) -> None:
    ranked = sorted(zip(transcriptions, steps, strict=True), key=lambda pair: -count_steps(pair[1]).errors)
    for transcription, alignment in ranked[:number]:
        counts = count_steps(alignment)
        print(f"{transcription.key}: {counts.errors} errors, {counts.num_reference_tokens} units")
        print(show(alignment) + "\n")


def _print_rates(
    rates: Mapping[str, float], counts: Sequence[ErrorCounts], rules: str, num_missing: int
) -> None:
    num_units = sum(each.num_reference_tokens for each in counts)
    print(f"{len(counts)} utterances, {num_units} units, rules {rules}")
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, title in TITLES.items():
        if rates.get(name) is not None:  # no hotword found: no precision
            table.add_row(title, f"{100 * rates[name]:.2f} %")
    if "hotword_false_insertions" in rates:
        table.add_row("hotwords inserted", f"{rates['hotword_false_insertions']:.0f}")
    Console(width=80).print(table)
    if num_missing:
        print(f"left out: {num_missing} utterances of the manifest without a hypothesis or a text")
