"""This module is the only place that starts accelerate and hands it what a run trains."""

import os
from typing import NamedTuple

import torch
from accelerate import Accelerator, DistributedType, InitProcessGroupKwargs
from accelerate.state import AcceleratorState
from accelerate.utils import FullyShardedDataParallelPlugin
from torch import nn
from torch.optim import Optimizer
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from asrl.backends import Backend, DeepSpeed, Native
from asrl.errors import UserError

# Modules whose weights FSDP2 gathers and frees together.
FSDP_UNITS = ["ConformerBlock", "Qwen2DecoderLayer"]


def start_accelerator(*, num_threads: int | None = None) -> Accelerator:
    """Set the number of CPU threads and join the process group, if there is one.

    The precision is the model's matter (``SpeechLLM.autocast_dtype``), the same under every backend.

    Raises:
        UserError: FSDP1 is asked for.
    """
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    has_device = torch.accelerator.is_available()
    handlers = []
    if not has_device:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            # Named, or accelerate takes every rank under DeepSpeed for the only one.
            handlers = [InitProcessGroupKwargs(backend="gloo")]
    accelerator = Accelerator(
        mixed_precision="no", cpu=not has_device and not _is_on("DEEPSPEED"), kwargs_handlers=handlers
    )
    # Every rank reads whole weights, which are cut afterwards; transformers would cut them while it reads.
    unset_hf_deepspeed_config()
    if not has_device and _is_on("FSDP"):
        # accelerate offers FSDP on GPUs only; gloo can do it too.
        state = {"distributed_type": DistributedType.FSDP, "fsdp_plugin": FullyShardedDataParallelPlugin()}
        AcceleratorState._shared_state.update(state)
    if accelerator.distributed_type == DistributedType.FSDP and not accelerator.is_fsdp2:
        raise UserError("fsdp_version: this program shards with FSDP2; set fsdp_config.fsdp_version: 2")
    return accelerator


def _is_on(name: str) -> bool:
    return os.environ.get(f"ACCELERATE_USE_{name}", "false").lower() == "true"


class Distributed(NamedTuple):
    """What is trained, as the ranks see it.

    Attributes:
        policy: For forwards that are followed by a backward.
        backend: Takes the steps, and knows where the weights are.
    """

    policy: nn.Module
    backend: Backend


def distribute(
    module: nn.Module, optimizer: Optimizer, accelerator: Accelerator, *, max_grad_norm: float
) -> Distributed:
    """Spread a module and its optimizer over the ranks, in place.

    Raises:
        UserError: DeepSpeed's configuration asks for another optimizer.
    """
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        _configure_deepspeed(accelerator, max_grad_norm)
        policy, _ = accelerator.prepare(module, optimizer)
        return Distributed(policy, DeepSpeed(policy, module, optimizer))
    if accelerator.distributed_type == DistributedType.FSDP:
        plugin = accelerator.state.fsdp_plugin
        plugin.transformer_cls_names_to_wrap = FSDP_UNITS
        plugin.auto_wrap_policy = plugin.cpu_ram_efficient_loading = None  # every rank has read the weights
    policy, _ = accelerator.prepare(module, optimizer)
    return Distributed(policy, Native(policy, module, optimizer))


def reference_device(accelerator: Accelerator) -> torch.device:
    """Where whole starting weights are kept: not on a GPU that holds only a part of the trained ones."""
    is_cut = accelerator.distributed_type in (DistributedType.DEEPSPEED, DistributedType.FSDP)
    return torch.device("cpu") if is_cut else accelerator.device


def _configure_deepspeed(accelerator: Accelerator, max_grad_norm: float) -> None:
    """Fill in what follows from the run's own settings.

    Raises:
        UserError: The optimizer is to be offloaded, which would put another in its place.
    """
    settings = accelerator.state.deepspeed_plugin.deepspeed_config
    zero = settings.get("zero_optimization", {})
    if zero.get("offload_optimizer", {}).get("device", "none") != "none":
        raise UserError("zero_optimization.offload_optimizer: the optimizer stays on its device; remove it")
    # Micro-batches are cut by this program, so DeepSpeed is told that a step has one.
    settings |= {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
    settings["gradient_clipping"] = max_grad_norm
    # Parameters stay as they are: float32 where trained, perhaps bfloat16 where frozen.
    settings["bf16"] = settings["fp16"] = {"enabled": False}
