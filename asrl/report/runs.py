"""This module is the only place that reads the directory of a run for a report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asrl.comparison import Comparison, compare
from asrl.errors import UserError
from asrl.evaluate import Transcription, read_transcriptions
from asrl.jsonl import read_json_lines


@dataclass(frozen=True)
class Change:
    """An utterance whose hypothesis changed.

    Attributes:
        split: The set that it belongs to.
        before: Its first transcription.
        after: Its last one.
    """

    split: str
    before: Transcription
    after: Transcription

    @property
    def num_errors(self) -> int:
        """How many errors were added; negative: removed."""
        return self.after.counts.errors - self.before.counts.errors


@dataclass(frozen=True)
class RunRecord:
    """What a run has left.

    Attributes:
        name: Of its directory.
        metrics: Lines of metrics.jsonl.
        comparisons: Its first evaluation of each kind against its last.
        changes: Utterances whose greedy transcripts have more or fewer errors than before.
    """

    name: str
    metrics: Sequence[Mapping[str, Any]]
    comparisons: Sequence[Comparison]
    changes: Sequence[Change]

    def curve(self, metric: str) -> tuple[list[int], list[float]]:
        """Steps and values of a metric, where it was measured."""
        points = [(row["step"], row[metric]) for row in self.metrics if row.get(metric) is not None]
        return [step for step, _ in points], [value for _, value in points]

    def most_improved(self, number: int) -> list[Change]:
        """Utterances that lost most errors."""
        return sorted((c for c in self.changes if c.num_errors < 0), key=lambda c: c.num_errors)[:number]

    def most_harmed(self, number: int) -> list[Change]:
        """Utterances that gained most errors."""
        return sorted((c for c in self.changes if c.num_errors > 0), key=lambda c: -c.num_errors)[:number]


def read_run(directory: Path) -> RunRecord:
    """Read a run, finished or not.

    Raises:
        UserError: The directory is not that of a run, or a file in it is damaged.
    """
    if not (directory / "metrics.jsonl").is_file():
        raise UserError(f"{directory}: not the directory of a run (it has no metrics.jsonl)")
    comparisons, changes = [], []
    for (split, mode), (first, last) in sorted(_evaluations(directory / "evaluations").items()):
        before, after = read_transcriptions(first), read_transcriptions(last)
        comparisons.append(compare(split, mode, before, after))
        if mode == "greedy":
            pairs = zip(before, after, strict=True)
            changes += [change for pair in pairs if (change := Change(split, *pair)).num_errors]
    name = directory.resolve().name
    return RunRecord(name, read_json_lines(directory / "metrics.jsonl"), comparisons, changes)


def _evaluations(folder: Path) -> dict[tuple[str, str], tuple[Path, Path]]:
    """First and last file of every set and way to decode that was evaluated at least twice."""
    files: dict[tuple[str, str], list[Path]] = {}
    for path in sorted(folder.glob("*-*-*.jsonl")):  # dev-greedy-00000100.jsonl; steps sort as text
        split, mode, _ = path.stem.rsplit("-", 2)
        files.setdefault((split, mode), []).append(path)
    return {kind: (paths[0], paths[-1]) for kind, paths in files.items() if len(paths) > 1}
