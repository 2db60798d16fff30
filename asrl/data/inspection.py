"""This module is the only place that says what is wrong with a line of a manifest and its audio."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from torch.utils.data import DataLoader, Dataset

from asrl.data.audio import check_duration, measure_audio, read_waveform, stretch_of
from asrl.data.dataset import iterate_batches
from asrl.data.lines import ManifestLines
from asrl.data.worker_places import WorkerPlaces
from asrl.errors import UserError
from asrl.sampling import stable_hash
from asrl.text import normalize_text, text_units
from asrl.utterance import Utterance

SAMPLE_RATE = 16000
LINES_AT_ONCE = 32
DURATION_TOLERANCE = 0.1  # seconds that the column ``duration`` may be off


class Kind(str, Enum):
    """What can be wrong."""

    LINE = "bad line"
    KEY = "repeated key"
    TEXT = "no text"
    HOTWORD = "hotword not in text"
    DISTRACTOR = "distractor in text"
    AUDIO = "bad audio"
    LONG = "too long"
    DURATION = "wrong duration"


@dataclass(frozen=True)
class Problem:
    """Something wrong with a line.

    Attributes:
        index: Position in the manifest.
        kind: What is wrong.
        message: One line that begins with the place.
    """

    index: int
    kind: Kind
    message: str


@dataclass(frozen=True)
class Finding:
    """What a line holds.

    Attributes:
        index: Position in the manifest.
        key_hash: Of 64 bits, with a sign; 0 for an unreadable line.
        seconds: Of audio; NaN if it cannot be read.
        num_characters: Of the normalised transcript, without spaces.
        hotwords: As written.
        problems: What is wrong with it.
    """

    index: int
    key_hash: int = 0
    seconds: float = math.nan
    num_characters: int = 0
    hotwords: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


class Inspector(Dataset[list[Finding]]):
    """Looks at lines one by one, in this process or in workers.

    Args:
        lines: The lines.
        max_seconds: Audio as long as this or longer is a problem.
        headers_only: Believe the headers of the audio files instead of reading them.
    """

    def __init__(self, lines: ManifestLines, *, max_seconds: float, headers_only: bool) -> None:
        self.lines = lines
        self.max_seconds = max_seconds
        self.headers_only = headers_only
        self.worker_places: WorkerPlaces | None = None

    def __len__(self) -> int:
        return len(self.lines)

    def __getitems__(self, indices: Sequence[int]) -> list[Finding]:
        return [self.inspect(index) for index in indices]

    def inspect(self, index: int) -> Finding:
        """Look at one line and its audio."""
        if self.worker_places is not None:
            self.worker_places.note(index)
        try:
            utterance = self.lines.read(index)
        except UserError as error:
            return Finding(index, problems=(Problem(index, Kind.LINE, str(error)),))
        seconds, heard = self._listen(utterance)
        problems = [Problem(index, kind, message) for kind, message in [*_check_text(utterance), *heard]]
        return Finding(
            index=index,
            key_hash=stable_hash(utterance.key) - 2**63,
            seconds=seconds,
            num_characters=len(normalize_text(utterance.transcript).replace(" ", "")),
            hotwords=utterance.hotwords,
            problems=tuple(problems),
        )

    def _listen(self, utterance: Utterance) -> tuple[float, list[tuple[Kind, str]]]:
        """Seconds of audio, NaN if there is none, and what is wrong with it."""
        place, stretch = f"{utterance.place}: {utterance.key}", stretch_of(utterance)
        seconds = math.nan
        try:
            seconds = measure_audio(utterance.audio, stretch=stretch, place=place)
            if seconds >= self.max_seconds:
                rule = f"at most {self.max_seconds:g} s, got {seconds:.2f} s; cut it into pieces"
                return seconds, [(Kind.LONG, f"{place}: an utterance must last {rule}")]
            num_samples = round(seconds * SAMPLE_RATE)
            if not self.headers_only:
                num_samples = len(read_waveform(utterance.audio, stretch=stretch, place=place))
            check_duration(f"{place}: {utterance.audio}", num_samples, SAMPLE_RATE)
        except UserError as error:
            return seconds, [(Kind.AUDIO, str(error))]
        return num_samples / SAMPLE_RATE, list(_check_duration(utterance, num_samples / SAMPLE_RATE))


def inspect_all(inspector: Inspector, *, num_workers: int) -> Iterator[list[Finding]]:
    """Look at every line, in their order, some at a time.

    Raises:
        UserError: A worker process died; says what it was reading.
    """

    def place_read_by(message: str) -> str:
        index = inspector.worker_places.read_by(message) if inspector.worker_places else None
        return "before it read anything" if index is None else f"reading {inspector.lines.place(index)}"

    inspector.worker_places = WorkerPlaces(num_workers) if num_workers else None
    loader = DataLoader(
        inspector, batch_size=LINES_AT_ONCE, num_workers=num_workers, collate_fn=_keep, shuffle=False
    )
    yield from iterate_batches(loader, place_read_by)


def _check_text(utterance: Utterance) -> Iterator[tuple[Kind, str]]:
    units = text_units(utterance.transcript)
    if not units:
        yield Kind.TEXT, f"{utterance.place}: no letters or digits in the text {utterance.transcript!r}"
        return
    for word in utterance.hotwords:
        if not _contains(units, text_units(word)):
            yield Kind.HOTWORD, f"{utterance.place}: {word!r} is not in {utterance.transcript!r}"
    for word in utterance.distractors:
        if _contains(units, text_units(word)):
            yield Kind.DISTRACTOR, f"{utterance.place}: {word!r} is in {utterance.transcript!r}"


def _contains(units: Sequence[str], word: Sequence[str]) -> bool:
    starts = range(len(units) - len(word) + 1)
    return any(tuple(units[start : start + len(word)]) == tuple(word) for start in starts)


def _check_duration(utterance: Utterance, seconds: float) -> Iterator[tuple[Kind, str]]:
    stated = utterance.columns.get("duration")
    is_number = isinstance(stated, int | float) and not isinstance(stated, bool)
    if is_number and abs(stated - seconds) > DURATION_TOLERANCE:
        message = f"column 'duration' says {stated:g} s, the audio lasts {seconds:.2f} s"
        yield Kind.DURATION, f"{utterance.place}: {message}"


def _keep(findings: list[Finding]) -> list[Finding]:
    return findings
