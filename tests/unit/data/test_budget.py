from asrl.data.budget import budget_batches


def indices(batches):
    return [[row.index for row in batch] for batch in batches]


def test_utterances_are_sorted_by_length_the_longest_first_and_equals_by_position():
    batches = budget_batches({0: 1.0, 1: 3.0, 2: 2.0, 3: 3.0}, max_utterances=2, max_seconds=100.0)
    assert indices(batches) == [[1, 3], [2, 0]]
    assert [(row.epoch, row.row_index, row.replica) for row in batches[1]] == [(0, 2, 0), (0, 0, 0)]


def test_a_batch_holds_as_many_as_fit_when_all_are_padded_to_its_first():
    # 10 s leaves room for two of 4 s (a third makes 12), then for three of 3 s.
    seconds = {0: 4.0, 1: 3.5, 2: 3.0, 3: 1.0, 4: 1.0}
    assert indices(budget_batches(seconds, max_utterances=9, max_seconds=10.0)) == [[0, 1], [2, 3, 4]]


def test_an_utterance_beyond_the_budget_is_a_batch_by_itself():
    assert indices(budget_batches({0: 30.0, 1: 1.0}, max_utterances=9, max_seconds=10.0)) == [[0], [1]]


def test_no_utterances_make_no_batches():
    assert budget_batches({}, max_utterances=2, max_seconds=10.0) == []
