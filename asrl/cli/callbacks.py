"""This module is the only place that looks at several runs of one command line side by side."""

from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table


class CompareRuns(Callback):
    """Prints a table of figures after a multirun, one row per run, named by the settings that differ.

    Args:
        columns: Names of figures, as ``summary.training_figures`` calls them.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = columns
        self.runs: list[tuple[list[str], list[str]]] = []  # overrides and figures

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **_: Any) -> None:
        """Keep the figures that a run returned."""
        figures = job_return.return_value
        if figures:  # only the main process returns any
            cells = [f"{figures[column]:.4f}" if column in figures else "-" for column in self.columns]
            self.runs.append((list(config.hydra.overrides.task), cells))

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """Print the table."""
        if not self.runs:
            return
        shared = set.intersection(*(set(overrides) for overrides, _ in self.runs))
        table = Table("run", *self.columns)
        for overrides, cells in self.runs:
            table.add_row(" ".join(word for word in overrides if word not in shared), *cells)
        Console(width=140).print(table)
