"""This module is the only place that says which values and combinations of settings are refused."""

from omegaconf import DictConfig, OmegaConf

from asrl.advantages import ESTIMATORS, SCALES
from asrl.data.sources import FORMATS
from asrl.errors import UserError
from asrl.losses import LEVELS, LOSS_TYPES
from asrl.registry import nearest
from asrl.rollout.engines import ENGINES

CHOICES = {
    "importance_sampling_level": LEVELS,
    "loss_type": LOSS_TYPES,
    "scale_rewards": SCALES,
    "advantage_estimator": ESTIMATORS,
    "old_logps": ("recompute", "same_masks", "rollout", "detach"),
    "reference": ("adapter_off", "frozen"),
    "model.length_rule": ("stride", "arith"),
    "model.layout": ("tree", "replicas"),
    "data.format": FORMATS,
    "rollout.engine": tuple(ENGINES),
    "model.lora.start": ("merge", "continue"),
    "model.train_decoder": ("lora", "full", "none"),
    "model.decoder_dtype": ("float32", "bfloat16"),
    "optim.schedule": ("constant", "constant_with_warmup", "linear", "cosine", "polynomial", "inverse_sqrt"),
    "trainer.mixed_precision": ("no", "bf16"),
    "trainer.on_nonfinite": ("stop", "skip"),
}
# (lowest, highest, whether the lowest itself is allowed)
RANGES = {
    "seed": (0, 2**63 - 1, True),
    "num_generations": (2, 4096, True),
    "num_iterations": (1, 1000, True),
    "steps_per_generation": (1, 1000, True),
    "beta": (0, 100, True),
    "epsilon": (0, 1, False),
    "model.lora.rank": (1, 1024, True),
    "model.lora.alpha": (0, 10**6, False),
    "model.lora.dropout": (0, 1, True),
    "data.num_workers": (0, 256, True),
    "augment.noise.probability": (0, 1, True),
    "augment.noise.min_snr": (-100, 100, True),
    "augment.noise.max_snr": (-100, 100, True),
    "augment.reverb.probability": (0, 1, True),
    "rollout.temperature": (0, 100, False),
    "rollout.top_k": (0, 10**6, True),
    "rollout.top_p": (0, 1, False),
    "rollout.max_new_tokens": (1, 10**5, True),
    "optim.learning_rate.encoder": (0, 1, True),
    "optim.learning_rate.projector": (0, 1, True),
    "optim.learning_rate.decoder": (0, 1, True),
    "optim.weight_decay": (0, 1, True),
    "optim.beta1": (0, 0.99999, True),
    "optim.beta2": (0, 0.99999, True),
    "optim.max_grad_norm": (0, 10**6, False),
    "optim.num_warmup_steps": (0, 10**9, True),
    "trainer.rows_per_device": (1, 10**6, True),
    "trainer.gradient_accumulation_steps": (1, 10**6, True),
    "trainer.num_threads": (1, 4096, True),
    "trainer.max_steps": (1, 10**9, True),
    "trainer.eval_every": (0, 10**9, True),
    "trainer.eval_utterances": (1, 10**6, True),
    "trainer.save_every": (0, 10**9, True),
    "trainer.keep_checkpoints": (1, 10**6, True),
    "num_epochs": (1, 10**6, True),
    "max_steps": (1, 10**9, True),
    "utterances_per_device": (1, 10**6, True),
    "eval_every": (1, 10**9, True),
    "max_new_tokens": (1, 10**5, True),
    "ctc.encoder": (0, 100, True),
    "ctc.projector": (0, 100, True),
}


def check_values(config: DictConfig) -> None:
    """Check every setting that has a closed list of values or a range.

    Raises:
        UserError: A value is not allowed; the message names the key and the way out.
    """
    for key, allowed in CHOICES.items():
        value = OmegaConf.select(config, key)
        if value is not None and value not in allowed:
            hint = nearest(str(value), allowed)
            hint = hint if "did you mean" in hint else ""  # the values are listed anyway
            raise UserError(f"{key} must be one of {', '.join(allowed)}, got {value!r}{hint}")
    for key, (low, high, includes_low) in RANGES.items():
        value = OmegaConf.select(config, key)
        if value is not None and not (low < value <= high or (includes_low and value == low)):
            raise UserError(
                f"{key} must be {'at least' if includes_low else 'above'} {low} "
                f"and at most {high}, got {value}"
            )


def check_combinations(config: DictConfig) -> None:
    """Refuse settings that are fine alone but wrong together.

    Raises:
        UserError: Names both settings and the way out.
    """
    updates_per_batch = config.num_iterations * config.steps_per_generation
    if config.old_logps == "detach" and updates_per_batch > 1:
        raise UserError(
            "old_logps=detach needs one update per batch of rollouts, but num_iterations * "
            f"steps_per_generation = {updates_per_batch}; use old_logps=recompute"
        )
    if config.old_logps == "rollout" and config.dropout:
        raise UserError(
            "old_logps=rollout compares with log-probs drawn without dropout, but dropout=true; "
            "use dropout=false or old_logps=same_masks"
        )
    check_reference(config)
    if config.epsilon_high is not None and config.epsilon_high <= 0:
        raise UserError(
            f"epsilon_high must be above 0, got {config.epsilon_high}; null means the same as epsilon"
        )
    if config.loss_type == "cispo" and config.epsilon_high is None:
        raise UserError(
            "loss_type=cispo caps the importance weight at epsilon_high; set it (5.0 in the paper's range)"
        )
    if config.delta is not None and config.loss_type in ("cispo", "sapo"):
        raise UserError(
            f"loss_type={config.loss_type} has no second clipping bound, got delta={config.delta}; "
            "use delta=null"
        )
    if config.delta is not None and config.delta <= 1 + (config.epsilon_high or config.epsilon):
        raise UserError(
            f"delta must be above 1 + epsilon_high, got {config.delta}; null switches the cap off"
        )


def check_reference(config: DictConfig) -> None:
    """Refuse a reference policy that would not be the starting policy.

    Raises:
        UserError: Names both settings and the way out.
    """
    if config.beta == 0 or config.reference != "adapter_off":
        return
    if config.model.train_decoder != "lora":
        raise UserError(
            "reference=adapter_off needs model.train_decoder=lora, "
            f"got {config.model.train_decoder!r}; use reference=frozen"
        )
    if config.model.lora.start == "continue":
        raise UserError(
            "reference=adapter_off with model.lora.start=continue would compare with the raw language "
            "model, not with the starting policy; use reference=frozen"
        )
