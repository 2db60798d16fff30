"""This module is the only place that knows the rollout engines by name; all draw the same transcripts."""

from collections.abc import Callable

from asrl.rollout import drafted, plain
from asrl.types import Completions

Generate = Callable[..., Completions]  # (model, batch, settings)

ENGINES: dict[str, Generate] = {"drafted": drafted.generate, "plain": plain.generate}
