"""This module is the only place that says which settings exist, what they mean and which are refused.

The dataclasses are the schema that every YAML file and command-line override is checked against.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf

from asrl.advantages import ESTIMATORS, SCALES
from asrl.errors import UserError
from asrl.losses import LEVELS, LOSS_TYPES
from asrl.registry import nearest
from asrl.rollout.engines import ENGINES

CONFIG_DIRECTORY = Path(__file__).resolve().parents[1] / "configs"


@dataclass
class LoraConfig:
    """Low-rank adapter on the seven linear maps of every decoder layer."""

    start: str = "merge"  # merge: fold the checkpoint's LoRA, start a fresh one | continue: train that one
    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.05


@dataclass
class ModelConfig:
    """Which checkpoint to start from and which of its parts to train."""

    path: str = MISSING  # directory in the released FireRedASR-LLM layout
    length_rule: str = "stride"  # stride: the original release and FireRedASR2S | arith: FireRedASR HEAD
    lora: LoraConfig = field(default_factory=LoraConfig)
    train_encoder: bool = True
    train_projector: bool = True
    train_decoder: str = "lora"  # lora | full | none
    decoder_dtype: str = "float32"  # float32 | bfloat16; of the frozen decoder weights
    gradient_checkpointing: bool = False
    layout: str = "tree"  # tree: read what transcripts share once | replicas: read every row by itself


@dataclass
class DataConfig:
    """Manifests (JSONL: key, audio, text, hotwords, distractors, ...) and how they are read."""

    train: str = MISSING
    dev: str | None = None
    test: str | None = None
    num_workers: int = 2
    drop_last: bool = False  # drop a short last batch instead of filling it from the next epoch


@dataclass
class RolloutConfig:
    """How transcripts are drawn."""

    engine: str = "drafted"  # drafted: check guesses, many tokens at once | plain: one token at a time
    temperature: float = 1.0
    top_k: int = 50  # 0: off
    top_p: float = 0.99  # 1.0: off
    max_new_tokens: int = 2048


@dataclass
class LearningRateConfig:
    """Peak learning rate of each part."""

    encoder: float = 1e-5
    projector: float = 1e-5
    decoder: float = 1e-5


@dataclass
class OptimConfig:
    """AdamW and its schedule."""

    learning_rate: LearningRateConfig = field(default_factory=LearningRateConfig)
    schedule: str = "constant_with_warmup"  # any name of transformers.SchedulerType
    num_warmup_steps: int = 10
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    max_grad_norm: float = 1.0


@dataclass
class TrainerConfig:
    """Size and length of the run, and what happens on the way."""

    rows_per_device: int = 64  # transcripts in one forward and backward pass of one process
    gradient_accumulation_steps: int = 1
    max_positions: int | None = None  # of one forward: speech, prompt and transcript tokens, padding included
    max_steps: int = 300  # optimizer steps
    mixed_precision: str = "no"  # no | bf16
    eval_every: int = 100  # optimizer steps between greedy evaluations of data.dev; 0: only before and after
    eval_utterances: int = 64  # utterances in one forward of an evaluation, per process
    save_every: int = 100  # optimizer steps between checkpoints; 0: only at the end
    keep_checkpoints: int = 2  # newest ones kept, besides the best by dev error rate
    on_nonfinite: str = "stop"  # stop | skip; a loss or gradient that is NaN or infinite


@dataclass
class LoggerConfig:
    """Where metrics go besides metrics.jsonl and the progress bar."""

    wandb: bool = False  # offline unless WANDB_API_KEY is set
    project: str = "asrl"
    completions_every: int = 50  # optimizer steps between tables of drawn transcripts; 0: never


@dataclass
class TrainConfig:
    """A whole reinforcement-learning run."""

    importance_sampling_level: str = "sequence"  # token: GRPO | sequence: GSPO | sequence_token: GSPO-token
    num_generations: int = 8  # transcripts drawn per utterance: a group
    loss_type: str = "grpo"
    beta: float = 0.0  # weight of the KL to the reference policy; 0: no reference
    epsilon: float = 0.2  # importance ratios are clipped below 1 - epsilon
    epsilon_high: float | None = None  # and above 1 + epsilon_high; null: epsilon
    delta: float | None = None  # second bound of ratios, where the advantage is negative; null: none
    scale_rewards: str = "group"  # standard deviation that advantages are divided by: group | batch | none
    advantage_estimator: str = "grpo"
    num_iterations: int = 1  # passes over a batch of rollouts
    steps_per_generation: int = 1  # optimizer steps that a batch of rollouts is cut into
    old_logps: str = "recompute"  # recompute: scored before the first update | detach: of the update itself
    reference: str = "adapter_off"  # the same network without its adapter
    dropout: bool = True  # every dropout of the network, at the rates of the checkpoint
    seed: int = 42
    run_dir: str = "runs/${importance_sampling_level}-seed${seed}"  # -2, -3, ... is appended if it exists
    resume: str | None = None  # directory of the run to go on with
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    reward: dict[str, Any] = field(default_factory=dict)
    optim: OptimConfig = field(default_factory=OptimConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)


@dataclass
class CtcConfig:
    """Weights of the CTC losses that help supervised training of a small model align."""

    encoder: float = 0.0  # 0: no such loss
    projector: float = 0.0


@dataclass
class SpecAugmentConfig:
    """Masks drawn on the features of each utterance in each epoch."""

    num_time_masks: int = 0
    max_time_frames: int = 20
    num_frequency_masks: int = 0
    max_frequency_bins: int = 10


@dataclass
class SupervisedConfig:
    """A whole supervised run (``asrl sft``)."""

    seed: int = 42
    run_dir: str = "runs/sft-seed${seed}"
    dropout: bool = True
    num_epochs: int = 10
    utterances_per_device: int = 16  # in one step of one process
    eval_every: int = 500  # steps between greedy evaluations of data.dev, each followed by an export
    ctc: CtcConfig = field(default_factory=CtcConfig)
    spec_augment: SpecAugmentConfig = field(default_factory=SpecAugmentConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    max_new_tokens: int = 64  # of a greedy transcript of data.dev


SCHEMAS = {"train": TrainConfig, "sft": SupervisedConfig}


def register_schemas() -> None:
    """Make the dataclasses known to Hydra as ``train_schema`` and ``sft_schema``."""
    for name, schema in SCHEMAS.items():
        ConfigStore.instance().store(name=f"{name}_schema", node=schema)


CHOICES = {
    "importance_sampling_level": LEVELS,
    "loss_type": LOSS_TYPES,
    "scale_rewards": SCALES,
    "advantage_estimator": ESTIMATORS,
    "old_logps": ("recompute", "same_masks", "rollout", "detach"),
    "reference": ("adapter_off", "frozen"),
    "model.length_rule": ("stride", "arith"),
    "model.layout": ("tree", "replicas"),
    "rollout.engine": tuple(ENGINES),
    "model.lora.start": ("merge", "continue"),
    "model.train_decoder": ("lora", "full", "none"),
    "model.decoder_dtype": ("float32", "bfloat16"),
    "trainer.mixed_precision": ("no", "bf16"),
    "trainer.on_nonfinite": ("stop", "skip"),
}
# (lowest, highest, whether the lowest itself is allowed)
RANGES = {
    "num_generations": (2, 4096, True),
    "num_iterations": (1, 1000, True),
    "steps_per_generation": (1, 1000, True),
    "beta": (0, 100, True),
    "epsilon": (0, 1, False),
    "model.lora.rank": (1, 1024, True),
    "model.lora.alpha": (0, 10**6, False),
    "model.lora.dropout": (0, 1, True),
    "data.num_workers": (0, 256, True),
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
    "trainer.max_steps": (1, 10**9, True),
    "trainer.eval_every": (0, 10**9, True),
    "trainer.eval_utterances": (1, 10**6, True),
    "trainer.save_every": (0, 10**9, True),
    "trainer.keep_checkpoints": (1, 10**6, True),
    "num_epochs": (1, 10**6, True),
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
            raise UserError(
                f"{key} must be one of {', '.join(allowed)}, got {value!r}{nearest(str(value), allowed)}"
            )
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


def plain(config: DictConfig) -> dict[str, Any]:
    """Resolve interpolations and return ordinary dicts, lists and numbers."""
    return OmegaConf.to_container(config, resolve=True, throw_on_missing=True)  # type: ignore[return-value]
