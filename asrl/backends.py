"""This module is the only place that knows how weights, gradients and optimizer states lie on the ranks.

Replicated: every rank has everything (one process, DDP). FSDP2 and DeepSpeed's ZeRO cut some or all of it
into pieces; what leaves this module is whole again, named by parameter, and the same under each.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from asrl.models.speech_llm import SpeechLLM
from asrl.optimization import swapped_parameters, trainable_parameters

Weights = Mapping[str, Tensor]
States = Mapping[str, Mapping[str, Tensor]]  # of Adam, by parameter and by name
Kept = TypeVar("Kept")
MOMENTS = ("exp_avg", "exp_avg_sq")
# Methods that are called from outside of ``forward``, in rollouts and evaluations.
ENTRANCES = ("encode_batch", "keep_encoded", "prompts", "embed", "decoder", "with_head")


@runtime_checkable
class Backend(Protocol):
    """What differs between the ways to train on several ranks. Every method is called on all ranks alike.

    Attributes:
        is_lockstep: Every forward waits for the other ranks, so all must take the same number of them.
    """

    is_lockstep: bool

    def backward(self, loss: Tensor, *, is_last: bool) -> None:
        """Add the gradient of a micro-batch, which is averaged over ranks."""

    def step(self, max_norm: float, *, is_wanted: bool) -> float:
        """Clip the gradient, step if it is finite and wanted, drop it; return its norm, NaN if not finite."""

    def is_any_rank_busy(self, is_busy: bool) -> bool:
        """Whether this rank has to join another forward: that of another rank, if all go in lockstep."""

    def weights(self) -> dict[str, Tensor]:
        """Whole trained weights in the optimizer's precision, on the CPU of the main process."""

    def states(self) -> dict[str, dict[str, Tensor]]:
        """Whole optimizer states, on the CPU of the main process; empty before the first step."""

    def load_states(self, states: States) -> None:
        """Put whole optimizer states in place, before the first step."""

    def swapped(self, weights: Weights) -> AbstractContextManager[None]:
        """Run with other values of the trained weights; the own ones come back, whatever the body does."""


class Native:
    """One process, DDP or FSDP2: torch alone."""

    def __init__(self, policy: nn.Module, model: nn.Module, optimizer: Optimizer) -> None:
        self.policy = policy
        self.optimizer = optimizer
        self.parameters = trainable_parameters(model)
        self.is_lockstep = isinstance(policy, FSDPModule)
        if self.is_lockstep:
            enter_through_root(policy)

    def backward(self, loss: Tensor, *, is_last: bool) -> None:
        is_ddp = isinstance(self.policy, DistributedDataParallel)
        with self.policy.no_sync() if is_ddp and not is_last else nullcontext():
            loss.backward()

    def step(self, max_norm: float, *, is_wanted: bool) -> float:
        parameters = list(self.parameters.values())
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
        if is_wanted and norm.isfinite():
            self.optimizer.step()
        self.optimizer.zero_grad()
        return norm.item() if norm.isfinite() else float("nan")

    def is_any_rank_busy(self, is_busy: bool) -> bool:
        return any_rank(is_busy) if self.is_lockstep else is_busy

    def weights(self) -> dict[str, Tensor]:
        return _keep_on_main((name, _whole(parameter)) for name, parameter in self.parameters.items())

    def states(self) -> dict[str, dict[str, Tensor]]:
        states = self.optimizer.state
        return _keep_on_main(
            (name, {key: _whole(value) for key, value in states[parameter].items()})
            for name, parameter in self.parameters.items()
            if parameter in states
        )

    def load_states(self, states: States) -> None:
        for name, state in states.items():
            parameter = self.parameters[name]
            self.optimizer.state[parameter] = {
                key: _spread_like(parameter, value) if key in MOMENTS else value.clone()
                for key, value in state.items()
            }

    def swapped(self, weights: Weights) -> AbstractContextManager[None]:
        return (
            self._swapped_parts(weights) if self.is_lockstep else swapped_parameters(self.parameters, weights)
        )

    @contextmanager
    def _swapped_parts(self, weights: Weights) -> Iterator[None]:
        own = {name: _local(parameter).clone() for name, parameter in self.parameters.items()}
        try:
            self._put({name: _spread_like(p, weights[name]) for name, p in self.parameters.items()})
            yield
        finally:
            self._put(own)

    @torch.no_grad()
    def _put(self, values: Weights) -> None:
        """Overwrite this rank's part of the trained weights."""
        for module in self.policy.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # else a forward would go on with whole copies of the old values
        for name, parameter in self.parameters.items():
            _local(parameter).copy_(_local(values[name]))


