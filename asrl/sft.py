"""This module is the only place that trains on written transcripts: cross-entropy, helped by CTC."""

import math
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from jaxtyping import Bool, Float, Int
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from asrl.backends import Backend
from asrl.data.dataset import SpeechLoader
from asrl.errors import UserError
from asrl.evaluator import Evaluator
from asrl.models.firered import save_firered
from asrl.models.prompt import PromptTemplate, clean_text
from asrl.models.speech_llm import SpeechLLM
from asrl.optimization import learning_rates
from asrl.sampling import stable_hash
from asrl.tracking import Tracker
from asrl.types import SpeechBatch, SpeechEmbeddings, on_device


@dataclass(frozen=True)
class Transcripts:
    """Ground truth as completion tokens, one row per utterance, padded on the right."""

    tokens: Int[Tensor, "u l"]
    mask: Bool[Tensor, "u l"]


def encode_transcripts(batch: SpeechBatch, prompt: PromptTemplate) -> Transcripts:
    """Clean and tokenise the transcripts of a batch, the end token included."""
    rows = [prompt.encode_transcript(clean_text(utterance.transcript)) for utterance in batch.row_utterances]
    num_tokens = torch.tensor([len(row) for row in rows])
    tokens = torch.full((len(rows), int(num_tokens.max())), prompt.pad_id)
    for padded, row in zip(tokens, rows, strict=True):
        padded[: len(row)] = torch.tensor(row)
    return Transcripts(tokens, torch.arange(tokens.shape[1]) < num_tokens[:, None])


def ctc_loss(
    logits: Float[Tensor, "u t v"], num_frames: Int[Tensor, " u"], transcripts: Transcripts, *, blank: int
) -> Float[Tensor, ""]:
    """CTC (Graves et al. 2006) of the transcripts without their end token, per token.

    Utterances with more tokens than frames, which CTC cannot align, count as zero.
    """
    num_tokens = transcripts.mask.sum(1) - 1
    losses = F.ctc_loss(
        logits.float().log_softmax(-1).transpose(0, 1),
        transcripts.tokens,
        num_frames,
        num_tokens,
        blank=blank,
        reduction="sum",
        zero_infinity=True,
    )
    return losses / num_tokens.sum().clamp(min=1)


class SupervisedModel(nn.Module):
    """A speech LLM and the losses of supervised training.

    Two CTC losses make a small model align speech and text early: one through a head of its own on the
    encoder, one on the speech embeddings with the decoder's token embeddings as classifier, so that each
    embedding moves towards the token spoken there. The padding token is the blank: no transcript contains it.

    Args:
        model: Trained in place.
        encoder_ctc: Weight of the first.
        projector_ctc: Weight of the second.
    """

    def __init__(self, model: SpeechLLM, *, encoder_ctc: float, projector_ctc: float) -> None:
        super().__init__()
        self.model = model
        self.encoder_ctc = encoder_ctc
        self.projector_ctc = projector_ctc
        num_tokens = model.causal_lm.get_input_embeddings().num_embeddings
        width = model.projector.linear1.in_features // model.projector.downsample
        self.ctc_head = nn.Linear(width, num_tokens) if encoder_ctc else None

    def forward(self, batch: SpeechBatch, transcripts: Transcripts) -> dict[str, Float[Tensor, ""]]:
        """Return ``loss`` and its parts, in nats per token of this batch."""
        encoded = self.model.encoder(batch.features, batch.num_frames)
        speech = self.model.project(encoded.hidden, batch.num_frames)
        scores = self.model.score(speech, transcripts.tokens, transcripts.mask)
        losses = {"loss": -scores.logps.sum() / transcripts.mask.sum()}
        losses["cross_entropy"] = losses["loss"].detach()
        blank = self.model.prompt.pad_id
        if self.ctc_head is not None:
            ctc = ctc_loss(self.ctc_head(encoded.hidden), encoded.num_frames, transcripts, blank=blank)
            losses["loss"] = losses["loss"] + self.encoder_ctc * ctc
            losses["encoder_ctc"] = ctc.detach()
        if self.projector_ctc:
            ctc = ctc_loss(self._token_logits(speech), speech.num_tokens, transcripts, blank=blank)
            losses["loss"] = losses["loss"] + self.projector_ctc * ctc
            losses["projector_ctc"] = ctc.detach()
        return losses

    def _token_logits(self, speech: SpeechEmbeddings) -> Float[Tensor, "u s v"]:
        return F.linear(speech.embeddings, self.model.causal_lm.get_input_embeddings().weight)


