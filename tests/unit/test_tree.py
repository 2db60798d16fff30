import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asrl.tree import PROMPT, PrefixTree, TreeBatch, ancestors, build_trees, tree_mask

A, B, C, D = 11, 12, 13, 14
NUM_TREES = 3

# Rows of (tree, transcript); few different tokens and trees, so that beginnings are shared.
rows_of_trees = st.lists(
    st.tuples(st.integers(0, NUM_TREES - 1), st.lists(st.sampled_from([A, B, C]), min_size=1, max_size=5)),
    min_size=1,
    max_size=7,
)


def build(rows, num_trees=NUM_TREES):
    """Trees of rows of (tree, transcript), with garbage in the padding."""
    width = max(len(transcript) for _, transcript in rows)
    tokens = torch.tensor([[*transcript, *[99] * (width - len(transcript))] for _, transcript in rows])
    num_tokens = torch.tensor([len(transcript) for _, transcript in rows])
    mask = torch.arange(width) < num_tokens[:, None]
    return build_trees(tokens, mask, torch.tensor([tree for tree, _ in rows]), num_trees), mask


def beginnings(trees: TreeBatch) -> list[list[tuple]]:
    """What every node of every tree stands for: the tokens up to its own, by parents alone."""
    names = []
    for tree in range(len(trees.tokens)):
        own = []
        for node in range(int(trees.is_node[tree].sum())):
            parent = int(trees.parents[tree, node])
            own.append((*(own[parent] if parent != PROMPT else ()), int(trees.tokens[tree, node])))
        names.append(own)
    return names


def prefixes(rows, tree, *, with_whole):
    """Distinct beginnings of the transcripts of a tree."""
    own = [tuple(transcript) for number, transcript in rows if number == tree]
    return {t[:size] for t in own for size in range(1, len(t) + with_whole)}


def test_a_tree_by_hand():
    tree = PrefixTree()
    assert [tree.add_path(path) for path in ([A, B], [A, C], [A, B], [B])] == [[0, 1], [0, 2], [0, 1], [3]]
    assert tree.tokens == [A, B, C, B]
    assert tree.parents == [PROMPT, 0, 0, PROMPT]
    assert tree.depths == [0, 1, 1, 0]
    assert tree.path(2) == [0, 2]
    assert tree.path(PROMPT) == []
    assert len(tree) == 4


def test_the_same_token_after_other_histories_is_another_node():
    tree = PrefixTree()
    assert tree.add_path([A, A, A]) == [0, 1, 2]
    assert tree.add_path([B, A]) == [3, 4]


def test_a_batch_by_hand():
    # Tree 0 belongs to rows 0 and 2, tree 1 to nobody, tree 2 to row 1.
    trees, mask = build([(0, [A, B]), (2, [C]), (0, [A, C, D])])
    assert trees.is_node.tolist() == [[True] * 4, [False] * 4, [True, False, False, False]]
    assert trees.tokens[0].tolist() == [A, B, C, D]
    assert trees.parents[0].tolist() == [PROMPT, 0, 0, 2]
    assert trees.depths[0].tolist() == [0, 1, 1, 2]
    assert trees.tokens[2, 0] == C
    assert trees.paths[mask].tolist() == [0, 1, 0, 0, 2, 3]
    assert trees.row_tree.tolist() == [0, 2, 0]


@given(rows_of_trees)
def test_there_are_as_many_nodes_as_distinct_beginnings(rows):
    trees, _ = build(rows)
    for tree, names in enumerate(beginnings(trees)):
        assert len(names) == len(set(names))
        assert set(names) == prefixes(rows, tree, with_whole=True)
        assert trees.is_node[tree].tolist() == sorted(trees.is_node[tree].tolist(), reverse=True)


@given(rows_of_trees)
def test_every_path_reproduces_its_transcript(rows):
    trees, mask = build(rows)
    names = beginnings(trees)
    for row, (tree, transcript) in enumerate(rows):
        path = trees.paths[row][mask[row]].tolist()
        assert [names[tree][node] for node in path] == [
            tuple(transcript[: size + 1]) for size in range(len(transcript))
        ]


@given(rows_of_trees)
def test_parents_come_before_children_one_level_up(rows):
    trees, _ = build(rows)
    for tree, node in trees.is_node.nonzero().tolist():
        parent, depth = int(trees.parents[tree, node]), int(trees.depths[tree, node])
        assert PROMPT <= parent < node
        assert depth == (0 if parent == PROMPT else int(trees.depths[tree, parent]) + 1)


@given(rows_of_trees, st.randoms())
def test_permuting_rows_permutes_paths_and_only_renumbers_nodes(rows, random):
    order = random.sample(range(len(rows)), len(rows))
    (trees, mask), (shuffled, _) = build(rows), build([rows[row] for row in order])
    names, other_names = beginnings(trees), beginnings(shuffled)
    assert [sorted(own) for own in names] == [sorted(own) for own in other_names]
    for place, row in enumerate(order):
        tree, num_tokens = rows[row][0], int(mask[row].sum())
        nodes, others = trees.paths[row, :num_tokens], shuffled.paths[place, :num_tokens]
        assert [names[tree][n] for n in nodes] == [other_names[tree][n] for n in others]


