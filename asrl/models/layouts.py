"""This module is the only place that decides where prompt and completion embeddings sit in a decoder row.

``x`` counts the positions of a decoder row, ``q`` the completion tokens of all rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from asrl.tree import TreeBatch, tree_mask
from asrl.types import Prompts, SpeechEmbeddings


@dataclass(frozen=True)
class DecoderInputs:
    """What one decoder forward takes.

    Attributes:
        embeddings: Prompt and completion of every row, compact, padded on the right with zeros.
        is_visible: True at positions that hold an embedding (causality is added), or for every position
            (second axis) True at those that it sees (third axis).
        position_ids: Rotary position of every embedding.
        predictor_row: Row of every completion token, row by row in order.
        predictor_column: Position whose hidden state predicts that token.
    """

    embeddings: Float[Tensor, "n x d"]
    is_visible: Bool[Tensor, "n x"] | Bool[Tensor, "n x x"]
    position_ids: Int[Tensor, "n x"]
    predictor_row: Int[Tensor, " q"]
    predictor_column: Int[Tensor, " q"]

    def gather_predictors(self, hidden: Float[Tensor, "n x d"]) -> Float[Tensor, "q d"]:
        """Hidden states that predict the completion tokens."""
        return hidden[self.predictor_row, self.predictor_column]


def _take(source: Float[Tensor, "n y d"], index: Int[Tensor, "n x"], keep: Bool[Tensor, "n x"]) -> Tensor:
    """``source[row, index[row, column]]``, 0 where ``keep`` is False."""
    rows = torch.arange(len(source), device=source.device)[:, None]
    taken = source[rows, index.clamp(0, source.shape[1] - 1)]
    return taken.masked_fill(~keep[..., None], 0)


def splice_speech(
    prefix: Float[Tensor, "a d"], speech: SpeechEmbeddings, suffix: Float[Tensor, "b d"]
) -> Prompts:
    """Put each utterance's speech between prefix and suffix, without a gap.

    A gap (speech padding left in place and masked) would move the suffix to other rotary positions, and the
    result would depend on the longest utterance of the batch.

    Example:
        Prefix P, suffix Q, speech rows ``[1 2]`` and ``[3 .]``::

            P 1 2 Q
            P 3 Q .
    """
    num_utterances, num_speech, _ = speech.embeddings.shape
    source = torch.cat(
        [prefix.expand(num_utterances, -1, -1), speech.embeddings, suffix.expand(num_utterances, -1, -1)],
        dim=1,
    )
    num_tokens = speech.num_tokens + len(prefix) + len(suffix)
    column = torch.arange(int(num_tokens.max()), device=source.device).expand(num_utterances, -1)
    end_of_speech = (len(prefix) + speech.num_tokens)[:, None]
    skipped = (num_speech - speech.num_tokens)[:, None]
    index = torch.where(column < end_of_speech, column, column + skipped)
    return Prompts(_take(source, index, column < num_tokens[:, None]), num_tokens)


def replica_inputs(
    prompts: Prompts, completion_embeddings: Float[Tensor, "n l d"], mask: Bool[Tensor, "n l"]
) -> DecoderInputs:
    """One padded row per completion: ``prompts`` holds one prompt per row.

    Args:
        prompts: Prompt of every row.
        completion_embeddings: Embeddings of the completion tokens; arbitrary where ``mask`` is False.
        mask: True at the completion's tokens, which start at column 0 and have no gap.

    Example:
        Prompts ``[A B]``, ``[C .]`` and completions ``[1 2]``, ``[3 4]``::

            embeddings        A B 1 2      predictors of 1 2: row 0, columns 1 2
                              C 3 4 .      predictors of 3 4: row 1, columns 0 1
    """
    source = torch.cat([prompts.embeddings, completion_embeddings], dim=1)
    num_prompt = prompts.num_tokens[:, None]
    num_tokens = num_prompt + mask.sum(1, keepdim=True)
    column = torch.arange(int(num_tokens.max()), device=source.device).expand(len(source), -1)
    index = torch.where(column < num_prompt, column, column - num_prompt + prompts.embeddings.shape[1])
    is_valid = column < num_tokens
    row, token = mask.nonzero(as_tuple=True)
    return DecoderInputs(
        embeddings=_take(source, index, is_valid),
        is_visible=is_valid,
        position_ids=column,
        predictor_row=row,
        predictor_column=prompts.num_tokens[row] - 1 + token,
    )


def tree_inputs(prompts: Prompts, trees: TreeBatch, embed: Callable[[Tensor], Tensor]) -> DecoderInputs:
    """For every utterance its prompt, then the nodes of its tree that another node follows.

    Leaves are predicted but predict nothing, so they are left out. Short utterances share a row, unseen by
    each other, so that rows are padded little.

    Args:
        prompts: Prompt of every utterance.
        trees: Its transcripts.
        embed: Looks up token embeddings.

    Example:
        Prompt ``[A B]`` and transcripts ``1 2``, ``1 3``: the utterance is ``A B 1``, and columns 1, 2 and 2
        predict the nodes 1, 2 and 3.
    """
    inner = trees.inner()
    source = torch.cat([prompts.embeddings, embed(inner.trees.tokens)], dim=1)
    num_prompt = prompts.num_tokens[:, None]
    num_tokens = num_prompt + inner.trees.is_node.sum(1, keepdim=True)
    column = torch.arange(int(num_tokens.max()), device=source.device).expand(len(source), -1)
    index = torch.where(column < num_prompt, column, column - num_prompt + prompts.embeddings.shape[1])
    depth = inner.trees.depths.gather(1, (column - num_prompt).clamp(0, inner.trees.depths.shape[1] - 1))
    tree, node = trees.is_node.nonzero(as_tuple=True)
    inputs = DecoderInputs(
        embeddings=_take(source, index, column < num_tokens),
        is_visible=tree_mask(prompts.num_tokens, inner.trees, column.shape[1]),
        position_ids=torch.where(column < num_prompt, column, num_prompt + depth),
        predictor_row=tree,
        predictor_column=prompts.num_tokens[tree] + inner.parent_rank[tree, node],
    )
    return pack_rows(inputs, num_tokens[:, 0].tolist())


def share_rows(sizes: Sequence[int]) -> list[list[int]]:
    """Put pieces into rows so that padding all rows to the longest wastes least.

    Longest first, each into the first row with room; tried for rows one, two and four times as long as the
    longest piece, since attention costs grow with the square of the row.

    Returns:
        Numbers of the pieces in each row.
    """
    longest_first = sorted(range(len(sizes)), key=lambda piece: -sizes[piece])
    best: list[list[int]] = []
    fewest = sum(sizes) * len(sizes) + 1
    for factor in (1, 2, 4):
        rows: list[list[int]] = []
        room: list[int] = []
        for piece in longest_first:
            row = next((row for row, left in enumerate(room) if left >= sizes[piece]), len(rows))
            if row == len(rows):
                rows.append([])
                room.append(factor * max(sizes))
            rows[row].append(piece)
            room[row] -= sizes[piece]
        num_positions = len(rows) * (factor * max(sizes) - min(room))
        if num_positions < fewest:
            best, fewest = rows, num_positions
    return best


def pack_rows(inputs: DecoderInputs, sizes: Sequence[int]) -> DecoderInputs:
    """Let rows share a row where their lengths allow it; no position sees another's row.

    Args:
        inputs: Rows with pairwise visibility.
        sizes: Positions of each row that are not padding.
    """
    rows = share_rows(sizes)
    if len(rows) == len(sizes):
        return inputs
    device = inputs.embeddings.device
    width = max(sum(sizes[piece] for piece in pieces) for pieces in rows)
    # Padding sees itself, so that no softmax is empty.
    is_visible = torch.eye(width, dtype=torch.bool, device=device).repeat(len(rows), 1, 1)
    new_row, offset = [0] * len(sizes), [0] * len(sizes)
    for row, pieces in enumerate(rows):
        start = 0
        for piece in pieces:
            span, own = slice(start, start + sizes[piece]), slice(sizes[piece])
            is_visible[row, span, span] = inputs.is_visible[piece, own, own]
            new_row[piece], offset[piece] = row, start
            start += sizes[piece]

    def pack(values: Tensor) -> Tensor:
        packed = [torch.cat([values[piece, : sizes[piece]] for piece in pieces]) for pieces in rows]
        return torch.stack([_pad_to(row, width) for row in packed])

    piece = inputs.predictor_row
    return DecoderInputs(
        embeddings=pack(inputs.embeddings),
        is_visible=is_visible,
        position_ids=pack(inputs.position_ids),
        predictor_row=torch.tensor(new_row, device=device)[piece],
        predictor_column=inputs.predictor_column + torch.tensor(offset, device=device)[piece],
    )


def _pad_to(values: Tensor, length: int) -> Tensor:
    """Append zeros to the first axis."""
    return torch.cat([values, values.new_zeros(length - len(values), *values.shape[1:])])
