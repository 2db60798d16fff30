"""Takes single optimizer steps on the tiny random model, up to the gradient."""

import json
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from asrl.cli.compose import compose_config
from asrl.cli.distribute import start_accelerator
from asrl.cli.train import build_trainer
from asrl.experience import Experience
from asrl.optimization import trainable_parameters
from asrl.trainer import Trainer

ROOT = Path(__file__).parents[2]
WITHOUT_SIGNAL: set[str] = set()  # keys of utterances whose transcripts all get the same reward


def even_characters(hypotheses, utterances):
    """Share of characters with an even code point: differs between almost any two hypotheses."""
    return [
        0.0 if utterance.key in WITHOUT_SIGNAL else sum(ord(c) % 2 == 0 for c in text) / max(len(text), 1)
        for text, utterance in zip(hypotheses, utterances, strict=True)
    ]


def write_manifest(path: Path) -> Path:
    """Three utterances of the demo, four rows each: the twelve rows of a step."""
    lines = (ROOT / "demo" / "train.jsonl").read_text(encoding="utf-8").splitlines()[:3]
    rows = [row | {"audio": str(ROOT / "demo" / row["audio"])} for row in map(json.loads, lines)]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


@dataclass(frozen=True)
class Step:
    """One optimizer step without its end: the optimizer has not moved."""

    trainer: Trainer
    experience: Experience
    metrics: dict[str, float]
    gradients: dict[str, Tensor]
    work: dict[str, int]  # of scoring and learning, without the rollout


def collect(trainer: Trainer) -> Experience:
    batch = next(trainer.batches())
    completions = trainer.rollout(batch)
    trainer.parts.model.work.clear()
    return trainer.collect(batch, completions)


def backward(trainer: Trainer, experience: Experience) -> Step:
    """Compute the gradient of the first optimizer step on this experience."""
    learner = trainer.learner
    learner.apply_gradient = lambda _, metrics: metrics
    metrics = learner.learn(next(learner.optimizer_steps(experience)))
    parameters = trainable_parameters(trainer.parts.model)
    assert all(parameter.grad is not None for parameter in parameters.values())
    gradients = {name: parameter.grad.clone() for name, parameter in parameters.items()}
    return Step(trainer, experience, metrics, gradients, dict(trainer.parts.model.work))


def build(manifest: Path, checkpoint: Path, run_dir: Path, *overrides: str) -> Trainer:
    settings = {
        "model.path": checkpoint,
        "model.lora.start": "continue",  # a fresh LoRA would leave its A without a gradient
        "data.train": manifest,
        "data.dev": "null",
        "data.test": "null",
        "data.num_workers": 0,
        "logger": "none",
        "num_generations": 4,
        "rollout.max_new_tokens": 6,
        "reward.accuracy": "null",
        "+reward.signal.function": "learner_runs:even_characters",
        "old_logps": "recompute",
        "reference": "frozen",
        "dropout": "false",
        "optim.num_warmup_steps": 0,
        "trainer.rows_per_device": 12,
        "trainer.max_steps": 4,
        "run_dir": run_dir,
    }
    settings |= dict(override.split("=", 1) for override in overrides)
    config = compose_config("train", [f"{key}={value}" for key, value in settings.items()])
    return build_trainer(config, start_accelerator())
