import pytest

from asrl.rollout.drafts import LONGEST_PERIOD, Draft, find_ending, next_length, propose, repetition

REFERENCE = [1, 2, 3, 4, 5, 6]


def guess(written, place, *, reference=REFERENCE, siblings=(), num_tokens=3):
    return propose(written, reference, place, siblings, num_tokens)


def test_the_place_after_the_last_two_tokens_is_found():
    assert find_ending([7, 2, 3], REFERENCE) == 3


def test_two_tokens_count_more_than_a_nearer_single_one():
    # 8 2 stands before place 5, a lone 2 before place 2, where it is expected.
    assert find_ending([8, 2], [1, 2, 3, 8, 2, 9], near=2) == 5


def test_failing_two_tokens_the_last_one_alone_is_looked_up():
    assert find_ending([9, 4], REFERENCE) == 4
    assert find_ending([4], REFERENCE) == 4


def test_of_several_places_the_nearest_one_is_taken_or_else_the_last():
    source = [1, 2, 3, 1, 2, 4, 1, 2, 5]
    assert find_ending([1, 2], source, near=1) == 2
    assert find_ending([1, 2], source, near=5) == 5
    assert find_ending([1, 2], source, near=8) == 8
    assert find_ending([1, 2], source) == 8


def test_a_place_where_nothing_follows_is_none():
    assert find_ending([5, 6], REFERENCE) is None
    assert find_ending([5, 6], [5, 6, 1, 5, 6]) == 2


@pytest.mark.parametrize("written", [[], [9], [9, 8]])
def test_what_the_source_does_not_have_is_not_found(written):
    assert find_ending(written, REFERENCE) is None
    assert find_ending(written, []) is None


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ([4, 7, 7], [7, 7, 7, 7, 7]),
        ([9, 5, 6, 5, 6], [5, 6, 5, 6, 5]),
        ([1, 2, 3, 4, 1, 2, 3, 4], [1, 2, 3, 4, 1]),
        ([5, 6, 6, 5, 6, 6], [6, 6, 6, 6, 6]),  # the shortest period
    ],
)
def test_a_phrase_written_twice_goes_round_once_more(written, expected):
    assert repetition(written, 5) == expected


@pytest.mark.parametrize("written", [[], [5], [5, 6], [5, 6, 5], [5, 6, 7, 5, 6], [5, 5, 6]])
def test_a_phrase_not_written_twice_is_no_loop(written):
    assert repetition(written, 5) == []


def test_phrases_up_to_the_longest_period_are_recognised():
    longest = list(range(LONGEST_PERIOD))
    assert repetition(longest * 2, 2) == [0, 1]
    assert repetition([*longest, 99] * 2, 2) == []


def test_a_transcript_like_the_reference_goes_on_with_it():
    assert guess([1, 2], 1) == Draft((3, 4, 5), 1)
    assert guess([1, 2, 3, 4], 3) == Draft((5, 6), 3)


def test_after_a_deletion_the_reference_goes_on_behind_it():
    # 2 and 3 are missing: 4 was taken for the second token and stands for the fourth.
    assert guess([1, 4], 1) == Draft((5, 6), 3)


def test_after_an_insertion_the_reference_goes_on_where_it_was():
    # 9 was inserted: 2 was taken for the third token and stands for the second.
    assert guess([1, 9, 2], 2) == Draft((3, 4, 5), 1)


def test_after_a_substitution_the_reference_goes_on_behind_it():
    assert guess([1, 9], 1) == Draft((3, 4, 5), 1)
    assert guess([9], 0) == Draft((2, 3, 4), 0)


def test_of_a_phrase_that_the_reference_repeats_the_nearest_is_taken():
    reference = [1, 2, 3, 8, 1, 2, 4, 8]
    assert guess([1, 2], 1, reference=reference, num_tokens=2) == Draft((3, 8), 1)
    assert guess([1, 2, 3, 8, 1, 2], 5, reference=reference, num_tokens=2) == Draft((4, 8), 5)


def test_near_is_measured_from_the_token_that_the_last_one_stands_for():
    # 9 stands for the fourth token: of the second and the fifth, the fifth is one away, the second two.
    assert guess([7, 9], 3, reference=[1, 9, 3, 4, 9, 6]) == Draft((6,), 4)
    assert guess([7, 9], 2, reference=[1, 9, 3, 4, 5, 9, 6]) == Draft((3, 4, 5), 1)


def test_what_the_reference_does_not_have_is_looked_up_in_finished_siblings():
    # 0 is the end token: a sibling's is guessed too.
    assert guess([1, 9], 1, siblings=[[7, 8, 0], [1, 9, 7, 0]]) == Draft((7, 0), 1)
    assert guess([1, 9], 1, siblings=[[9, 8, 0], [1, 9, 7, 0]]) == Draft((8, 0), 1)
    assert guess([1, 2], 1, siblings=[[1, 2, 7, 0]]) == Draft((3, 4, 5), 1)


def test_a_loop_goes_on_whatever_the_reference_says():
    assert guess([1, 2, 1, 2], 3, num_tokens=5) == Draft((1, 2, 1, 2, 1), 3)


@pytest.mark.parametrize("place", [5, 6, 900])
def test_behind_the_end_of_the_reference_nothing_is_guessed(place):
    assert guess([9], place) == Draft((), place)
    assert guess([9], place, reference=[]) == Draft((), place)


@pytest.mark.parametrize("written", [[1, 2], [7, 7], [9, 8]])
def test_no_more_is_guessed_than_allowed(written):
    assert guess(written, 1, siblings=[[9, 8, 7]], num_tokens=0).tokens == ()
    assert len(guess(written, 1, siblings=[[9, 8, 7]], num_tokens=1).tokens) == 1


@pytest.mark.parametrize(
    ("length", "num_accepted", "num_drafted", "expected"),
    [
        (8, 8, 8, 16),  # used up: double
        (8, 3, 3, 16),  # used up, though it was shorter than allowed
        (48, 48, 48, 64),
        (64, 64, 64, 64),
        (8, 7, 8, 8),
        (8, 4, 8, 8),  # half used: stay
        (8, 3, 8, 4),  # less: halve
        (64, 3, 12, 6),  # what was drafted, not what was allowed
        (64, 1, 6, 4),
        (64, 0, 64, 32),
        (4, 0, 4, 4),
        (1, 0, 1, 4),
    ],
)
def test_lengths_adapt_to_how_much_was_used(length, num_accepted, num_drafted, expected):
    assert next_length(length, num_accepted, num_drafted) == expected
