"""This module is the only place that decides where prompt and completion embeddings sit in a decoder row.

``x`` counts the positions of a decoder row, ``q`` the completion tokens of all rows.
"""

from collections.abc import Callable
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
        is_visible: True at positions that hold an embedding (causality is added), or for every position (second
            axis) True at those that it sees (third axis).
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
    """One row per utterance: its prompt, then every node of its tree that another node follows.

    Leaves are predicted but predict nothing, so they are left out.

    Args:
        prompts: Prompt of every utterance.
        trees: Its transcripts.
        embed: Looks up token embeddings.

    Example:
        Prompt ``[A B]`` and transcripts ``1 2``, ``1 3``: the row is ``A B 1``, and columns 1, 2 and 2 predict the
        nodes 1, 2 and 3.
    """
    inner = trees.inner()
    source = torch.cat([prompts.embeddings, embed(inner.trees.tokens)], dim=1)
    num_prompt = prompts.num_tokens[:, None]
    num_tokens = num_prompt + inner.trees.is_node.sum(1, keepdim=True)
    column = torch.arange(int(num_tokens.max()), device=source.device).expand(len(source), -1)
    index = torch.where(column < num_prompt, column, column - num_prompt + prompts.embeddings.shape[1])
    depth = inner.trees.depths.gather(1, (column - num_prompt).clamp(0, inner.trees.depths.shape[1] - 1))
    tree, node = trees.is_node.nonzero(as_tuple=True)
    return DecoderInputs(
        embeddings=_take(source, index, column < num_tokens),
        is_visible=tree_mask(prompts.num_tokens, inner.trees, column.shape[1]),
        position_ids=torch.where(column < num_prompt, column, num_prompt + depth),
        predictor_row=tree,
        predictor_column=prompts.num_tokens[tree] + inner.parent_rank[tree, node],
    )
