import pytest
import torch

from asrl.errors import UserError
from asrl.experience import Experience, gather_in_order, group_relative, score
from asrl.rewards import build_rewards
from asrl.types import Completions, SpeechBatch
from asrl.utterance import Utterance

A, B = Utterance("a", "a.wav", "好", hotwords=("好",)), Utterance("b", "b.wav", "天气")


@pytest.fixture
def experience():
    """Four rows, two utterances; row r has r + 1 tokens, all of them 10 r + place."""
    place = torch.arange(4)
    mask = place[None] <= place[:, None]
    tokens = 10 * place[:, None] + place
    return Experience(
        SpeechBatch(
            utterances=(A, B),
            features=torch.zeros(2, 5, 3),
            num_frames=torch.tensor([5, 4]),
            row_utterance=torch.tensor([0, 0, 1, 1]),
            row_index=torch.tensor([4, 5, 6, 7]),
            replica=torch.tensor([0, 1, 0, 1]),
            epoch=torch.tensor([0, 0, 0, 1]),
        ),
        Completions(tokens, mask, torch.tensor([True, False, True, False]), -tokens.float()),
        torch.tensor([0.0, 1.0, 2.0, 3.0]),
        old_logps=-tokens - 0.25,
        ref_logps=-tokens - 0.5,
    )


def test_rows_cut_every_tensor_alike_and_to_the_longest_row(experience):
    part = experience.select(torch.tensor([1, 2]))
    expected = torch.tensor([[10, 11, 12], [20, 21, 22]])  # row 2 has three tokens; column 3 is gone
    assert torch.equal(part.completions.tokens, expected)
    assert part.completions.mask.tolist() == [[True, True, False], [True, True, True]]
    assert part.completions.is_finished.tolist() == [False, True]
    assert torch.equal(part.completions.sampling_logps, -expected.float())
    assert torch.equal(part.old_logps, -expected - 0.25)
    assert torch.equal(part.ref_logps, -expected - 0.5)
    assert part.advantages.tolist() == [1, 2]
    assert part.batch.row_utterance.tolist() == [0, 1]
    assert part.batch.row_index.tolist() == [5, 6]
    assert part.batch.replica.tolist() == [1, 0]
    assert part.batch.epoch.tolist() == [0, 0]
    assert [u.key for u in part.batch.row_utterances] == ["a", "b"]


def test_rows_are_selected_in_the_order_asked_for(experience):
    part = experience.select(torch.tensor([3, 0]))
    assert part.completions.tokens[:, 0].tolist() == [30, 0]
    assert part.completions.mask.sum(1).tolist() == [4, 1]
    assert part.advantages.tolist() == [3, 0]
    assert part.batch.row_utterance.tolist() == [1, 0]
    assert part.batch.epoch.tolist() == [1, 0]
    assert part.batch.num_frames.tolist() == [5, 4]  # utterances stay where they are


def test_rows_of_rows_are_the_rows_of_the_whole(experience):
    nested = experience.select(torch.tensor([0, 3, 1])).select(torch.tensor([2]))
    direct = experience.select(torch.tensor([1]))
    assert torch.equal(nested.completions.tokens, direct.completions.tokens)
    assert torch.equal(nested.batch.row_index, direct.batch.row_index)
    assert direct.completions.tokens.tolist() == [[10, 11]]


def test_rows_without_old_and_reference_logps_stay_without(experience):
    bare = Experience(experience.batch, experience.completions, experience.advantages)
    bare = bare.select(torch.tensor([0, 1]))
    assert bare.old_logps is None
    assert bare.ref_logps is None


def test_transcripts_are_the_tokens_under_the_mask(experience):
    assert experience.transcripts() == [[0], [10, 11], [20, 21, 22], [30, 31, 32, 33]]


def test_scores_are_one_column_per_reward_and_nan_where_one_does_not_apply():
    rewards = build_rewards({"accuracy": {}, "hotword": {}})
    values = score(["好", "天"], [A, B], rewards, is_truncated=[False, False])
    # a: all right, its hotword found. b: one of two characters missing, and no hotword to find.
    assert values[0].tolist() == [1.0, 1.0]
    assert values[1, 0] == 0.5
    assert values[1, 1].isnan()


def test_a_reward_is_told_which_rows_were_cut():
    rewards = build_rewards({"hallucination": {}})
    values = score(["好", "好"], [A, A], rewards, is_truncated=[False, True])
    assert values.flatten().tolist() == [0.0, -1.0]


def test_scores_of_no_rows_keep_their_columns():
    assert score([], [], build_rewards({"accuracy": {}}), is_truncated=[]).shape == (0, 1)


class TwoRanks:
    """Answers ``gather`` on one rank as two would: both ranks' tensors, in order of rank."""

    def __init__(self, *ranks):
        self.ranks = ranks  # of each rank: the tensors that it gathers, in order

    def on(self, rank):
        """Return the gather of a rank; it must call with its own tensors."""
        calls = iter(zip(*self.ranks, strict=True))

        def gather(local):
            everyone = next(calls)
            assert torch.equal(local.nan_to_num(-9), everyone[rank].nan_to_num(-9))
            return torch.cat(everyone)

        return gather


VALUES = torch.tensor([[1.0], [2.0], [3.0], [4.0], [0.0], [10.0], [10.0], [10.0]])
OPTIONS = {"weights": [2.0], "num_generations": 4, "scale_rewards": "group", "estimator": "grpo"}


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("shares", [([0, 1, 2, 3], [4, 5, 6, 7]), ([0, 1, 4, 5], [2, 3, 6, 7])])
def test_groups_split_over_two_ranks_give_the_advantages_of_one_rank(scale, shares):
    options = OPTIONS | {"scale_rewards": scale}
    everyone = torch.arange(8)
    expected = group_relative(VALUES, everyone, lambda local: local, **options)
    ranks = [(VALUES[share], torch.tensor(share)) for share in shares]
    for rank, share in enumerate(shares):
        gather = TwoRanks(*ranks).on(rank)
        assert torch.equal(group_relative(*ranks[rank], gather, **options), expected[share])


def test_advantages_of_a_split_group_by_hand():
    # The group 1 2 3 4 (times 2): mean 5, deviations -3 -1 1 3, no division.
    ranks = [(VALUES[:2], torch.tensor([0, 1])), (VALUES[2:4], torch.tensor([2, 3]))]
    options = OPTIONS | {"scale_rewards": "none"}
    got = [group_relative(*ranks[rank], TwoRanks(*ranks).on(rank), **options).tolist() for rank in (0, 1)]
    assert got == [[-3, -1], [1, 3]]


def test_gathered_rows_are_sorted_by_their_place_in_the_batch():
    ranks = [
        (torch.tensor([[0], [2]]), torch.tensor([0, 2])),
        (torch.tensor([[1], [3]]), torch.tensor([1, 3])),
    ]
    gathered = gather_in_order(*ranks[1], TwoRanks(*ranks).on(1))
    assert gathered.flatten().tolist() == [0, 1, 2, 3]


def test_an_unknown_estimator_is_refused():
    with pytest.raises(UserError, match="estimator"):
        group_relative(VALUES, torch.arange(8), lambda local: local, **(OPTIONS | {"estimator": "gpro"}))
