"""Random models of given sizes."""

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from asrl.models.conformer import ConformerEncoder
from asrl.models.lora import attach_lora
from asrl.models.projector import Projector
from asrl.models.sizes import ModelSizes
from asrl.models.speech_llm import SpeechLLM
from asrl.models.trainable import set_dropout, set_trainable

WIDE = ModelSizes(
    encoder_width=128,
    encoder_heads=4,
    encoder_layers=3,
    kernel_size=15,
    hidden_size=256,
    num_heads=8,
    num_key_value_heads=2,
    intermediate_size=768,
    num_layers=4,
    vocab_size=640,
)


def build_encoder(sizes):
    return ConformerEncoder(
        sizes.num_bins, sizes.encoder_layers, sizes.encoder_heads, sizes.encoder_width, sizes.kernel_size
    )


def build_decoder(sizes):
    config = Qwen2Config(
        vocab_size=sizes.vocab_size,
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size,
        num_hidden_layers=sizes.num_layers,
        num_attention_heads=sizes.num_heads,
        num_key_value_heads=sizes.num_key_value_heads,
        tie_word_embeddings=sizes.is_tied,
    )
    return Qwen2ForCausalLM(config)


def build(sizes, recipe, prompt):
    """A model of these sizes that is trained and computes as the recipe says."""
    llm = build_decoder(sizes).to(torch.bfloat16 if recipe.decoder_bytes == 2 else torch.float32)
    if recipe.decoder == "lora":
        llm = attach_lora(llm, rank=recipe.lora_rank, alpha=16, dropout=0.1)
    projector = Projector(sizes.encoder_width, sizes.hidden_size)
    model = SpeechLLM(build_encoder(sizes), projector, llm, prompt, max_logits=recipe.max_logits)
    set_trainable(
        model, encoder=recipe.trains_encoder, projector=recipe.trains_projector, decoder=recipe.decoder
    )
    model.autocast_dtype = torch.bfloat16 if recipe.has_autocast else None
    if recipe.has_checkpointing:
        model.enable_gradient_checkpointing()
    set_dropout(model, recipe.has_dropout)
    return model.train()
