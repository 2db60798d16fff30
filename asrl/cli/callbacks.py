"""This module is the only place that looks at several runs of one command line side by side."""

from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table


class CompareRuns(Callback):
    """Prints a table of figures after a multirun, one row per run.

    Args:
        columns: Names of figures, as ``summary.training_figures`` calls them.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = columns
        self.rows: list[list[str]] = []

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **_: Any) -> None:
        """Keep the figures that a run returned."""
        figures = job_return.return_value
        if figures:  # only the main process returns any
            overrides = " ".join(config.hydra.overrides.task)
            self.rows.append([overrides, *(f"{figures[column]:.4f}" for column in self.columns)])

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """Print the table."""
        if not self.rows:
            return
        table = Table("run", *self.columns)
        for row in self.rows:
            table.add_row(*row)
        Console(width=140).print(table)
