"""A model as wide as the released one, a few layers deep, that writes a given text with few errors.

Random weights would write noise, on which no draft can be right. Here every token's output weights point to
the token that follows it in the text, and less strongly to a substitute for that one, after which the text
goes on: the errors of a good recogniser. All matrices have the real sizes, so every layer takes the time of a
real one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from asrl.cli.build import build_optimization
from asrl.cli.compose import compose_config
from asrl.cli.distribute import distribute, start_accelerator
from asrl.models.conformer import ConformerEncoder
from asrl.models.lora import attach_lora
from asrl.models.projector import Projector
from asrl.models.speech_llm import SpeechLLM
from asrl.models.trainable import set_dropout, set_trainable
from asrl.rewards import build_rewards
from asrl.rollout.engines import ENGINES
from asrl.rollout.settings import SamplingSettings
from asrl.run_state import Parts, Progress
from asrl.trainer import Trainer
from asrl.types import SpeechBatch
from asrl.utterance import Utterance

VOCABULARY = 152_064
HIDDEN = 3584
NUM_TEXT_TOKENS = 80
END, PAD = 151_645, 151_643
SHARPNESS = 15.0  # logit of the right token; wrong ones have about 0
SUBSTITUTE = 11.0  # logit of its substitute: e^-4 = 1.8 % substitutions
NUM_FRAMES = 1500  # 15 s


@dataclass(frozen=True)
class FixedPrompt:
    """Stands in for the chat prompt: as many tokens, and a text whose characters are its token ids."""

    prefix_ids: tuple[int, ...] = (151_644, 872, 198)
    suffix_ids: tuple[int, ...] = (14880, 46670, 61443, 111268, 17714, 87335, 151645, 198, 151644, 77091, 198)
    end_id: int = END
    pad_id: int = PAD

    def encode_transcript(self, text: str) -> list[int]:
        return [*(ord(character) for character in text), END]

    def decode(self, tokens: list[int]) -> str:
        # Tokens that are no Han character become one, so that every slip counts as an error.
        return "".join(chr(token) if 0x4E00 <= token < 0x9FFF else "错" for token in tokens if token != END)


TEXT_IDS = list(range(0x4E00, 0x4E00 + 7 * NUM_TEXT_TOKENS, 7))


@torch.no_grad()
def teach(llm: Qwen2ForCausalLM) -> None:
    """Make the decoder write ``TEXT_IDS``, with substitutions, and then end."""
    generator = torch.Generator().manual_seed(0)
    embeddings = llm.model.embed_tokens.weight.normal_(generator=generator)
    for layer in llm.model.layers:
        layer.self_attn.o_proj.weight.mul_(0.01)
        layer.mlp.down_proj.weight.mul_(0.01)
    head = llm.lm_head.weight.normal_(0, 0.3 * HIDDEN**-0.5, generator=generator)
    last_of_prompt = FixedPrompt().suffix_ids[-1]
    for token, follower in zip([last_of_prompt, *TEXT_IDS], [*TEXT_IDS, END], strict=True):
        direction = embeddings[token] / embeddings[token].square().sum()
        head[follower] = SHARPNESS * direction
        if follower != END:
            head[follower + 1] = SUBSTITUTE * direction
            embeddings[follower + 1] = embeddings[follower]


def wide_model() -> SpeechLLM:
    """Encoder of width 1280 with two blocks, decoder of width 3584 with one layer and the full vocabulary."""
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=18944,
        num_hidden_layers=1,
        num_attention_heads=28,
        num_key_value_heads=4,
        tie_word_embeddings=False,
    )
    encoder = ConformerEncoder(
        idim=80,
        num_layers=2,
        num_heads=20,
        d_model=1280,
        kernel_size=33,
        residual_dropout=0.1,
        dropout_rate=0.1,
    )
    llm = Qwen2ForCausalLM(config)
    teach(llm)
    llm = attach_lora(llm, rank=64, alpha=16, dropout=0.05)
    model = SpeechLLM(encoder, Projector(1280, HIDDEN), llm, FixedPrompt())
    set_trainable(model, encoder=True, projector=True, decoder="lora")
    set_dropout(model, enabled=False)
    return model


def wide_batches() -> Iterator[SpeechBatch]:
    """One utterance and eight transcripts a step."""
    generator = torch.Generator().manual_seed(0)
    text = "".join(map(chr, TEXT_IDS))
    for number in range(1000):
        yield SpeechBatch(
            utterances=(Utterance(f"wide-{number}", "", text),),
            features=torch.randn(1, NUM_FRAMES, 80, generator=generator),
            num_frames=torch.tensor([NUM_FRAMES]),
            row_utterance=torch.zeros(8, dtype=torch.long),
            row_index=torch.arange(8),
            replica=torch.arange(8),
            epoch=torch.zeros(8, dtype=torch.long),
        )


def build_wide_trainer() -> Trainer:
    """A trainer for ``wide_batches`` whose weights never change."""
    config = compose_config(
        "train",
        [
            "trainer.rows_per_device=8",
            "rollout.max_new_tokens=100",
            *(f"optim.learning_rate.{part}=0" for part in ("encoder", "projector", "decoder")),
        ],
    )
    accelerator = start_accelerator()
    model = wide_model()
    optimizer, schedule = build_optimization(model, config.optim, num_steps=1)
    policy, backend = distribute(model, optimizer, accelerator, max_grad_norm=config.optim.max_grad_norm)
    parts = Parts(
        policy=policy,
        model=model,
        backend=backend,
        schedule=schedule,
        loader=(),
        rewards=build_rewards({"accuracy": {}}),
        generate=ENGINES["drafted"],
        sampling=SamplingSettings(temperature=1.0, top_k=50, top_p=0.99, max_new_tokens=100, seed=0),
        starting_weights={},
        evaluator=None,
        tracker=None,
        accelerator=accelerator,
        run_dir=Path(),
    )
    return Trainer(parts, config, Progress(), num_batches=1)
