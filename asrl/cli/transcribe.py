"""This module is the only place that runs ``asrl transcribe``."""

import argparse
import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from asrl.cli.build import load_dataset
from asrl.cli.options import (
    add_decoding_options,
    add_format_option,
    add_model_options,
    add_work_options,
    budget,
    decoding_settings,
)
from asrl.cli.weights import Source, find_source, load_source, pick_device
from asrl.data.dataset import SpeechDataset
from asrl.data.features import read_cmvn
from asrl.errors import UserError
from asrl.evaluate import Decoded, Transcription, format_transcriptions
from asrl.models.released_files import CMVN_FILE
from asrl.models.speech_llm import SpeechLLM
from asrl.rollout.decoding import DecodingSettings, decode
from asrl.streaming import BadAudio, TranscriptionFile, transcribe_in_batches
from asrl.types import SpeechBatch, on_device
from asrl.utterance import Utterance

DESCRIPTION = """\
Transcribe recordings with a FireRedASR-LLM or with what a run has trained.

The output has one JSON object per utterance, in input order: place, key, transcript (of the manifest, if it
has one), hypothesis, is_truncated (cut at the token limit), hotwords, distractors. It grows batch by batch
(the longest first), and the same command given again goes on where it was killed. A transcript does not
depend on what else is transcribed, nor on the options under "work"."""


def main() -> None:
    """Entry point of ``asrl transcribe``."""
    parser = argparse.ArgumentParser(
        prog="asrl transcribe", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_model_options(parser.add_mutually_exclusive_group(required=True))
    recordings = parser.add_mutually_exclusive_group(required=True)
    recordings.add_argument("--audio", nargs="+", metavar="FILE", help="recordings; keys are the names")
    recordings.add_argument("--manifest", metavar="M", help="recordings, as for training; needs no text")
    add_format_option(parser)
    parser.add_argument("--output", metavar="OUT.jsonl", help="default: standard output, at the end")
    add_decoding_options(parser)
    add_work_options(parser)
    arguments = parser.parse_args()
    source = find_source(model=arguments.model, checkpoint=arguments.checkpoint)
    outcome = transcribe_all(source, open_recordings(source, arguments), arguments, output=arguments.output)
    if arguments.output is None:
        sys.stdout.write(format_transcriptions(outcome.transcriptions))
    print(outcome.describe(), file=sys.stderr)


@dataclass(frozen=True)
class Outcome:
    """What a command has transcribed.

    Attributes:
        transcriptions: In input order.
        num_known: Of them, how many were there before.
        num_skipped: Utterances without one, because their audio cannot be read.
    """

    transcriptions: Sequence[Transcription]
    num_known: int
    num_skipped: int

    def describe(self) -> str:
        """One line that sums it up."""
        known = f", {self.num_known} of them before" if self.num_known else ""
        skipped = f"; skipped {self.num_skipped} with bad audio" if self.num_skipped else ""
        return f"transcribed {len(self.transcriptions)} utterances{known}{skipped}"


def open_recordings(source: Source, arguments: argparse.Namespace) -> SpeechDataset:
    """The utterances of the command line."""
    if arguments.manifest is not None:
        return load_dataset(
            arguments.manifest,
            str(source.directory),
            format=arguments.format,
            check_audio=not arguments.skip_bad,
            require_text=False,
        )
    files = arguments.audio
    stems = Counter(Path(file).stem for file in files)
    keys = [Path(file).stem if stems[Path(file).stem] == 1 else file for file in files]
    if repeated := [key for key, number in Counter(keys).items() if number > 1]:
        raise UserError(f"--audio {repeated[0]}: is given twice")
    utterances = [Utterance(key, file, "") for key, file in zip(keys, files, strict=True)]
    return SpeechDataset(utterances, cmvn=read_cmvn(source.directory / CMVN_FILE))


def transcribe_all(
    source: Source, dataset: SpeechDataset, arguments: argparse.Namespace, *, output: str | None
) -> Outcome:
    """Transcribe a data set, but for what ``output`` holds already.

    Raises:
        UserError: Options contradict each other, or a file cannot be used.
    """
    settings, parts, bad_audio = decoding_settings(arguments), budget(arguments), BadAudio(arguments.skip_bad)
    file, known = None, []
    if output is not None:
        if Path(output).name in ("", ".."):
            raise UserError(f"--output {output!r}: is not the name of a file")
        file = TranscriptionFile(Path(output), _dependencies(source, settings, arguments, dataset.utterances))
        known = file.open(dataset.utterances)
    done = {transcription.place for transcription in known}
    places = [place for place in range(len(dataset)) if place not in done]
    new: list[Transcription] = []
    if places:
        decoder = _decoder(source, settings, arguments)
        for batch in transcribe_in_batches(dataset, places, decoder, budget=parts, bad_audio=bad_audio):
            (new.extend if file is None else file.append)(batch)
    transcriptions = sorted(new, key=lambda line: line.place) if file is None else file.finish()
    return Outcome(transcriptions, len(known), len(bad_audio.faults))


def _dependencies(
    source: Source,
    settings: DecodingSettings,
    arguments: argparse.Namespace,
    utterances: Sequence[Utterance],
) -> dict[str, object]:
    """Everything that a transcript depends on."""
    return {
        "model": source.name,
        "files of the model": source.fingerprint(),
        "--beam": settings.beam.num_beams,
        "--repetition-penalty": settings.beam.repetition_penalty,
        "--length-penalty": settings.beam.length_penalty,
        "--max-new-tokens": settings.max_new_tokens,
        "--length-rule": arguments.length_rule,
        "--dtype": arguments.dtype,
        "the recordings": _fingerprint(utterances),
    }


def _fingerprint(utterances: Sequence[Utterance]) -> str:
    """Changes when a recording, its text or its place is another; a file that is not there may come later."""
    digest = hashlib.blake2b(digest_size=8)
    for u in utterances:
        path = Path(u.audio)
        size = path.stat().st_size if path.is_file() else None
        facts = (u.key, str(path.absolute()), size, u.start, u.duration, u.channel, u.transcript)
        digest.update(repr(facts).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _decoder(
    source: Source, settings: DecodingSettings, arguments: argparse.Namespace
) -> Callable[[SpeechBatch], Decoded]:
    device = pick_device(arguments.device)
    model = load_source(source, length_rule=arguments.length_rule, dtype=arguments.dtype).to(device)
    return lambda batch: _decode(model, on_device(batch, device), settings)


def _decode(model: SpeechLLM, batch: SpeechBatch, settings: DecodingSettings) -> Decoded:
    rows = decode(model, batch, settings)
    end_id = model.prompt.end_id
    return Decoded([model.prompt.decode(row) for row in rows], [end_id not in row for row in rows])
