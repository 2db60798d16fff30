"""A resumed run counts its position in the same rows and utterances as before."""

import pytest

from asrl.errors import UserError
from asrl.run_state import Progress


def test_a_new_run_notes_what_its_position_counts_in():
    progress = Progress()
    progress.count_in(rows_per_step=64, num_utterances=800)
    assert (progress.rows_per_step, progress.num_utterances) == (64, 800)
    progress.count_in(rows_per_step=64, num_utterances=800)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"rows_per_step": 32},
            r"^trainer.rows_per_device \* trainer.gradient_accumulation_steps \* processes was 64 when the "
            "run began and cannot be 32 now",
        ),
        (
            {"num_utterances": 799},
            r"^the number of utterances in data.train was 800 when the run began and cannot be 799 now",
        ),
    ],
)
def test_a_position_that_would_mean_something_else_is_refused(changed, message):
    progress = Progress(rows_per_step=64, num_utterances=800)
    with pytest.raises(UserError, match=message):
        progress.count_in(**{"rows_per_step": 64, "num_utterances": 800} | changed)
