r"""Estimate the memory that a training run needs on each GPU, before there is a GPU.

    python scripts/plan_memory.py experiment=firered_llm_8gpu model.path=pretrained/FireRedASR-LLM-L \
        --ranks 8 --backend zero2 --seconds 15 --tokens 60 --gpu-memory 80

Settings are those of train.py. The sizes are read from model.path; with --released they are those of
FireRedASR-LLM-L, and no file is needed. The update and the rollout are not in memory at the same time: the
larger of the two counts. What lies outside of tensors (the GPU's context, workspaces, gaps of the allocator)
comes on top.
"""

import argparse
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table
from transformers import Qwen2Config

from asrl.cli.compose import check_command_line, compose_config
from asrl.errors import UserError, exit_with_one_line
from asrl.models.memory import (
    GPU,
    Activations,
    Rollout,
    Work,
    rollout_bytes,
    static_bytes,
    update_bytes,
    update_work,
)
from asrl.models.released_decoder import check_decoder
from asrl.models.released_files import ENCODER_FILE, MODEL_FILE, check_files, read_field, read_package
from asrl.models.released_lora import RELEASED_RANK
from asrl.models.sizes import FLOAT, ModelSizes, Recipe

BACKENDS = ("ddp", "zero1", "zero2", "zero3", "fsdp2")
PROMPT_TEXT = 14  # tokens around the speech
FRAMES_PER_SECOND = 25  # of the encoder
GIB = 2**30


def main() -> None:
    """Parse the command line, and print the table and the verdict."""
    options = parse_options()
    check_command_line("train", [*options.settings, *_unset(options.settings)])
    config = compose_config("train", options.settings)
    case = Case(
        sizes=find_sizes(config, is_released=options.released),
        recipe=read_recipe(config),
        config=config,
        backend=options.backend,
        num_ranks=options.ranks,
        load=Load(options.seconds, options.tokens, options.unique_share),
    )
    need = case.need()
    console = Console()
    console.print(build_table(need, f"GiB per GPU: {options.backend} on {options.ranks}"))
    if options.gpu_memory:
        for line in judge(case, options.gpu_memory):
            console.print(line, highlight=False, soft_wrap=True)


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="settings of train.py")
    parser.add_argument("--ranks", type=_positive(int), default=8, help="GPUs of the run (default: 8)")
    parser.add_argument("--backend", choices=BACKENDS, default="ddp", help="default: ddp")
    parser.add_argument(
        "--seconds", type=_positive(float), default=15.0, help="longest utterance of a batch (default: 15)"
    )
    parser.add_argument(
        "--tokens", type=_positive(int), default=60, help="tokens of a transcript (default: 60)"
    )
    parser.add_argument(
        "--unique-share",
        type=_positive(float),
        default=0.5,
        help="tokens that remain when the transcripts of an utterance share their beginnings, as a share of "
        "all; 1 is the worst case (default: 0.5)",
    )
    parser.add_argument("--released", action="store_true", help="sizes of FireRedASR-LLM-L, without files")
    parser.add_argument("--gpu-memory", type=_positive(float), help="GiB of one GPU; says what to change")
    return parser.parse_intermixed_args()


def _positive(kind: type) -> type:
    def number(text: str) -> float:
        value = kind(text)
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
        return value

    number.__name__ = kind.__name__  # argparse names it in its message
    return number  # type: ignore[return-value]


def _unset(settings: list[str]) -> Iterator[str]:
    """Stand-ins for what a plan does not read."""
    given = {setting.split("=")[0] for setting in settings}
    yield from (f"{key}=unused" for key in ("data.train", "data.dev") if key not in given)


def find_sizes(config: DictConfig, *, is_released: bool) -> ModelSizes:
    """Sizes of the checkpoint of a run.

    Raises:
        UserError: There is none, or it is damaged.
    """
    if is_released:
        return ModelSizes()
    directory = Path(config.model.path)
    if not directory.is_dir():
        raise UserError(
            f"model.path: {directory} is not a directory; name a checkpoint, or plan for the released sizes "
            "with --released"
        )
    folder = check_files(directory)
    check_decoder(folder)
    encoder_path, model_path = directory / ENCODER_FILE, directory / MODEL_FILE
    encoder, model = read_package(encoder_path)["args"], read_package(model_path)["args"]
    decoder = Qwen2Config.from_pretrained(folder)
    names = {
        "num_bins": "idim",
        "encoder_width": "d_model",
        "encoder_heads": "n_head",
        "encoder_layers": "n_layers_enc",
        "kernel_size": "kernel_size",
    }
    return ModelSizes(
        **{field: int(read_field(encoder, name, encoder_path)) for field, name in names.items()},
        downsample=int(read_field(model, "encoder_downsample_rate", model_path)),
        hidden_size=decoder.hidden_size,
        num_heads=decoder.num_attention_heads,
        num_key_value_heads=decoder.num_key_value_heads,
        intermediate_size=decoder.intermediate_size,
        num_layers=decoder.num_hidden_layers,
        vocab_size=decoder.vocab_size,
        is_tied=decoder.tie_word_embeddings,
    )


