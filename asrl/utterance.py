"""This module is the only place that says what one line of a manifest is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Utterance:
    """One recording and its transcript.

    Attributes:
        key: Unique name; seeds the rollout noise of this utterance.
        audio: Path of the audio file, absolute or relative to the working directory.
        transcript: Ground truth, as written in the manifest (not normalised).
        hotwords: Words of the transcript that must come out right.
        distractors: Words that sound plausible here but are not in the transcript.
        columns: Every other column of the manifest line, for custom rewards.
        place: ``manifest.jsonl:12``, for error messages.
        start: Where the utterance begins in the file, in seconds.
        duration: How long it lasts from there, in seconds; None: to the end of the file.
        channel: Which channel of the file it is on, counted from 0; None: the mean of all.
    """

    key: str
    audio: str
    transcript: str
    hotwords: tuple[str, ...] = ()
    distractors: tuple[str, ...] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""
    start: float = 0.0
    duration: float | None = None
    channel: int | None = None
