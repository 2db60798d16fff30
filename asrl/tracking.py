"""This module is the only place that adds up, times and writes down what a run reports."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from asrl.jsonl import JsonLines


class Clock:
    """Seconds spent in each phase since the last reading."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time spent inside to the phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start

    def read(self) -> dict[str, float]:
        """Return ``seconds/<phase>`` and ``share/<phase>`` and start again from zero."""
        seconds, self._seconds = self._seconds, {}
        total = sum(seconds.values()) or 1.0
        shares = {f"share/{name}": value / total for name, value in seconds.items()}
        return {f"seconds/{name}": value for name, value in seconds.items()} | shares


class WandbRun:
    """A Weights & Biases run; offline unless there is an API key."""

    def __init__(self, config: Mapping[str, Any], *, project: str, run_dir: Path, run_id: str | None) -> None:
        import wandb  # noqa: PLC0415 (optional at run time, and slow to import)

        mode = "online" if os.environ.get("WANDB_API_KEY") else "offline"
        self._table = wandb.Table
        self._run = wandb.init(
            project=project,
            name=run_dir.name,
            dir=str(run_dir),
            config=dict(config),
            id=run_id,
            resume="allow" if run_id else None,
            mode=os.environ.get("WANDB_MODE", mode),
            settings=wandb.Settings(silent=True),
        )

    @property
    def run_id(self) -> str:
        """Identifies the run when it is resumed."""
        return self._run.id

    def log(self, record: Mapping[str, Any]) -> None:
        self._run.log({key: value for key, value in record.items() if value is not None}, step=record["step"])

    def log_table(self, step: int, rows: list[dict[str, Any]]) -> None:
        """Log drawn transcripts under a key of their own: wandb overwrites a table logged twice."""
        columns = list(rows[0])
        table = self._table(columns=columns, data=[[row[column] for column in columns] for row in rows])
        self._run.log({f"completions/step_{step:06d}": table}, step=step)

    def finish(self) -> None:
        self._run.finish()


class Tracker:
    """Writes metrics.jsonl, timings.jsonl and completions.jsonl, the progress bar, and wandb if it is on.

    ``metrics.jsonl`` holds nothing that depends on the clock, so a resumed run writes the very same lines.
    """

    def __init__(self, run_dir: Path, *, max_steps: int, start: int, wandb: WandbRun | None) -> None:
        self.wandb = wandb
        self.metrics = JsonLines(run_dir / "metrics.jsonl")
        self.timings = JsonLines(run_dir / "timings.jsonl")
        self.completions = JsonLines(run_dir / "completions.jsonl")
        for file in (self.metrics, self.timings, self.completions):
            file.truncate_after(start)
        self._bar = tqdm(total=max_steps, initial=start, desc="train", unit="step", dynamic_ncols=True)

    def step(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        """Record one optimizer step."""
        record = {"step": step, **metrics}
        self.metrics.append(record)
        self.timings.append({"step": step, **timings})
        if self.wandb:
            self.wandb.log(record | dict(timings))
        shown = {"reward": metrics.get("reward/mean"), "cer": metrics.get("cer"), "kl": metrics.get("kl")}
        texts = {key: f"{value:.3f}" for key, value in shown.items() if value is not None}
        self._bar.set_postfix(texts, refresh=False)
        self._bar.update(step - self._bar.n)

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record an evaluation, in a line of its own."""
        self.metrics.append({"step": step, **metrics})
        if self.wandb:
            self.wandb.log({"step": step, **metrics})

    def transcripts(self, step: int, rows: list[dict[str, Any]]) -> None:
        """Record drawn transcripts with their rewards."""
        self.completions.append(*({"step": step, **row} for row in rows))
        if self.wandb:
            self.wandb.log_table(step, rows)

    def say(self, text: str) -> None:
        """Print without tearing the progress bar."""
        tqdm.write(text)

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(self, *_: object) -> None:
        """End the line of the progress bar, so that an error message starts a new one, and the wandb run."""
        self._bar.close()
        if self.wandb:
            self.wandb.finish()


def timed(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that books a method's time on ``self.clock`` under ``name``."""

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            with self.clock.phase(name):
                return method(self, *args, **kwargs)

        return wrapper

    return decorate
