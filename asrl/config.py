"""This module is the only place that says which settings exist and what they mean.

The dataclasses are the schema that every YAML file and command-line override is checked against.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf

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
    """Manifests (JSONL: key, audio, text, hotwords, distractors, ...) or folders, and how they are read."""

    train: str = MISSING
    dev: str | None = None
    test: str | None = None
    format: str = "auto"  # look at the data | asrl | wenet | funasr | swift | kaldi | huggingface
    num_workers: int = 2
    drop_last: bool = False  # drop a short last batch instead of filling it from the next epoch


@dataclass
class NoiseConfig:
    """Noise that is mixed into training audio."""

    path: str | None = None  # folder or manifest of noise; null: off
    probability: float = 0.5  # share of the utterances
    min_snr: float = 5.0  # dB; the ratio of speech to noise is drawn uniformly
    max_snr: float = 20.0


@dataclass
class ReverbConfig:
    """Rooms that training audio is put into."""

    path: str | None = None  # folder or manifest of impulse responses; null: off
    probability: float = 0.5  # share of the utterances


@dataclass
class SpecAugmentConfig:
    """Masks drawn on the features of each utterance in each epoch."""

    num_time_masks: int = 0
    max_time_frames: int = 20
    num_frequency_masks: int = 0
    max_frequency_bins: int = 10


@dataclass
class AugmentConfig:
    """How training audio is altered, anew in each epoch and alike for all transcripts of an utterance."""

    speed_factors: list[float] = field(default_factory=list)  # one is drawn, e.g. [0.9,1.0,1.1]; []: off
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    reverb: ReverbConfig = field(default_factory=ReverbConfig)
    spec_augment: SpecAugmentConfig = field(default_factory=SpecAugmentConfig)


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
    schedule: str = "constant_with_warmup"  # constant | linear | cosine | polynomial | ..., by transformers
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
    num_threads: int | None = None  # of each process on the CPU; null: torch's choice
    eval_every: int = 100  # optimizer steps between greedy evaluations of data.dev; 0: only before and after
    eval_utterances: int = 64  # utterances in one forward of an evaluation, per process
    save_every: int = 100  # optimizer steps between checkpoints; 0: only at the end
    keep_checkpoints: int = 2  # newest ones kept, besides the best by dev error rate
    copy_checkpoints_to: str | None = (
        None  # second folder that runs are copied to meanwhile, under their names
    )
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
    old_logps: str = "recompute"  # recompute | same_masks | rollout | detach; see docs/algorithms.md
    reference: str = "adapter_off"  # the network without its adapter | frozen: the starting weights
    dropout: bool = True  # every dropout of the network, at the rates of the checkpoint
    seed: int = 42
    run_dir: str = "runs/${importance_sampling_level}-seed${seed}"  # -2, -3, ... is appended if it exists
    resume: str | None = None  # directory of the run to go on with
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
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
class SupervisedConfig:
    """A whole supervised run (``asrl sft``)."""

    seed: int = 42
    run_dir: str = "runs/sft-seed${seed}"
    dropout: bool = True
    num_epochs: int = 10
    max_steps: int | None = None  # stop after so many steps of the schedule of num_epochs
    utterances_per_device: int = 16  # in one step of one process
    eval_every: int = 500  # steps between greedy evaluations of data.dev, each followed by an export
    ctc: CtcConfig = field(default_factory=CtcConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    max_new_tokens: int = 64  # of a greedy transcript of data.dev


SCHEMAS = {"train": TrainConfig, "sft": SupervisedConfig}


def register_schemas() -> None:
    """Make the dataclasses known to Hydra as ``train_schema`` and ``sft_schema``."""
    for name, schema in SCHEMAS.items():
        ConfigStore.instance().store(name=f"{name}_schema", node=schema)


def plain(config: DictConfig) -> dict[str, Any]:
    """Resolve interpolations and return ordinary dicts, lists and numbers."""
    return OmegaConf.to_container(config, resolve=True, throw_on_missing=True)  # type: ignore[return-value]