def read_recipe(config: DictConfig) -> Recipe:
    """What the settings say about weights and precision."""
    model = config.model
    return Recipe(
        trains_encoder=model.train_encoder,
        trains_projector=model.train_projector,
        decoder=model.train_decoder,
        lora_rank=RELEASED_RANK if model.lora.start == "continue" else model.lora.rank,
        decoder_bytes=2 if model.decoder_dtype == "bfloat16" and model.train_decoder != "full" else FLOAT,
        has_autocast=config.trainer.mixed_precision == "bf16",
        has_checkpointing=model.gradient_checkpointing,
        has_dropout=config.dropout,
    )


class Load(NamedTuple):
    """Speech and transcripts to plan for."""

    seconds: float
    tokens: int
    unique_share: float


class Need(NamedTuple):
    """Bytes on one GPU."""

    static: dict[str, int]
    update: Activations
    rollout: Rollout

    @property
    def total(self) -> int:
        return sum(self.static.values()) + max(self.update.total, self.rollout.total)


class Case(NamedTuple):
    """A run to plan."""

    sizes: ModelSizes
    recipe: Recipe
    config: DictConfig
    backend: str
    num_ranks: int
    load: Load

    @property
    def num_frames(self) -> int:
        return math.ceil(self.load.seconds * FRAMES_PER_SECOND)

    @property
    def num_prompt(self) -> int:
        return self.num_frames // self.sizes.downsample + PROMPT_TEXT

    def need(self, *, max_positions: int | None = None) -> Need:
        """Memory of this run."""
        static = static_bytes(self.sizes, self.recipe, backend=self.backend, num_ranks=self.num_ranks)
        if self.config.beta and self.config.reference == "frozen" and self.backend == "ddp":
            static["reference policy"] = FLOAT * self.recipe.trained(self.sizes)
        work = update_work(
            num_rows=self.config.trainer.rows_per_device,
            num_generations=self.config.num_generations,
            num_frames=self.num_frames,
            num_prompt=self.num_prompt,
            num_tokens=self.load.tokens,
            unique_share=self.load.unique_share,
            layout=self.config.model.layout,
            max_positions=max_positions or self.config.trainer.max_positions,
        )
        update = update_bytes(self.sizes, work, self.recipe, GPU)
        return Need(static, update, rollout_bytes(self.sizes, self.rollout_work(), self.recipe))

    def rollout_work(self) -> Work:
        """All rows that this rank draws at once."""
        config = self.config
        num_rows = config.trainer.rows_per_device * config.trainer.gradient_accumulation_steps
        num_rows *= config.steps_per_generation
        num_utterances = num_rows
        if config.rollout.engine == "drafted":
            num_utterances = math.ceil(num_rows / config.num_generations)
        num_positions = self.num_prompt + self.load.tokens
        return Work(num_utterances, self.num_frames, num_rows, num_positions, num_rows * self.load.tokens)


def build_table(need: Need, title: str) -> Table:
    """What is needed, by kind."""
    table = Table(title=title)
    table.add_column("kind")
    table.add_column("GiB", justify="right")

    def add(kind: str, size: float, *, style: str | None = None) -> None:
        table.add_row(kind, f"{size / GIB:.2f}", style=style)

    for kind, size in need.static.items():
        add(kind, size)
    table.add_section()
    add("update: activations of the encoder", need.update.encoder)
    add("update: activations of the decoder", need.update.decoder)
    add("update: largest transient", need.update.transient)
    add("rollout: key/value cache", need.rollout.cache)
    add("rollout: largest forward", need.rollout.forward)
    table.add_section()
    add("total, with the larger of update and rollout", need.total, style="bold")
    return table


def alternatives(case: Case) -> Iterator[tuple[str, int]]:
    """Single changes of the run, and what it would need with each."""
    recipe = case.recipe
    changes = {
        "model.gradient_checkpointing=true": replace(recipe, has_checkpointing=True),
        "trainer.mixed_precision=bf16": replace(recipe, has_autocast=True),
        "model.decoder_dtype=bfloat16": replace(
            recipe, decoder_bytes=FLOAT if recipe.decoder == "full" else 2
        ),
        "model.train_encoder=false": replace(recipe, trains_encoder=False),
    }
    for change, changed in changes.items():
        yield change, case._replace(recipe=changed).need().total
    smallest = case.num_prompt + case.load.tokens
    yield f"trainer.max_positions={smallest}", case.need(max_positions=smallest).total
    if case.num_ranks > 1:
        for backend in BACKENDS[1:]:
            yield f"--backend {backend}", case._replace(backend=backend).need().total


def judge(case: Case, gpu_memory: float) -> Iterator[str]:
    """Say whether a run fits, and which changes bring it down by at least 1 %, the largest first."""
    total = case.need().total
    if total <= gpu_memory * GIB:
        yield f"fits into {gpu_memory:g} GiB, with {gpu_memory - total / GIB:.1f} GiB to spare"
        return
    yield f"does not fit into {gpu_memory:g} GiB. What would change it, each by itself:"
    helpful = [(size, change) for change, size in alternatives(case) if size < 0.99 * total]
    for size, change in sorted(helpful):
        yield f"  {size / GIB:8.2f} GiB  {change}"


if __name__ == "__main__":
    exit_with_one_line(main)
