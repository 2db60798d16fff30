"""This module is the only place that guesses how a transcript goes on; a bad guess costs time, not a draw."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LONGEST_DRAFT = 64
SHORTEST_DRAFT = 4
LONGEST_PERIOD = 64  # tokens of a phrase that is recognised as looping


@dataclass(frozen=True)
class Draft:
    """A guess of the next tokens.

    Attributes:
        tokens: The guess.
        reference_place: Index of the reference token that the last token written is taken for.
    """

    tokens: tuple[int, ...]
    reference_place: int


@dataclass(frozen=True)
class Branch:
    """Rows of an utterance that have written the same tokens so far.

    Attributes:
        utterance: Index of the utterance.
        node: Last token written, which the decoder has not read yet; ``PROMPT`` before the first.
        rows: Rows of the batch.
        draft: Guess of the tokens after ``node``.
        draft_length: How many tokens the guess was allowed to have.
    """

    utterance: int
    node: int
    rows: tuple[int, ...]
    draft: Draft
    draft_length: int


@dataclass(frozen=True)
class Fork:
    """Rows that left a branch with the same token.

    Attributes:
        parent: Index of the branch.
        num_accepted: Tokens of its draft that the rows have written before.
        node: The token that they wrote next.
        rows: Rows of the batch.
    """

    parent: int
    num_accepted: int
    node: int
    rows: tuple[int, ...]


def find_ending(written: Sequence[int], source: Sequence[int], *, near: int | None = None) -> int | None:
    """Where ``source`` goes on after the last two tokens written, or else after the last one.

    Args:
        written: The transcript so far.
        source: A text that the transcript may repeat.
        near: Where to expect the place; the nearest one is taken. None takes the last one.
    """
    for size in (2, 1):
        if len(written) < size:
            continue
        ending = list(written[-size:])
        ends = [end for end in range(size, len(source)) if list(source[end - size : end]) == ending]
        if ends:
            return ends[-1] if near is None else min(ends, key=lambda place: abs(place - near))
    return None


def repetition(written: Sequence[int], num_tokens: int) -> list[int]:
    """Go round once more and on, if the transcript ends with the same tokens twice in a row."""
    for period in range(1, min(LONGEST_PERIOD, len(written) // 2) + 1):
        if list(written[-period:]) == list(written[-2 * period : -period]):
            return [written[index % period - period] for index in range(num_tokens)]
    return []


def propose(
    written: Sequence[int],
    reference: Sequence[int],
    reference_place: int,
    siblings: Iterable[Sequence[int]],
    num_tokens: int,
) -> Draft:
    """Guess the next tokens.

    A loop goes on; otherwise the place is looked up in the reference, then in finished siblings; failing
    that, the last token is taken for a substitution and the reference goes on after it.

    Args:
        written: The transcript so far.
        reference: Tokens of the ground truth, without the end token.
        reference_place: Index of the reference token that the last token written stands for, if nothing was
            inserted or deleted.
        siblings: Finished transcripts of the same utterance.
        num_tokens: Most tokens to guess.
    """
    if loop := repetition(written, num_tokens):
        return Draft(tuple(loop), reference_place)
    end = find_ending(written, reference, near=reference_place + 1)
    if end is not None:
        return Draft(tuple(reference[end : end + num_tokens]), end - 1)
    for sibling in siblings:
        end = find_ending(written, sibling)
        if end is not None:
            return Draft(tuple(sibling[end : end + num_tokens]), reference_place)
    start = reference_place + 1
    return Draft(tuple(reference[start : start + num_tokens]), reference_place)


def next_length(length: int, num_accepted: int, num_drafted: int) -> int:
    """Draft longer after a draft that was used up, shorter after one that was mostly wasted.

    Half of the wasted draft, not of what was allowed: a short reference ends long before that.
    """
    if num_accepted == num_drafted:
        return min(2 * length, LONGEST_DRAFT)
    if 2 * num_accepted < num_drafted:
        return max(num_drafted // 2, SHORTEST_DRAFT)
    return length
