"""The order of rows: by hand for small cases, as properties for the rest."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asrl.data.sampler import RepeatSampler, Row, permute, plain_batches
from asrl.errors import UserError


def make(num_utterances=7, num_generations=2, rows_per_step=4, steps_per_generation=2, **options):
    options = {"world_size": 1, "rank": 0, "seed": 1} | options
    return RepeatSampler(
        num_utterances,
        num_generations=num_generations,
        rows_per_step=rows_per_step,
        steps_per_generation=steps_per_generation,
        **options,
    )


@st.composite
def samplers(draw):
    """A valid sampler of rank 0 with any number of ranks."""
    world_size = draw(st.integers(1, 4))
    rows_per_step = world_size * draw(st.integers(1, 4))
    steps_per_generation = draw(st.integers(1, 3))
    rows = rows_per_step * steps_per_generation
    num_generations = draw(st.sampled_from([size for size in range(1, rows + 1) if rows % size == 0]))
    drop_last = draw(st.booleans())
    smallest = rows // num_generations if drop_last else 1
    return make(
        draw(st.integers(smallest, smallest + 20)),
        num_generations,
        rows_per_step,
        steps_per_generation,
        world_size=world_size,
        seed=draw(st.integers(0, 3)),
        drop_last=drop_last,
    )


def on_one_rank(sampler):
    return replace(sampler, world_size=1, rank=0)


def test_rows_of_a_batch_by_hand():
    # Seven utterances in the order a b c d e f g, four utterances a batch, two rows each; steps of four rows.
    a, b, c, d, e, f, g = permute(7, 1, 0).tolist()
    first_of_next = permute(7, 1, 1)[0].item()
    batch = make().batch(0)
    assert [(row.index, row.replica) for row in batch] == [
        (a, 0), (a, 1), (b, 0), (b, 1), (c, 0), (c, 1), (d, 0), (d, 1),
    ]  # fmt: skip
    assert [row.row_index for row in batch] == list(range(8))
    assert [row.epoch for row in batch] == [0] * 8
    # The second batch has three utterances left and takes the first one of the next epoch.
    batch = make().batch(1)
    assert [row.index for row in batch] == [e, e, f, f, g, g, first_of_next, first_of_next]
    assert [row.epoch for row in batch] == [0] * 6 + [1] * 2
    assert [row.row_index for row in batch] == list(range(8))


def test_ranks_take_contiguous_shares_of_each_step():
    # Steps are the rows 0-3 and 4-7; rank 0 gets 0 1 and 4 5, rank 1 gets 2 3 and 6 7.
    shares = [[row.row_index for row in make(world_size=2, rank=rank).batch(0)] for rank in (0, 1)]
    assert shares == [[0, 1, 4, 5], [2, 3, 6, 7]]
    # A group may span ranks: four ranks with one row of each step.
    shares = [[row.row_index for row in make(world_size=4, rank=rank).batch(0)] for rank in range(4)]
    assert shares == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_drop_last_starts_each_epoch_with_a_full_batch():
    sampler = make(
        drop_last=True
    )  # seven utterances, four a batch: one batch an epoch, three utterances left out
    for epoch in range(3):
        expected = [index for index in permute(7, 1, epoch)[:4].tolist() for _ in range(2)]
        assert [row.index for row in sampler.batch(epoch)] == expected
        assert {row.epoch for row in sampler.batch(epoch)} == {epoch}


def test_a_batch_larger_than_the_manifest_wraps():
    # Two utterances, four a batch: each batch is two whole epochs.
    batch = make(2, num_generations=1, rows_per_step=4, steps_per_generation=1).batch(3)
    assert [row.epoch for row in batch] == [6, 6, 7, 7]
    assert sorted(row.index for row in batch[:2]) == sorted(row.index for row in batch[2:]) == [0, 1]


def test_iteration_starts_and_ends_where_it_is_told():
    assert list(make(start=3, num_batches=2)) == [make().batch(3), make().batch(4)]
    assert list(itertools.islice(make(), 2)) == [make().batch(0), make().batch(1)]


def test_batches_and_epochs_by_hand():
    assert make().batches_per_epoch == 1.75
    assert [make().epoch_of(position) for position in range(5)] == [
        0,
        0,
        1,
        1,
        2,
    ]  # starts at 0 4 8 12 16 of 7
    assert make().count_batches(1) == 2
    assert make().count_batches(4) == 7
    assert make(drop_last=True).batches_per_epoch == 1
    assert make(drop_last=True).count_batches(3) == 3


def test_epochs_differ_and_depend_on_the_seed():
    orders = [permute(50, seed, epoch).tolist() for seed in (0, 1) for epoch in range(4)]
    assert len({tuple(order) for order in orders}) == 8
    assert permute(5, 0, 0).tolist() == permute(5, 0, 0).tolist()


def test_the_order_is_the_same_in_every_version():
    # Resuming a run with a newer version must not reorder its data: these numbers may not change.
    assert permute(8, 42, 0).tolist() == [2, 5, 0, 3, 4, 1, 6, 7]
    assert permute(8, 42, 1).tolist() == [2, 0, 5, 3, 7, 4, 6, 1]


@settings(deadline=None)  # a busy machine is no failure
@given(sampler=samplers(), epoch=st.integers(0, 2))
def test_every_epoch_is_a_permutation_repeated(sampler, epoch):
    sampler = on_one_rank(sampler)
    last = sampler.count_batches(epoch + 1)
    rows = [row for position in range(last) for row in sampler.batch(position) if row.epoch == epoch]
    counts = {(row.index, row.replica) for row in rows}
    assert len(counts) == len(rows)  # nothing twice
    if sampler.drop_last:
        full = int(sampler.batches_per_epoch) * sampler.utterances_per_batch
        assert len(rows) == full * sampler.num_generations
    else:
        every = itertools.product(range(sampler.num_utterances), range(sampler.num_generations))
        assert counts == set(every)


@settings(deadline=None)
@given(sampler=samplers(), position=st.integers(0, 9))
def test_ranks_together_hold_the_batch_and_every_step(sampler, position):
    whole = on_one_rank(sampler).batch(position)
    assert [row.row_index for row in whole] == list(range(len(whole)))
    ranks = [replace(sampler, rank=rank).batch(position) for rank in range(sampler.world_size)]
    share = sampler.rows_per_step // sampler.world_size
    for step in range(sampler.steps_per_generation):
        rows = [row for rank in ranks for row in rank[step * share : (step + 1) * share]]
        assert rows == whole[step * sampler.rows_per_step : (step + 1) * sampler.rows_per_step]


@settings(deadline=None)
@given(sampler=samplers(), position=st.integers(0, 9))
def test_groups_hold_each_replica_of_one_utterance(sampler, position):
    whole = on_one_rank(sampler).batch(position)
    for first in range(0, len(whole), sampler.num_generations):
        group = whole[first : first + sampler.num_generations]
        assert [row.replica for row in group] == list(range(sampler.num_generations))
        assert len({(row.index, row.epoch) for row in group}) == 1


@settings(deadline=None)
@given(sampler=samplers(), position=st.integers(0, 9))
def test_resuming_yields_the_identical_rest(sampler, position):
    whole = list(itertools.islice(sampler, 12))
    assert list(itertools.islice(replace(sampler, start=position), 12 - position)) == whole[position:]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"world_size": 3},
            "trainer.rows_per_device * ranks * trainer.gradient_accumulation_steps = 4 rows of a step must "
            "divide among 3 ranks; change either",
        ),
        (
            {"num_generations": 3},
            "num_generations=3 must divide the 8 rows of a batch, trainer.rows_per_device * ranks * "
            "trainer.gradient_accumulation_steps = 4 times steps_per_generation = 2; change either",
        ),
        (
            {"num_utterances": 3, "drop_last": True},
            "data.drop_last=true leaves no batch: one takes 4 utterances, data.train has 3; "
            "set data.drop_last=false or use smaller batches",
        ),
    ],
)
def test_counts_that_do_not_fit_are_refused(options, message):
    with pytest.raises(UserError) as caught:
        make(**options)
    assert str(caught.value) == message


def test_plain_batches_by_hand():
    def indices(**options):
        return [[row.index for row in batch] for batch in plain_batches(7, 2, **options)]

    assert plain_batches(1, 4) == [[Row(index=0, epoch=0, row_index=0, replica=0)]]
    assert indices() == [[0, 1], [2, 3], [4, 5], [6]]
    assert indices(world_size=2, rank=0) == [[0, 2], [4, 6]]
    assert indices(world_size=2, rank=1) == [[1, 3], [5, 0]]  # repeats the first, not to be short
    assert indices(world_size=9, rank=8) == [[0]]
    # Longest first, equal ones in the order of the manifest: 3 (9 s), 1 and 5 (4 s), 0, 2, 4, 6 (1 s).
    assert indices(durations=[1, 4, 1, 9, 1, 4, 1]) == [[3, 1], [5, 0], [2, 4], [6]]
    assert [row.row_index for batch in plain_batches(3, 2, durations=[1, 2, 3]) for row in batch] == [2, 1, 0]
