"""This module is the only place that decides which rows make up a batch, in which order and on which rank."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from asrl.errors import UserError
from asrl.sampling import stable_hash


@dataclass(frozen=True)
class Row:
    """One transcript to draw or to learn.

    Attributes:
        index: Position of the utterance in the manifest.
        epoch: Pass over the manifest that the row belongs to.
        row_index: Position in the generation batch over all ranks.
        replica: Which of the utterance's ``num_generations`` transcripts it is.
    """

    index: int
    epoch: int
    row_index: int
    replica: int


@lru_cache(maxsize=4)
def permute(num_utterances: int, seed: int, epoch: int) -> Tensor:
    """Order of the utterances in one epoch."""
    generator = torch.Generator().manual_seed(stable_hash(seed, "order", epoch))
    return torch.randperm(num_utterances, generator=generator)


@dataclass(frozen=True)
class RepeatSampler:
    """Batches of rows, each a pure function of its position in the run; usable as a ``batch_sampler``.

    The stream of utterances is epoch 0's permutation, epoch 1's and so on. A generation batch takes the next
    utterances of the stream, ``num_generations`` rows in a row each. Every optimizer step takes the next
    ``rows_per_step`` rows of it and every rank the next share of those, so the rows of a step do not depend
    on the number of ranks.

    Attributes:
        num_utterances: Utterances in the manifest.
        num_generations: Rows per utterance.
        rows_per_step: Rows of one optimizer step over all ranks.
        steps_per_generation: Optimizer steps that one generation batch is cut into.
        world_size: Number of ranks.
        rank: This rank.
        seed: Seed of the permutations.
        drop_last: Drop an epoch's incomplete last batch instead of filling it from the next epoch.
        start: Position of the first batch that iteration yields.
        num_batches: Batches that iteration yields, counted from ``start``; None means that it never ends.

    Example:
        Two utterances a batch, two rows each, two steps on two ranks (rows are named utterance.replica)::

            step 0: rank 0 [a.0], rank 1 [a.1]    step 1: rank 0 [b.0], rank 1 [b.1]
            batch(0) on rank 0 is [a.0, b.0], with row_index 0 and 2

    Raises:
        UserError: The counts do not divide each other, or drop_last leaves nothing.
    """

    num_utterances: int
    num_generations: int
    rows_per_step: int
    steps_per_generation: int
    world_size: int
    rank: int
    seed: int
    drop_last: bool = False
    start: int = 0
    num_batches: int | None = None

    def __post_init__(self) -> None:
        assert self.num_utterances > 0
        assert 0 <= self.rank < self.world_size
        assert min(self.num_generations, self.rows_per_step, self.steps_per_generation) > 0
        step = f"trainer.rows_per_device * ranks * trainer.gradient_accumulation_steps = {self.rows_per_step}"
        if self.rows_per_step % self.world_size:
            raise UserError(f"{step} rows of a step must divide among {self.world_size} ranks; change either")
        if self._rows_per_batch % self.num_generations:
            raise UserError(
                f"num_generations={self.num_generations} must divide the {self._rows_per_batch} rows of "
                f"a batch, {step} times steps_per_generation = {self.steps_per_generation}; change either"
            )
        if self.drop_last and self.num_utterances < self.utterances_per_batch:
            raise UserError(
                f"data.drop_last=true leaves no batch: one takes {self.utterances_per_batch} utterances, "
                f"data.train has {self.num_utterances}; set data.drop_last=false or use smaller batches"
            )

    @property
    def _rows_per_batch(self) -> int:
        return self.rows_per_step * self.steps_per_generation

    @property
    def utterances_per_batch(self) -> int:
        """Utterances of one generation batch over all ranks."""
        return self._rows_per_batch // self.num_generations

    @property
    def batches_per_epoch(self) -> float:
        """Generation batches in one pass over the manifest; not whole where batches span two epochs."""
        if self.drop_last:
            return float(self.num_utterances // self.utterances_per_batch)
        return self.num_utterances / self.utterances_per_batch

    def count_batches(self, num_epochs: int) -> int:
        """Generation batches that it takes to see every utterance ``num_epochs`` times."""
        if self.drop_last:
            return num_epochs * (self.num_utterances // self.utterances_per_batch)
        return math.ceil(num_epochs * self.num_utterances / self.utterances_per_batch)

    def epoch_of(self, position: int) -> int:
        """Epoch of the first row of a batch."""
        return self._draw(position, 0)[0]

    def batch(self, position: int) -> list[Row]:
        """Rows of this rank in generation batch number ``position``, step after step."""
        share = self.rows_per_step // self.world_size
        rows = []
        for step in range(self.steps_per_generation):
            first = step * self.rows_per_step + self.rank * share
            rows += [self._row(position, row_index) for row_index in range(first, first + share)]
        return rows

    def __iter__(self) -> Iterator[list[Row]]:
        for position in itertools.count(self.start):
            if self.num_batches is not None and position >= self.start + self.num_batches:
                return
            yield self.batch(position)

    def _row(self, position: int, row_index: int) -> Row:
        slot, replica = divmod(row_index, self.num_generations)
        epoch, place = self._draw(position, slot)
        index = int(permute(self.num_utterances, self.seed, epoch)[place])
        return Row(index=index, epoch=epoch, row_index=row_index, replica=replica)

    def _draw(self, position: int, slot: int) -> tuple[int, int]:
        """Epoch, and place in its permutation, of the utterance in a slot of a batch."""
        if self.drop_last:
            epoch, batch = divmod(position, self.num_utterances // self.utterances_per_batch)
            return epoch, batch * self.utterances_per_batch + slot
        return divmod(position * self.utterances_per_batch + slot, self.num_utterances)


def plain_batches(
    num_utterances: int,
    utterances_per_batch: int,
    *,
    world_size: int = 1,
    rank: int = 0,
    durations: Sequence[int | float] | None = None,
) -> list[list[Row]]:
    """Batches for evaluation: every utterance once, one row each, dealt out to the ranks in turn.

    Every rank has as many rows: where one would be short, it repeats the first utterance, so that ranks can
    wait for each other. ``row_index`` is the position in the manifest, to sort gathered results by.

    Args:
        num_utterances: Utterances in the manifest.
        utterances_per_batch: Rows of a batch on one rank; the last batch may have fewer.
        world_size: Number of ranks.
        rank: This rank.
        durations: Of each utterance, in any unit; batches then hold utterances alike, the longest first.
    """
    order = list(range(num_utterances))
    if durations is not None:
        order.sort(key=lambda index: -durations[index])
    order += order[:1] * (-num_utterances % world_size)
    rows = [Row(index=index, epoch=0, row_index=index, replica=0) for index in order[rank::world_size]]
    return [rows[first : first + utterances_per_batch] for first in range(0, len(rows), utterances_per_batch)]
