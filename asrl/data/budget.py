"""This module is the only place that forms batches of utterances of similar length under a budget."""

from collections.abc import Mapping

from asrl.data.sampler import Row


def budget_batches(
    seconds: Mapping[int, float], *, max_utterances: int, max_seconds: float
) -> list[list[Row]]:
    """Batches of one row per utterance, the longest first, so that memory runs out at once or never.

    Args:
        seconds: Duration of each utterance by its position in the manifest.
        max_utterances: Most rows of a batch.
        max_seconds: Most audio of a batch, padding included; a longer utterance is a batch by itself.
    """
    batches: list[list[Row]] = []
    room = 0
    for index in sorted(seconds, key=lambda index: (-seconds[index], index)):
        if room == 0:
            batches.append([])
            room = max(1, min(max_utterances, int(max_seconds / max(seconds[index], 1e-3))))
        batches[-1].append(Row(index=index, epoch=0, row_index=index, replica=0))
        room -= 1
    return batches
