"""This module is the only place that cuts the rows of a step into forwards that fit the memory."""

from collections.abc import Callable, Sequence
from itertools import groupby

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from asrl.tree import PrefixTree

CountPositions = Callable[[Sequence[int]], int]  # rows -> positions that the decoder reads


def rows_with_signal(advantages: Float[Tensor, " n"], row_utterance: Int[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """True at rows of utterances with an advantage other than 0; the others have no policy gradient."""
    has_signal = torch.zeros(int(row_utterance.max()) + 1, dtype=torch.bool, device=advantages.device)
    has_signal[row_utterance[advantages != 0]] = True
    return has_signal[row_utterance]


def tree_positions(
    transcripts: Sequence[Sequence[int]], row_utterance: Sequence[int], num_prompt: Sequence[int]
) -> CountPositions:
    """Count positions of the tree layout: utterances times the longest prompt with its inner nodes.

    Args:
        transcripts: Tokens of every row.
        row_utterance: Utterance of every row.
        num_prompt: Prompt tokens of every utterance.
    """

    def count(rows: Sequence[int]) -> int:
        trees: dict[int, PrefixTree] = {}
        for row in rows:
            # The last token of a row predicts nothing.
            trees.setdefault(row_utterance[row], PrefixTree()).add_path(transcripts[row][:-1])
        return len(trees) * max(num_prompt[utterance] + len(tree) for utterance, tree in trees.items())

    return count


def replica_positions(
    transcripts: Sequence[Sequence[int]], row_utterance: Sequence[int], num_prompt: Sequence[int]
) -> CountPositions:
    """Count positions of the replica layout: rows times the longest prompt with its transcript."""

    def count(rows: Sequence[int]) -> int:
        return len(rows) * max(num_prompt[row_utterance[row]] + len(transcripts[row]) for row in rows)

    return count


def cut_rows(
    row_utterance: Sequence[int], *, max_rows: int, max_positions: int | None, count: CountPositions
) -> list[list[int]]:
    """Cut rows into parts that respect both bounds, keeping the rows of an utterance together where they fit.

    Args:
        row_utterance: Utterance of every row; rows of an utterance are neighbours.
        max_rows: Most rows of a part.
        max_positions: Most positions of a part, or None. A row that exceeds it by itself is a part of its
            own.
        count: Positions of a set of rows.
    """

    def fits(rows: Sequence[int]) -> bool:
        return len(rows) <= max_rows and (max_positions is None or count(rows) <= max_positions)

    parts: list[list[int]] = []
    current: list[int] = []
    for _, group in groupby(range(len(row_utterance)), key=lambda row: row_utterance[row]):
        block = list(group)
        pieces = [block] if fits(block) else [[row] for row in block]
        for piece in pieces:
            if current and not fits(current + piece):
                parts.append(current)
                current = []
            current = current + piece
    if current:
        parts.append(current)
    return parts