def test_gathered_values_are_those_of_the_path_and_zero_elsewhere():
    trees, mask = build([(0, [A, B]), (1, [C]), (0, [A, C, D])], num_trees=2)
    values = torch.tensor([[0.5, 1.5, 2.5, 3.5], [4.5, float("nan"), float("nan"), float("nan")]])
    assert trees.gather(values, mask).tolist() == [[0.5, 1.5, 0], [4.5, 0, 0], [0.5, 2.5, 3.5]]


def test_gradients_of_rows_that_share_a_node_add_up():
    trees, mask = build([(0, [A, B]), (1, [C]), (0, [A, C, D]), (0, [A, B])], num_trees=2)
    values = torch.zeros(2, 4, requires_grad=True)
    weights = torch.tensor([[1.0, 2, 9], [4, 9, 9], [8, 16, 32], [64, 128, 9]])  # 9 stands in the padding
    (trees.gather(values, mask) * weights).sum().backward()
    # Nodes a, ab, ac, acd: rows 0, 2 and 3; 0 and 3; 2; 2.
    assert values.grad.tolist() == [[1 + 8 + 64, 2 + 128, 16, 32], [4, 0, 0, 0]]


def test_inner_nodes_by_hand():
    # Nodes a, ab, ac, acd, b: b and acd and ab are leaves. The other tree has only a leaf.
    trees, _ = build([(0, [A, B]), (0, [A, C, D]), (0, [B]), (1, [C])], num_trees=2)
    inner = trees.inner()
    assert inner.trees.is_node.tolist() == [[True, True], [False, False]]
    assert inner.trees.tokens[0].tolist() == [A, C]
    assert inner.trees.parents[0].tolist() == [PROMPT, 0]
    assert inner.trees.depths[0].tolist() == [0, 1]
    assert inner.parent_rank[0].tolist() == [PROMPT, 0, 0, 1, PROMPT]
    assert inner.parent_rank[1, 0] == PROMPT


def test_inner_nodes_stay_in_order_when_a_leaf_stands_between_them():
    # Nodes a, b, c, ca, bd: leaves are a, ca and bd.
    trees, _ = build([(0, [A]), (0, [B]), (0, [C, A]), (0, [B, D])], num_trees=1)
    inner = trees.inner()
    assert trees.tokens[0].tolist() == [A, B, C, A, D]
    assert inner.trees.tokens[0].tolist() == [B, C]
    assert inner.parent_rank[0].tolist() == [PROMPT, PROMPT, PROMPT, 1, 0]


@given(rows_of_trees)
def test_inner_nodes_are_the_distinct_proper_beginnings(rows):
    trees, _ = build(rows)
    inner = trees.inner()
    names, inner_names = beginnings(trees), beginnings(inner.trees)
    for tree in range(NUM_TREES):
        kept = inner_names[tree]
        assert len(kept) == len(set(kept))
        assert set(kept) == prefixes(rows, tree, with_whole=False)
        assert kept == [name for name in names[tree] if name in set(kept)]
        for node, name in enumerate(names[tree]):
            rank = int(inner.parent_rank[tree, node])
            assert (kept[rank] if rank != PROMPT else ()) == name[:-1]
        for node, name in enumerate(kept):
            assert int(inner.trees.depths[tree, node]) == len(name) - 1


def test_ancestors_by_hand():
    # Nodes a, ab, ac, acd.
    is_ancestor = ancestors(torch.tensor([[PROMPT, 0, 0, 2]]), torch.tensor([[0, 1, 1, 2]]))
    assert is_ancestor.int().tolist() == [[[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]]


def test_the_mask_by_hand():
    # Prompts of two and one tokens, nodes a, ab, ac and c.
    trees, _ = build([(0, [A, B]), (0, [A, C]), (1, [C])], num_trees=2)
    visible = tree_mask(torch.tensor([2, 1]), trees, 6)
    assert visible[0].int().tolist()[:5] == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 0, 1, 0],
    ]
    assert visible[1].int().tolist()[:2] == [[1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0]]
    # Padding sees itself.
    assert visible[0, 5, 5]
    assert visible[1, range(2, 6), range(2, 6)].all()


@settings(deadline=None)
@given(rows_of_trees, st.lists(st.integers(1, 3), min_size=NUM_TREES, max_size=NUM_TREES), st.integers(0, 2))
def test_nodes_see_their_prompt_and_their_beginnings_and_nothing_else(rows, num_prompt, num_spare):
    trees, _ = build(rows)
    names = beginnings(trees)
    width = max(p + len(own) for p, own in zip(num_prompt, names, strict=True)) + num_spare
    visible = tree_mask(torch.tensor(num_prompt), trees, width)
    for tree, own in enumerate(names):
        first = num_prompt[tree]
        for query in range(width):
            seen = set(visible[tree, query].nonzero()[:, 0].tolist())
            if query < first:
                assert seen == set(range(query + 1))
            elif query < first + len(own):
                name = own[query - first]
                before = {first + own.index(name[:size]) for size in range(1, len(name) + 1)}
                assert seen == set(range(first)) | before
            else:
                assert seen <= {*range(first), query}
                assert query in seen


@pytest.mark.parametrize("num_tokens", [1, 300])
def test_a_single_chain_of_any_length_is_causal(num_tokens):
    trees, _ = build([(0, [A] * num_tokens)], num_trees=1)
    visible = tree_mask(torch.tensor([2]), trees, num_tokens + 2)
    assert torch.equal(visible[0], torch.ones(num_tokens + 2, num_tokens + 2, dtype=torch.bool).tril())
