"""This module is the only place that lines the units of two texts up, and shows how; it needs no torch."""

import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

import jiwer

from asrl.text import ErrorCounts

Kind = Literal["hit", "substitution", "deletion", "insertion"]
MARKS: dict[Kind, str] = {"hit": "", "substitution": "S", "deletion": "D", "insertion": "I"}


@dataclass(frozen=True)
class Step:
    """A unit of the reference and the one of the hypothesis that stands for it; empty where there is none."""

    kind: Kind
    reference: str
    hypothesis: str


def align(reference: Sequence[str], hypothesis: Sequence[str]) -> list[Step]:
    """An alignment with the fewest errors, that of ``text.error_counts``; units hold no white space."""
    aligned = jiwer.process_words(" ".join(reference), " ".join(hypothesis))
    kinds: dict[str, Kind] = {
        "equal": "hit",
        "substitute": "substitution",
        "delete": "deletion",
        "insert": "insertion",
    }
    steps = []
    for chunk in aligned.alignments[0]:
        left = reference[chunk.ref_start_idx : chunk.ref_end_idx]
        right = hypothesis[chunk.hyp_start_idx : chunk.hyp_end_idx]
        pairs = zip_longest(left, right, fillvalue="")  # as many of both, or none of one
        steps += [Step(kinds[chunk.type], *pair) for pair in pairs]
    return steps


def align_diagonal_first(reference: Sequence[str], hypothesis: Sequence[str]) -> list[Step]:
    """An alignment with the fewest errors; of several, that of upstream's wer.py.

    Each cell of the table keeps the first of diagonal, deletion and insertion that costs least. Only how the
    errors split into the three kinds depends on it.
    """
    costs = [list(range(len(hypothesis) + 1))]
    for row, unit in enumerate(reference, start=1):
        costs.append([row])
        for column, other in enumerate(hypothesis, start=1):
            diagonal = costs[row - 1][column - 1] + (unit != other)
            costs[row].append(min(diagonal, costs[row - 1][column] + 1, costs[row][column - 1] + 1))
    return list(_walk_back(costs, reference, hypothesis))[::-1]


def _walk_back(
    costs: Sequence[Sequence[int]], reference: Sequence[str], hypothesis: Sequence[str]
) -> Iterator[Step]:
    row, column = len(reference), len(hypothesis)
    while row or column:
        cost = costs[row][column]
        left, right = reference[row - 1] if row else "", hypothesis[column - 1] if column else ""
        if row and column and cost == costs[row - 1][column - 1] + (left != right):
            yield Step("hit" if left == right else "substitution", left, right)
            row, column = row - 1, column - 1
        elif row and cost == costs[row - 1][column] + 1:
            yield Step("deletion", left, "")
            row -= 1
        else:
            yield Step("insertion", "", right)
            column -= 1


def count_steps(steps: Sequence[Step]) -> ErrorCounts:
    """Hits and errors of an alignment."""
    number = Counter(step.kind for step in steps)
    return ErrorCounts(number["hit"], number["substitution"], number["deletion"], number["insertion"])


def show(steps: Sequence[Step], *, width: int = 100) -> str:
    """Reference, hypothesis and marks of errors in three lines, more where they are wider than ``width``.

    Example:
        ::

            REF  打 开 空 调
            HYP  打    空 条
                    D     S
    """
    blocks: list[list[str]] = []
    used = width
    for step in steps:
        cells = step.reference, step.hypothesis, MARKS[step.kind]
        columns = max(map(_columns, cells)) + 1
        if used + columns > width:
            blocks.append(["REF  ", "HYP  ", "     "])
            used = len("REF  ")
        blocks[-1] = [
            line + cell + " " * (columns - _columns(cell))
            for line, cell in zip(blocks[-1], cells, strict=True)
        ]
        used += columns
    return "\n".join(line.rstrip() for block in blocks for line in block)


def _columns(text: str) -> int:
    """Columns of a terminal that a text takes: two for a Han character, none for a combining mark."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(unicodedata.combining(character) != 0 for character in text)
