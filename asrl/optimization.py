"""This module is the only place that sets up optimizers and schedules and saves their state."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_scheduler

from asrl.errors import UserError

PARTS = {"encoder": "encoder.", "projector": "projector.", "decoder": "llm."}


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters that the optimizer changes, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def build_optimizer(
    model: nn.Module, learning_rates: Mapping[str, float], *, weight_decay: float, betas: tuple[float, float]
) -> AdamW:
    """AdamW with one parameter group per trained part of the model.

    Args:
        model: The speech LLM, or a module that holds it as ``model`` beside helpers of the encoder. Its
            parameters are told apart by the prefixes in ``PARTS``; any other belongs to the encoder.
        learning_rates: Peak rate of each part.
        weight_decay: Not applied to biases and normalisation weights.
        betas: Of AdamW.

    Raises:
        UserError: Nothing is trained.
    """
    groups: dict[tuple[str, bool], list[nn.Parameter]] = {}
    for name, parameter in trainable_parameters(model).items():
        inner = name.removeprefix("model.")
        part = next((part for part, prefix in PARTS.items() if inner.startswith(prefix)), "encoder")
        groups.setdefault((part, parameter.ndim > 1), []).append(parameter)
    if not groups:
        raise UserError("nothing is trained: set model.train_encoder, train_projector or train_decoder")
    return AdamW(
        [
            {
                "params": parameters,
                "lr": learning_rates[part],
                "weight_decay": weight_decay if is_matrix else 0.0,
                "part": part,
            }
            for (part, is_matrix), parameters in groups.items()
        ],
        betas=betas,
    )


def build_schedule(optimizer: Optimizer, name: str, *, num_warmup_steps: int, num_steps: int) -> LambdaLR:
    """One of transformers' schedules, stepped once per optimizer step.

    Raises:
        UserError: The name is unknown.
    """
    try:
        return get_scheduler(name, optimizer, num_warmup_steps=num_warmup_steps, num_training_steps=num_steps)
    except ValueError as error:
        raise UserError(f"optim.schedule: {error}") from error


def learning_rates(optimizer: Optimizer) -> dict[str, float]:
    """Current learning rate of each part."""
    return {f"learning_rate/{group['part']}": group["lr"] for group in optimizer.param_groups}


def place_schedule(schedule: LambdaLR, step: int) -> None:
    """Set learning rates as they are after so many steps; a schedule has no state but their number."""
    schedule.last_epoch = step
    for group, rate, factor in zip(
        schedule.optimizer.param_groups, schedule.base_lrs, schedule.lr_lambdas, strict=True
    ):
        group["lr"] = rate * factor(step)


def copy_parameters(model: nn.Module, *, device: torch.device) -> dict[str, Tensor]:
    """Copies of the trained weights as they are now, by name."""
    return {
        name: parameter.detach().to(device, copy=True)
        for name, parameter in trainable_parameters(model).items()
    }


@contextmanager
def swapped_parameters(
    parameters: Mapping[str, nn.Parameter], weights: Mapping[str, Tensor]
) -> Iterator[None]:
    """Give parameters other values, without a copy; their own come back, whatever the body does."""
    own = {name: parameter.data for name, parameter in parameters.items()}
    try:
        for name, parameter in parameters.items():
            parameter.data = weights[name]
        yield
    finally:
        for name, parameter in parameters.items():
            parameter.data = own[name]


@torch.no_grad()
def load_parameters(model: nn.Module, weights: Mapping[str, Tensor], *, place: str) -> None:
    """Copy trained weights into the model.

    Raises:
        UserError: They are not exactly the weights that this model trains.
    """
    parameters = trainable_parameters(model)
    if odd := sorted(parameters.keys() ^ weights.keys()):
        raise UserError(
            f"{place}: holds other trained weights than this configuration trains: "
            f"{odd[0]} and {len(odd) - 1} more"
        )
    for name, parameter in parameters.items():
        if parameter.shape != weights[name].shape:
            found, needed = list(weights[name].shape), list(parameter.shape)
            raise UserError(f"{place}: {name} has shape {found}, this configuration needs {needed}")
        parameter.copy_(weights[name])
