"""This module is the only place that loads batches of speech, in this process or in worker processes."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from asrl.data.audio import read_audio, stretch_of
from asrl.data.features import Cmvn, fbank
from asrl.data.sampler import Row
from asrl.data.worker_places import WorkerPlaces
from asrl.errors import UserError
from asrl.types import SpeechBatch
from asrl.utterance import Utterance

Item = TypeVar("Item")


class SpeechDataset(Dataset[SpeechBatch]):
    """Utterances, read from disk as the rows of a batch ask for them.

    Args:
        utterances: The manifest.
        cmvn: Normalisation of the features.
        sample_rate: What audio is resampled to, in Hz.
        perturb: Called as ``perturb(waveform, epoch=..., key=...)``, e.g. a ``Perturbation``.
        augment: Called as ``augment(features, epoch=..., key=...)`` on normalised features, e.g. a
            ``SpecAugment``.
    """

    def __init__(
        self,
        utterances: Sequence[Utterance],
        *,
        cmvn: Cmvn,
        sample_rate: int = 16000,
        perturb: Callable[..., Tensor] | None = None,
        augment: Callable[..., Tensor] | None = None,
    ) -> None:
        self.utterances = utterances
        self.cmvn = cmvn
        self.sample_rate = sample_rate
        self.perturb = perturb
        self.augment = augment
        self.worker_places: WorkerPlaces | None = None

    def __len__(self) -> int:
        return len(self.utterances)

    def featurize(self, utterance: Utterance, *, epoch: int = 0) -> Float[Tensor, "f m"]:
        """Compute the features of one utterance, as every batch holds them.

        Raises:
            UserError: The audio cannot be used; names the manifest line and the key.
        """
        waveform = read_audio(
            utterance.audio,
            stretch=stretch_of(utterance),
            sample_rate=self.sample_rate,
            place=_place(utterance),
        )
        if self.perturb is not None:
            waveform = self.perturb(waveform, epoch=epoch, key=utterance.key)
        features = self.cmvn.apply(fbank(waveform, sample_rate=self.sample_rate))
        return features if self.augment is None else self.augment(features, epoch=epoch, key=utterance.key)

    def collate(self, rows: Sequence[Row]) -> SpeechBatch:
        """Read each utterance of the rows once (once per epoch if the rows span two) and pad the features.

        Raises:
            UserError: As ``featurize``.
        """
        slots: dict[tuple[int, int], int] = {}
        row_utterance = [slots.setdefault((row.index, row.epoch), len(slots)) for row in rows]
        features = [self._read(index, epoch) for index, epoch in slots]
        return SpeechBatch(
            utterances=tuple(self.utterances[index] for index, _ in slots),
            features=pad_sequence(features, batch_first=True),
            num_frames=torch.tensor([len(matrix) for matrix in features]),
            row_utterance=torch.tensor(row_utterance),
            row_index=torch.tensor([row.row_index for row in rows]),
            replica=torch.tensor([row.replica for row in rows]),
            epoch=torch.tensor([row.epoch for row in rows]),
        )

    def _read(self, index: int, epoch: int) -> Float[Tensor, "f m"]:
        if self.worker_places is not None:
            self.worker_places.note(index)
        return self.featurize(self.utterances[index], epoch=epoch)

    def __getitems__(self, rows: list[Row]) -> SpeechBatch | UserError:
        """Answer a DataLoader; errors are returned, because raised in a worker they arrive as a traceback."""
        try:
            return self.collate(rows)
        except UserError as error:
            return error


@dataclass(frozen=True)
class SpeechLoader:
    """Batches of speech; each iteration starts at the first batch again."""

    loader: DataLoader

    def __iter__(self) -> Iterator[SpeechBatch]:
        return iterate_batches(self.loader, self._place_read_by)

    def _place_read_by(self, message: str) -> str:
        """Say what a worker that died was reading."""
        dataset: SpeechDataset = self.loader.dataset  # type: ignore[assignment]
        index = dataset.worker_places.read_by(message) if dataset.worker_places else None
        if index is None:
            return "before it read anything"
        utterance = dataset.utterances[index]
        return f"while or after reading {_place(utterance)}: {utterance.audio}"


def make_loader(
    dataset: SpeechDataset,
    batches: Iterable[list[Row]],
    *,
    num_workers: int = 0,
    prefetch_factor: int = 2,
) -> SpeechLoader:
    """Load batches of rows (a ``RepeatSampler`` or ``plain_batches``), ahead of time if there are workers.

    Workers compute on one thread each. Neither they nor the loader touch the global random state.

    Args:
        dataset: Where the rows come from.
        batches: Rows of each batch.
        num_workers: Worker processes; 0 loads in this process.
        prefetch_factor: Batches that each worker prepares ahead.
    """
    dataset.worker_places = WorkerPlaces(num_workers) if num_workers else None
    loader = DataLoader(
        dataset,
        batch_sampler=batches,  # type: ignore[arg-type]
        num_workers=num_workers,
        prefetch_factor=prefetch_factor if num_workers else None,
        collate_fn=_keep,
        worker_init_fn=_leave_signals_to_parent,
        generator=torch.Generator(),  # else every iteration would draw a number from the global generator
    )
    return SpeechLoader(loader)


def iterate_batches(
    loader: Iterable[Item | UserError], place_read_by: Callable[[str], str]
) -> Iterator[Item]:
    """Yield what a DataLoader reads, e.g. the batches of a ``SpeechDataset``.

    Args:
        loader: The DataLoader.
        place_read_by: Says what the process was reading whose id is in a message.

    Raises:
        UserError: An utterance cannot be read, or a worker process died.
    """
    # torch would raise an error wherever this process is when a worker dies; it notices here as well.
    with _kept_handler(signal.SIGCHLD):
        iterator = iter(loader)
    while (batch := _load_next(iterator, place_read_by)) is not None:
        if isinstance(batch, UserError):
            # End the workers now: the traceback would leave that to the garbage collector, at 5 s a worker.
            del iterator
            raise batch
        yield batch


@contextmanager
def _kept_handler(number: int) -> Iterator[None]:
    """Put a signal's handler back; only the main thread may set one."""
    handler = signal.getsignal(number)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _load_next(
    iterator: Iterator[Item | UserError], place_read_by: Callable[[str], str]
) -> Item | UserError | None:
    """Return the next batch, the error that takes its place, or None at the end."""
    try:
        return next(iterator, None)
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker (pid"):
            raise
        reason = " ".join(str(error).split())
        return UserError(
            f"data.num_workers: a worker process died {place_read_by(reason)} ({reason}); often memory or "
            "/dev/shm is full: lower data.num_workers, or set it to 0 to see the cause"
        )


def _leave_signals_to_parent(_: int) -> None:
    """Go on when the whole process group is signalled: the run still finishes its batch."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)


def _place(utterance: Utterance) -> str:
    return f"{utterance.place}: {utterance.key}" if utterance.place else utterance.key


def _keep(batch: SpeechBatch | UserError) -> SpeechBatch | UserError:
    """Pass on what ``__getitems__`` has collated already."""
    return batch
