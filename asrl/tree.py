"""This module is the only place that knows how the transcripts of an utterance share their beginnings.

``z`` counts the nodes of a tree, ``a`` the positions of an attention mask.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

PROMPT = -1  # parent of a first token


@dataclass
class PrefixTree:
    """Transcripts of one utterance, every shared beginning stored once.

    A node is one token after one particular history. Nodes are numbered as they are added, so a parent comes
    before its children.

    Attributes:
        tokens: Token id of each node.
        parents: Node before each node; ``PROMPT`` for a first token.
        depths: Number of tokens before each node.

    Example:
        Transcripts ``a b``, ``a c`` and ``a b``::

            tokens [a, b, c]   parents [-1, 0, 0]   depths [0, 1, 1]   paths [[0, 1], [0, 2], [0, 1]]
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    _children: dict[tuple[int, int], int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, parent: int, token: int) -> int:
        """Return the node for ``token`` after ``parent``, a new one if there is none yet."""
        node = self._children.get((parent, token))
        if node is None:
            node = self._children[parent, token] = len(self.tokens)
            self.tokens.append(token)
            self.parents.append(parent)
            self.depths.append(0 if parent == PROMPT else self.depths[parent] + 1)
        return node

    def add_path(self, tokens: Sequence[int]) -> list[int]:
        """Add a transcript; return its nodes."""
        path, node = [], PROMPT
        for token in tokens:
            node = self.add(node, token)
            path.append(node)
        return path

    def path(self, node: int) -> list[int]:
        """Nodes from the first token to ``node``."""
        nodes = []
        while node != PROMPT:
            nodes.append(node)
            node = self.parents[node]
        return nodes[::-1]


@dataclass(frozen=True)
class TreeBatch:
    """The trees of several utterances, and where each row runs through its own.

    Attributes:
        tokens: Token id of each node; arbitrary where ``is_node`` is False.
        parents: Node before each node, ``PROMPT`` for a first token.
        depths: Tokens before each node.
        is_node: True at nodes, which are packed to the left.
        paths: Node of each token of each row; 0 where the row has no token.
        row_tree: Tree of each row.
    """

    tokens: Int[Tensor, "u z"]
    parents: Int[Tensor, "u z"]
    depths: Int[Tensor, "u z"]
    is_node: Bool[Tensor, "u z"]
    paths: Int[Tensor, "n l"]
    row_tree: Int[Tensor, " n"]

    def gather(self, node_values: Float[Tensor, "u z"], mask: Bool[Tensor, "n l"]) -> Float[Tensor, "n l"]:
        """Value of every token of every row; 0 where ``mask`` is False. Gradients of shared nodes add up."""
        return node_values[self.row_tree[:, None], self.paths].masked_fill(~mask, 0)

    def inner(self) -> "InnerNodes":
        """The nodes that another node follows, renumbered from 0 in the same order."""
        num_trees, num_nodes = self.parents.shape
        tree, node = (self.is_node & (self.parents != PROMPT)).nonzero(as_tuple=True)
        is_inner = torch.zeros(num_trees, num_nodes, dtype=torch.bool, device=self.parents.device)
        is_inner[tree, self.parents[tree, node]] = True
        rank = is_inner.cumsum(1) - 1
        parent_rank = torch.full_like(self.parents, PROMPT)
        parent_rank[tree, node] = rank[tree, self.parents[tree, node]]
        sizes = is_inner.sum(1)
        num_inner = max(1, int(sizes.max()))
        # Inner nodes first, each group in its old order.
        kept = (~is_inner).byte().argsort(dim=1, stable=True)[:, :num_inner]
        trees = TreeBatch(
            tokens=self.tokens.gather(1, kept),
            parents=parent_rank.gather(1, kept),
            depths=self.depths.gather(1, kept),
            is_node=torch.arange(num_inner, device=sizes.device) < sizes[:, None],
            paths=self.paths[:, :0],
            row_tree=self.row_tree,
        )
        return InnerNodes(trees, parent_rank)


@dataclass(frozen=True)
class InnerNodes:
    """A tree batch without leaves.

    Attributes:
        trees: The remaining nodes; without paths, since every path ends with a leaf.
        parent_rank: Number of each original node's parent among the remaining nodes, or ``PROMPT``.
    """

    trees: TreeBatch
    parent_rank: Int[Tensor, "u z"]


