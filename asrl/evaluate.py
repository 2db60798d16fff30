"""This module is the only place that measures a model on a held-out set."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from asrl.errors import UserError
from asrl.files import replace_text
from asrl.jsonl import read_json_lines
from asrl.rewards.hallucination import is_hallucination, loop_share
from asrl.rewards.hotword import HotwordCounts, hotword_counts
from asrl.text import ErrorCounts, error_counts
from asrl.types import SpeechBatch
from asrl.utterance import Utterance


@dataclass(frozen=True)
class Transcription:
    """What the model wrote for one utterance.

    Attributes:
        place: Position of the utterance in its manifest.
        key: Of the utterance.
        transcript: Ground truth.
        hypothesis: Decoded text.
        is_truncated: The hypothesis was cut at the token limit.
        hotwords: Of the utterance.
        distractors: Of the utterance.
    """

    place: int
    key: str
    transcript: str
    hypothesis: str
    is_truncated: bool
    hotwords: tuple[str, ...] = ()
    distractors: tuple[str, ...] = ()

    @cached_property
    def counts(self) -> ErrorCounts:
        """Errors against the transcript."""
        return error_counts(self.transcript, self.hypothesis)

    @property
    def hotword_counts(self) -> HotwordCounts:
        """Hotwords found, missed and inserted."""
        utterance = Utterance(self.key, "", self.transcript, self.hotwords, self.distractors)
        return hotword_counts(self.hypothesis, utterance)


@dataclass(frozen=True)
class Decoded:
    """Hypotheses of a batch's rows."""

    hypotheses: Sequence[str]
    is_truncated: Sequence[bool]


def transcribe(
    batches: Iterable[SpeechBatch], decode: Callable[[SpeechBatch], Decoded]
) -> list[Transcription]:
    """Decode batches of one row per utterance."""
    transcriptions = []
    for batch in batches:
        decoded = decode(batch)
        rows = zip(
            batch.row_index.tolist(),
            batch.row_utterances,
            decoded.hypotheses,
            decoded.is_truncated,
            strict=True,
        )
        transcriptions += [
            Transcription(place, u.key, u.transcript, hypothesis, is_truncated, u.hotwords, u.distractors)
            for place, u, hypothesis, is_truncated in rows
        ]
    return transcriptions


def error_rates(counts: Sequence[ErrorCounts]) -> dict[str, float]:
    """Error rate of a corpus, the shares of the three kinds of error, and of utterances with any."""
    total = sum(counts, ErrorCounts(0, 0, 0, 0))
    num_reference = max(total.num_reference_tokens, 1)
    return {
        "cer": total.rate,
        "substitutions": total.substitutions / num_reference,
        "deletions": total.deletions / num_reference,
        "insertions": total.insertions / num_reference,
        "sentence_error_rate": sum(each.errors > 0 for each in counts) / max(len(counts), 1),
    }


def summarise(transcriptions: Sequence[Transcription]) -> dict[str, float]:
    """Corpus-level rates.

    Substitutions, deletions and insertions are shares of the reference's units, like ``cer``.
    """
    num_rows = max(len(transcriptions), 1)
    loops = [loop_share(t.hypothesis, t.transcript) > 0 for t in transcriptions]
    strange = [is_hallucination(t.transcript, t.hypothesis) for t in transcriptions]
    rates = error_rates([t.counts for t in transcriptions]) | {
        "loop_rate": sum(loops) / num_rows,
        "hallucination_rate": sum(strange) / num_rows,
        "truncated": sum(t.is_truncated for t in transcriptions) / num_rows,
    }
    hotwords = sum((t.hotword_counts for t in transcriptions), HotwordCounts(0, 0, 0, 0))
    if hotwords.hits + hotwords.misses:
        rates |= {
            "hotword_recall": hotwords.recall,
            "hotword_precision": hotwords.precision,
            "hotword_f1": hotwords.f1,
            "hotword_false_insertions": hotwords.false_insertions,
        }
    return rates


def write_transcriptions(path: Path, transcriptions: Iterable[Transcription]) -> None:
    """Write one JSON object per utterance; the file is complete or absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, format_transcriptions(transcriptions))


def append_transcriptions(path: Path, transcriptions: Iterable[Transcription]) -> None:
    """Add lines to a file; a kill cuts the last one short at worst.

    Raises:
        UserError: The disk is full or not writable.
    """
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(format_transcriptions(transcriptions))
    except OSError as error:
        raise UserError(
            f"{path}: cannot write ({error.strerror}); make room and give the same command again"
        ) from error


def format_transcriptions(transcriptions: Iterable[Transcription]) -> str:
    """One line of JSON for each."""
    return "".join(json.dumps(asdict(line), ensure_ascii=False) + "\n" for line in transcriptions)


def read_transcriptions(path: Path) -> list[Transcription]:
    """Read what ``write_transcriptions`` wrote.

    Raises:
        UserError: The file is missing or holds something else.
    """
    transcriptions = []
    for number, row in enumerate(read_json_lines(path), start=1):
        try:
            row |= {name: tuple(row.get(name, ())) for name in ("hotwords", "distractors")}
            transcriptions.append(Transcription(**row))
        except TypeError as error:
            raise UserError(f"{path}:{number}: not a line written by an evaluation ({error})") from error
    return transcriptions


def read_hypotheses(path: Path) -> dict[str, Transcription]:
    """Read hypotheses by key, of anyone's lines that hold ``key`` and ``hypothesis``.

    Raises:
        UserError: The file is missing, a line lacks one of them, or a key comes twice.
    """
    found: dict[str, Transcription] = {}
    for number, row in enumerate(read_json_lines(path, may_be_cut=False), start=1):
        key, hypothesis = row.get("key"), row.get("hypothesis")
        if not isinstance(key, str) or not isinstance(hypothesis, str):
            raise UserError(
                f"{path}:{number}: a line needs the texts 'key' and 'hypothesis', got {list(row)}"
            )
        if key in found:
            raise UserError(f"{path}:{number}: key {key!r} was already used on an earlier line")
        found[key] = Transcription(number - 1, key, "", hypothesis, bool(row.get("is_truncated", False)))
    return found
