"""Take three optimizer steps on two ranks; the second rank's gradient of the second step is NaN.

torchrun --nproc_per_node 2 nonfinite_step.py MODEL MANIFEST FOLDER
"""

import json
import sys
from pathlib import Path

import torch
from runs import tiny_run

from asrl.cli.compose import compose_config
from asrl.cli.distribute import start_accelerator
from asrl.cli.train import build_trainer


def build(model: str, manifest: str, folder: Path):
    settings = ("trainer.rows_per_device=6", "trainer.on_nonfinite=skip")
    config = compose_config("train", tiny_run(model, manifest, folder / "run", *settings))
    return build_trainer(config, start_accelerator(num_threads=1))


def main(model: str, manifest: str, folder: str) -> None:
    trainer = build(model, manifest, Path(folder))
    backend, is_poisoned = trainer.parts.backend, [False]
    name = next(iter(backend.parameters))
    trainer.parts.model.projector.register_full_backward_hook(
        lambda _, gradients, __: tuple(g * torch.nan for g in gradients) if is_poisoned[0] else gradients
    )
    report = {"has_moved": [], "num_nonfinite": [], "adam_steps": []}
    before = backend.weights()
    for number, batch in zip(range(3), trainer.batches(), strict=False):
        is_poisoned[0] = number == 1 and trainer.parts.accelerator.process_index == 1
        experience = trainer.collect(batch, trainer.rollout(batch))
        trainer.update(next(trainer.learner.optimizer_steps(experience)))
        after, states = backend.weights(), backend.states()
        if trainer.parts.accelerator.is_main_process:
            moved = [key for key, weight in after.items() if not torch.equal(weight, before[key])]
            assert len(moved) in (0, len(after)), sorted(after.keys() - moved)
            report["has_moved"].append(bool(moved))
            report["adam_steps"].append(int(states[name]["step"]))
        report["num_nonfinite"].append(trainer.progress.num_nonfinite)
        before = after
    if trainer.parts.accelerator.is_main_process:
        Path(folder, "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
