"""This module is the only place that knows which utterance a loader's worker process is reading."""

import os
import re
from multiprocessing.sharedctypes import RawArray

from torch.utils.data import get_worker_info

NOTHING = -1


class WorkerPlaces:
    """Notes of the worker processes in memory that outlives them: what each has begun to read last.

    Args:
        num_workers: How many there are.
    """

    def __init__(self, num_workers: int) -> None:
        self._process_ids = RawArray("q", num_workers)
        self._indices = RawArray("q", [NOTHING] * num_workers)

    def note(self, index: int) -> None:
        """Note, in a worker, that it begins to read the utterance of this index."""
        worker = get_worker_info()
        if worker is not None:
            self._process_ids[worker.id] = os.getpid()
            self._indices[worker.id] = index

    def read_by(self, message: str) -> int | None:
        """Index that the first process whose id is in the message was reading; None if it is not known."""
        notes = dict(zip(self._process_ids, self._indices, strict=True))
        known = [notes[number] for number in map(int, re.findall(r"\d+", message)) if number in notes]
        return known[0] if known else None
