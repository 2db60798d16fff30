"""This module is the only place that transcribes data into a file that a killed command goes on with."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from asrl.data.audio import measure_audio, stretch_of
from asrl.data.budget import budget_batches
from asrl.data.dataset import SpeechDataset, make_loader
from asrl.data.sampler import Row
from asrl.errors import UserError
from asrl.evaluate import (
    Decoded,
    Transcription,
    append_transcriptions,
    read_transcriptions,
    transcribe,
    write_transcriptions,
)
from asrl.files import replace_text
from asrl.types import SpeechBatch
from asrl.utterance import Utterance


@dataclass(frozen=True)
class Budget:
    """How much is transcribed at a time.

    Attributes:
        max_utterances: In one batch.
        max_seconds: Of audio in one batch, padding included.
        num_workers: Loader processes.
    """

    max_utterances: int
    max_seconds: float
    num_workers: int


class TranscriptionFile:
    """One JSON object per utterance, as ``write_transcriptions`` writes them.

    While it grows its lines are in the order in which batches are done; at the end they are sorted. What
    they were made with lies beside it, so that a file is never continued with another model.

    Args:
        path: The file.
        settings: Whatever the transcriptions depend on, as JSON values.
    """

    def __init__(self, path: Path, settings: Mapping[str, object]) -> None:
        self.path = path
        self.settings = settings
        self.settings_path = path.with_name(f"{path.name}.settings.json")

    def open(self, utterances: Sequence[Utterance]) -> list[Transcription]:
        """Return what an earlier command has transcribed; a line that it was killed in is dropped.

        Raises:
            UserError: The file was made with other settings, of other utterances, or by something else.
        """
        if not self.path.exists():
            self._begin()
            return []
        self._check_settings()
        # By place: two commands that wrote at the same time leave lines twice.
        done = list(
            {transcription.place: transcription for transcription in read_transcriptions(self.path)}.values()
        )
        for transcription in done:
            place = transcription.place
            if not 0 <= place < len(utterances) or utterances[place].key != transcription.key:
                raise UserError(
                    f"{self.path}: holds {transcription.key!r}, which is not utterance {place + 1} of the "
                    "input; give the input that it was made of, or another --output"
                )
        write_transcriptions(self.path, done)
        return done

    def append(self, transcriptions: Sequence[Transcription]) -> None:
        """Write the transcriptions of a batch."""
        append_transcriptions(self.path, transcriptions)

    def finish(self) -> list[Transcription]:
        """Sort the lines; return them."""
        transcriptions = sorted(read_transcriptions(self.path), key=lambda line: line.place)
        write_transcriptions(self.path, transcriptions)
        return transcriptions

    def _begin(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{self.path}: cannot create its folder ({error.strerror})") from error
        replace_text(self.settings_path, json.dumps(self.settings, ensure_ascii=False, indent=1) + "\n")
        write_transcriptions(self.path, [])

    def _check_settings(self) -> None:
        if not self.settings_path.is_file():
            raise UserError(
                f"{self.path}: exists, and was not made by this command ({self.settings_path.name} is not "
                "beside it); give another --output"
            )
        try:
            before = dict(json.loads(self.settings_path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise UserError(f"{self.settings_path}: damaged; delete it and {self.path.name}") from error
        for name in {**before, **self.settings}:
            if before.get(name) != self.settings.get(name):
                raise UserError(
                    f"{self.path}: was begun with {name} {before.get(name)!r}, not "
                    f"{self.settings.get(name)!r}; give the same options to go on, or another --output"
                )


@dataclass
class BadAudio:
    """What to do about audio that cannot be read.

    Attributes:
        is_skipped: Go on without it, rather than stop.
        faults: What was skipped, and why.
    """

    is_skipped: bool
    faults: list[str] = field(default_factory=list)

    def note(self, error: UserError) -> None:
        """Skip an utterance.

        Raises:
            UserError: The error itself, unless bad audio is skipped.
        """
        if not self.is_skipped:
            raise error
        self.faults.append(str(error))
        tqdm.write(f"warning: skipped: {error}", file=sys.stderr)


def transcribe_in_batches(
    dataset: SpeechDataset,
    places: Sequence[int],
    decode: Callable[[SpeechBatch], Decoded],
    *,
    budget: Budget,
    bad_audio: BadAudio,
) -> Iterator[list[Transcription]]:
    """Yield transcriptions batch by batch, with a progress bar; of the longest utterances first.

    Args:
        dataset: The utterances.
        places: Which of them.
        decode: Transcribes a batch.
        budget: Of a batch.
        bad_audio: Told about audio that cannot be read.

    Raises:
        UserError: Audio cannot be read and is not to be skipped.
    """
    seconds: dict[int, float] = {}
    for place in tqdm(places, desc="durations", unit="utt", leave=False):
        try:
            seconds[place] = _measure(dataset.utterances[place])
        except UserError as error:
            bad_audio.note(error)
    batches = budget_batches(seconds, max_utterances=budget.max_utterances, max_seconds=budget.max_seconds)
    with tqdm(total=len(seconds), desc="transcribe", unit="utt") as progress:
        for batch in _load(dataset, batches, budget.num_workers, bad_audio):
            yield transcribe([batch], decode)
            progress.update(len(batch.utterances))


def _measure(utterance: Utterance) -> float:
    """Seconds by the manifest, or else by the header of the file."""
    if utterance.duration is not None:
        return utterance.duration
    place = f"{utterance.place}: {utterance.key}" if utterance.place else utterance.key
    return measure_audio(utterance.audio, stretch=stretch_of(utterance), place=place)


def _load(
    dataset: SpeechDataset, batches: list[list[Row]], num_workers: int, bad_audio: BadAudio
) -> Iterator[SpeechBatch]:
    """Load batches; one with bad audio in it is loaded again without."""
    while batches:
        num_loaded, failure = 0, None
        try:
            for batch in make_loader(dataset, batches, num_workers=num_workers):
                num_loaded += 1
                yield batch
        except UserError as error:
            failure = error
        batches = batches[num_loaded:]
        if failure is not None:
            rows = _readable(dataset, batches[0], failure, bad_audio)
            batches = [*([rows] if rows else []), *batches[1:]]


def _readable(
    dataset: SpeechDataset, rows: Sequence[Row], failure: UserError, bad_audio: BadAudio
) -> list[Row]:
    """Rows whose audio can be read.

    Raises:
        UserError: The failure, if audio was not its cause.
    """
    readable = []
    for row in rows:
        try:
            dataset.featurize(dataset.utterances[row.index])
            readable.append(row)
        except UserError as error:
            bad_audio.note(error)
    if len(readable) == len(rows):
        raise failure
    return readable