@dataclass(frozen=True)
class SupervisedParts:
    """What a supervised run is made of.

    Attributes:
        policy: ``SupervisedModel`` as wrapped by accelerate.
        model: The speech LLM inside it.
        backend: Takes the optimizer's steps.
        schedule: Of the learning rates.
        loader: Batches of all epochs in order.
        evaluator: Holds the ``dev`` set, if there is one.
        tracker: On the main process only.
        accelerator: Runs it all.
    """

    policy: nn.Module
    model: SpeechLLM
    backend: Backend
    schedule: LambdaLR
    loader: SpeechLoader
    evaluator: Evaluator
    tracker: Tracker | None
    accelerator: Accelerator


class SupervisedTrainer:
    """Trains, evaluates at intervals, and writes the model in the released layout to ``run_dir/model``."""

    def __init__(self, parts: SupervisedParts, config: DictConfig, run_dir: Path) -> None:
        self.parts = parts
        self.config = config
        self.run_dir = run_dir

    def run(self) -> None:
        """Train to the end."""
        step = last_evaluation = 0
        for step, batch in enumerate(self.parts.loader, start=1):
            self.seed(step)
            losses = self.update(on_device(batch, self.parts.accelerator.device), step)
            if self.parts.tracker:
                self.parts.tracker.step(step, losses | learning_rates(self.parts.schedule.optimizer), {})
            if step % self.config.eval_every == 0:
                last_evaluation = step
                self.evaluate(step)
                self.export()
        if step > last_evaluation:
            self.evaluate(step)
            self.export()

    def seed(self, step: int) -> None:
        """Make dropout a function of (seed, step, rank)."""
        torch.manual_seed(
            stable_hash(self.config.seed, "dropout", step, self.parts.accelerator.process_index)
        )

    def update(self, batch: SpeechBatch, step: int) -> dict[str, float]:
        """One optimizer step.

        Raises:
            UserError: The loss or the gradient is not finite; the model on disk is from before.
        """
        parts = self.parts
        parts.policy.train()
        transcripts = on_device(encode_transcripts(batch, parts.model.prompt), parts.accelerator.device)
        losses = parts.policy(batch, transcripts)
        parts.backend.backward(losses["loss"], is_last=True)
        norm = parts.backend.step(self.config.optim.max_grad_norm, is_wanted=True)
        if not math.isfinite(norm):
            keys = ", ".join(utterance.key for utterance in batch.utterances)
            raise UserError(
                f"step {step}: the gradient is not finite; utterances of this rank: {keys}; "
                "lower optim.learning_rate"
            )
        parts.schedule.step()
        means = {
            name: parts.accelerator.reduce(value.detach(), "mean").item() for name, value in losses.items()
        }
        return means | {"grad_norm": norm}

    def evaluate(self, step: int) -> None:
        """Greedy error rates on the dev set."""
        if "dev" not in self.parts.evaluator.datasets:
            return
        rates = self.parts.evaluator.run("dev", "greedy", step=step)
        if self.parts.tracker:
            self.parts.tracker.evaluation(step, rates)
            self.parts.tracker.say(f"step {step}: dev CER {rates['dev_greedy/cer']:.2%}")

    def export(self) -> None:
        """Write the model as a directory that can be trained, decoded and evaluated."""
        if self.parts.accelerator.is_main_process:
            final, new = self.run_dir / "model", self.run_dir / "model.new"
            shutil.rmtree(new, ignore_errors=True)
            save_firered(self.parts.model, new, merge_lora=True)
            shutil.rmtree(final, ignore_errors=True)
            new.rename(final)
        self.parts.accelerator.wait_for_everyone()