def pad_trees(
    trees: Sequence[PrefixTree],
    paths: Sequence[Sequence[int]],
    row_tree: Int[Tensor, " n"],
    *,
    num_columns: int,
) -> TreeBatch:
    """Turn trees into tensors, on the device of ``row_tree``.

    Args:
        trees: One per utterance.
        paths: Nodes of each row.
        row_tree: Tree of each row.
        num_columns: Width of ``paths``.
    """
    num_nodes = max(1, max(map(len, trees), default=0))

    def pad(rows: Iterator[Sequence[int]], width: int, value: int) -> Tensor:
        padded = [[*row, *([value] * (width - len(row)))] for row in rows]
        return torch.tensor(padded, dtype=torch.long, device=row_tree.device).reshape(-1, width)

    sizes = torch.tensor([len(tree) for tree in trees], device=row_tree.device)
    return TreeBatch(
        tokens=pad((tree.tokens for tree in trees), num_nodes, 0),
        parents=pad((tree.parents for tree in trees), num_nodes, PROMPT),
        depths=pad((tree.depths for tree in trees), num_nodes, 0),
        is_node=torch.arange(num_nodes, device=row_tree.device) < sizes[:, None],
        paths=pad(iter(paths), num_columns, 0),
        row_tree=row_tree,
    )


def build_trees(
    tokens: Int[Tensor, "n l"], mask: Bool[Tensor, "n l"], row_tree: Int[Tensor, " n"], num_trees: int
) -> TreeBatch:
    """Build the trees of given transcripts.

    Args:
        tokens: One transcript per row; arbitrary where ``mask`` is False.
        mask: True at tokens, which start at column 0 and have no gap.
        row_tree: Tree of each row.
        num_trees: Number of trees; one without rows is empty.
    """
    trees = [PrefixTree() for _ in range(num_trees)]
    rows = zip(tokens.tolist(), mask.sum(1).tolist(), row_tree.tolist(), strict=True)
    paths = [trees[tree].add_path(row[:num_tokens]) for row, num_tokens, tree in rows]
    return pad_trees(trees, paths, row_tree, num_columns=tokens.shape[1])


def ancestors(parents: Int[Tensor, "u z"], depths: Int[Tensor, "u z"]) -> Bool[Tensor, "u z z"]:
    """True where the second node is the first itself or comes before it on its path."""
    num_trees, num_nodes = parents.shape
    is_ancestor = torch.eye(num_nodes, dtype=torch.bool, device=parents.device).repeat(num_trees, 1, 1)
    # Level by level: the nodes of a level take over what their parents see.
    for depth in range(1, int(depths.max()) + 1):
        tree, node = (depths == depth).nonzero(as_tuple=True)
        is_ancestor[tree, node] |= is_ancestor[tree, parents[tree, node]]
    return is_ancestor


def tree_mask(num_prompt: Int[Tensor, " u"], trees: TreeBatch, num_positions: int) -> Bool[Tensor, "u a a"]:
    """Which position (second axis) sees which (third), for rows of prompt, then nodes, then padding.

    Causal over the prompt; a node sees the prompt, its ancestors and itself. Padding sees itself, so that no
    softmax is empty.

    Args:
        num_prompt: Prompt tokens of each utterance.
        trees: Their trees.
        num_positions: Width of the rows.
    """
    device = num_prompt.device
    position = torch.arange(num_positions, device=device)
    is_prompt = position < num_prompt[:, None]
    causal = position[:, None] >= position
    visible = (causal & is_prompt[:, None, :]) | torch.eye(num_positions, dtype=torch.bool, device=device)
    node = position - num_prompt[:, None]
    num_nodes = trees.is_node.shape[1]
    is_node = (node >= 0) & (node < trees.is_node.sum(1, keepdim=True))
    index = node.clamp(0, num_nodes - 1)
    tree = torch.arange(len(num_prompt), device=device)[:, None, None]
    related = ancestors(trees.parents, trees.depths)[tree, index[:, :, None], index[:, None, :]]
    return visible | (related & is_node[:, :, None] & is_node[:, None, :])