class DeepSpeed:
    """DeepSpeed's engine with ZeRO of any stage; it clips, as told when it was set up."""

    def __init__(self, engine: nn.Module, model: nn.Module, optimizer: Optimizer) -> None:
        import deepspeed  # noqa: PLC0415 (slow to import)

        self.deepspeed = deepspeed
        self.engine = engine
        self.optimizer = optimizer
        self.parameters = trainable_parameters(model)
        self.is_lockstep = engine.zero_optimization_partition_weights()
        self.is_wanted = True
        optimizer.register_step_pre_hook(self._veto)

    def backward(self, loss: Tensor, *, is_last: bool) -> None:
        self.engine.set_gradient_accumulation_boundary(is_last)
        self.engine.backward(loss)

    def step(self, max_norm: float, *, is_wanted: bool) -> float:
        assert self.engine.gradient_clipping() == max_norm
        self.is_wanted = is_wanted
        self.engine.step()  # skips, by itself, a gradient that is not finite
        norm = float(self.engine.get_global_grad_norm())
        return norm if math.isfinite(norm) and not self.engine.optimizer.overflow else float("nan")

    def _veto(self, optimizer: Optimizer, *_: Any) -> None:
        """Before a step that is not wanted, drop its gradient: AdamW skips parameters that have none."""
        if not self.is_wanted:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None

    def is_any_rank_busy(self, is_busy: bool) -> bool:
        return any_rank(is_busy) if self.is_lockstep else is_busy

    def weights(self) -> dict[str, Tensor]:
        read = self.deepspeed.utils.safe_get_full_fp32_param
        return _keep_on_main((name, _whole(read(parameter))) for name, parameter in self.parameters.items())

    def states(self) -> dict[str, dict[str, Tensor]]:
        read = self.deepspeed.utils.safe_get_full_optimizer_state
        steps = [state["step"] for state in self.optimizer.state.values()]
        if not steps:
            return {}
        self._link_states()
        return _keep_on_main(
            (name, {"step": _whole(steps[0])} | {key: _whole(read(parameter, key)) for key in MOMENTS})
            for name, parameter in self.parameters.items()
        )

    def load_states(self, states: States) -> None:
        if not states:
            return
        for flat in self._flat_parts():
            moments = {key: torch.zeros_like(flat) for key in MOMENTS}
            self.optimizer.state[flat] = {"step": next(iter(states.values()))["step"].clone(), **moments}
        self._link_states()
        for name, parameter in self.parameters.items():
            for key in MOMENTS:
                value = states[name][key].to(self.engine.device)
                self.deepspeed.utils.safe_set_full_optimizer_state(parameter, value, key)

    def _link_states(self) -> None:
        """Let ZeRO-1 and 2 find the states of all groups; by themselves they find the first group's only."""
        if self.is_lockstep:
            return
        zero = self.engine.optimizer
        for group, flat in zip(zero.bit16_groups, zero.single_partition_of_fp32_groups, strict=True):
            self.deepspeed.utils.lazy_init_hp_params_optimizer_state(group, flat, self.optimizer.state)

    def _flat_parts(self) -> list[Tensor]:
        """What the optimizer inside sees: this rank's share of all parameters, end to end."""
        if self.is_lockstep:
            return self.engine.optimizer.fp32_partitioned_groups_flat
        return [part for group in self.optimizer.param_groups for part in group["params"]]

    @contextmanager
    def swapped(self, weights: Weights) -> Iterator[None]:
        own: dict[str, Tensor] = {}
        try:
            with self._whole_parameters():
                own |= {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
                self._put(weights)
            yield
        finally:
            with self._whole_parameters():
                self._put(own)

    def _whole_parameters(self) -> AbstractContextManager[None]:
        """Whole trained parameters; the main process's values stay (ZeRO-3; nothing to do otherwise)."""
        return self.deepspeed.zero.GatheredParameters(list(self.parameters.values()), modifier_rank=0)

    @torch.no_grad()
    def _put(self, values: Weights) -> None:
        for name, parameter in self.parameters.items():
            parameter.copy_(values[name])


def enter_through_root(model: SpeechLLM) -> None:
    """Let methods of an FSDP2 model be called like its ``forward``, the only place with whole root weights.

    Within ``forward``, or one another, they are plain calls.
    """
    depth = [0]

    def count(amount: int, *_: Any) -> None:
        depth[0] += amount

    model.register_forward_pre_hook(partial(count, 1))
    model.register_forward_hook(partial(count, -1), always_call=True)
    for name in ENTRANCES:
        inner = getattr(model, name)
        register_fsdp_forward_method(model, name)
        setattr(model, name, partial(_enter, depth, inner, getattr(model, name)))


def _enter(depth: list[int], inner: Callable, through_root: Callable, *args: Any, **kwargs: Any) -> Any:
    depth[0] += 1
    try:
        return (inner if depth[0] > 1 else through_root)(*args, **kwargs)
    finally:
        depth[0] -= 1


def any_rank(flag: bool) -> bool:
    """Whether the flag is set on any rank; all ranks call."""
    if not dist.is_initialized():
        return flag
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    total = torch.tensor(float(flag), device=device)
    dist.all_reduce(total)
    return bool(total > 0)


def _keep_on_main(pairs: Iterable[tuple[str, Kept]]) -> dict[str, Kept]:
    """Go through pairs on every rank, as gathering needs, and keep them on the main process."""
    is_main = not dist.is_initialized() or dist.get_rank() == 0
    return {name: value for name, value in pairs if is_main}


def _local(tensor: Tensor) -> Tensor:
    """This rank's part."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def _whole(tensor: Tensor) -> Tensor:
    """Copy of the whole, on the CPU."""
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu().clone()


def _spread_like(parameter: Tensor, whole: Tensor) -> Tensor:
    """Copy of a whole value, on the ranks as the parameter is."""
    whole = whole.to(parameter.device, copy=True)
    if isinstance(parameter, DTensor):
        return distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
    return whole
