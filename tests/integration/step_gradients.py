"""Gradient of the first optimizer step for every loss type and importance level, on any number of ranks.

torchrun --nproc_per_node 2 step_gradients.py MODEL MANIFEST FOLDER SETTING...
"""

import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch
from runs import tiny_run
from safetensors.torch import save_file

from asrl.cli import train
from asrl.cli.build import load_model
from asrl.cli.compose import compose_config
from asrl.cli.distribute import start_accelerator
from asrl.losses import LEVELS, LOSS_TYPES
from asrl.trainer import Trainer

SETTINGS = ("old_logps=rollout", "dropout=false", "epsilon_high=0.3", "trainer.max_steps=4")


def build(model: str, manifest: str, folder: Path, *settings: str) -> Trainer:
    config = compose_config("train", tiny_run(model, manifest, folder / "run", *SETTINGS, *settings))
    with mock.patch.object(train, "load_model", load_double):
        return train.build_trainer(config, start_accelerator(num_threads=1))


def load_double(*words, **settings):
    """The model in float64: in float32 the shapes of the matrices alone change a gradient by 2e-6."""
    model = load_model(*words, **settings).double()
    model.encoder.register_forward_pre_hook(lambda _, inputs: (inputs[0].double(), *inputs[1:]))
    return model


def first_rows(trainer: Trainer):
    """Rows of the first step, with old and reference policies that differ from the current one."""
    batch = next(trainer.batches())
    rows = next(trainer.learner.optimizer_steps(trainer.collect(batch, trainer.rollout(batch))))
    trainer.config.beta = 0.04
    place = rows.batch.row_index[:, None] + 0.7 * torch.arange(rows.old_logps.shape[1])
    logps = rows.old_logps.double().round(decimals=2)  # the same under every cut
    return replace(rows, old_logps=logps + 0.4 * place.sin(), ref_logps=logps + 0.3 * place.cos())


def all_gradients(trainer: Trainer) -> dict[str, torch.Tensor]:
    """One long gradient for every loss type and level."""
    rows, parameters = first_rows(trainer), trainer.parts.backend.parameters
    trainer.learner.apply_gradient = lambda _, metrics: metrics
    found = {}
    for loss_type in LOSS_TYPES:
        for level in LEVELS:
            trainer.config.loss_type, trainer.config.importance_sampling_level = loss_type, level
            for parameter in parameters.values():
                parameter.grad = None
            trainer.learner.learn(rows)
            found[f"{loss_type}/{level}"] = torch.cat([p.grad.flatten() for p in parameters.values()])
    return found


def main(model: str, manifest: str, folder: str, *settings: str) -> None:
    trainer = build(model, manifest, Path(folder), *settings)
    gradients = all_gradients(trainer)
    if trainer.parts.accelerator.is_main_process:
        save_file(gradients, Path(folder, "gradients.safetensors"))


if __name__ == "__main__":
    main(*sys.argv[1:])
