"""This module is the only place that runs ``asrl export``."""

import argparse
import shutil
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from asrl.cli.build import DTYPES
from asrl.cli.weights import Source, find_source, load_source
from asrl.data.features import NUM_MEL_BINS
from asrl.errors import UserError
from asrl.models.firered import save_firered
from asrl.models.speech_llm import SpeechLLM
from asrl.types import SpeechBatch

DESCRIPTION = """\
Write what a run has trained as a directory in the released FireRedASR-LLM layout, which upstream's inference
code reads.

LoRA is written beside the decoder, at the released rank and scale; with --merge it is folded into decoder
weights of the directory's own. The directory is loaded again and compared with the model before the command
reports success."""

# Log-probs of the model and of its export; a wrong weight moves them by whole nats.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.5}
PROBE_FRAMES = (203, 78)
PROBE_TOKENS = 12


def main() -> None:
    """Entry point of ``asrl export``."""
    parser = argparse.ArgumentParser(
        prog="asrl export", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--checkpoint",
        required=True,
        metavar="C",
        help="a run (its newest checkpoint), RUN/checkpoints/step-..., RUN/checkpoints/best, or a model "
        "directory",
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="must not exist, or be empty")
    parser.add_argument("--merge", action="store_true", help="fold LoRA into the decoder's weights")
    parser.add_argument(
        "--dtype",
        choices=tuple(DTYPES),
        help="of merged decoder weights; bfloat16 takes half the room and rounds; default: as loaded",
    )
    arguments = parser.parse_args()
    if arguments.dtype and not arguments.merge:
        raise UserError("--dtype is that of merged decoder weights: add --merge, or leave it out")
    source, directory = find_source(checkpoint=arguments.checkpoint), Path(arguments.output)
    deviation = export(source, directory, merge=arguments.merge, dtype=DTYPES.get(arguments.dtype or ""))
    print(f"wrote {directory}; loaded again, its log-probs differ by {deviation:.1e} at most")


def export(source: Source, directory: Path, *, merge: bool, dtype: torch.dtype | None = None) -> float:
    """Write a model and load it again; return how far the log-probs of both are apart at most.

    Raises:
        UserError: The model cannot be written this way, or what was written is another model; the directory
            is removed then.
    """
    model = load_source(source)
    if not merge and not model.checkpoint_args.is_decoder_unchanged:
        raise UserError(
            f"{source.name}: its decoder weights are not those of {source.directory} any more "
            "(lora.start=merge folded a LoRA into them, or they were trained); add --merge"
        )
    expected, written_dtype = probe(model), dtype or model.causal_lm.lm_head.weight.dtype
    save_firered(model, directory, merge_lora=merge, decoder_dtype=dtype)
    del model  # two of them may not fit
    try:
        deviation = _compare(directory, expected, written_dtype, source.length_rule)
    except UserError:
        shutil.rmtree(directory)
        raise
    return deviation


def _compare(directory: Path, expected: Float[Tensor, "n l"], dtype: torch.dtype, length_rule: str) -> float:
    name = next(name for name, value in DTYPES.items() if value == dtype)
    reloaded = load_source(Source(directory), length_rule=length_rule, dtype=name)
    deviation = float((probe(reloaded) - expected).abs().max())
    if not deviation <= TOLERANCE[dtype]:  # NaN too
        raise UserError(
            f"{directory}: loaded again, its log-probs are off by up to {deviation:.3g}, more than "
            f"{TOLERANCE[dtype]:g}; the export was removed"
        )
    return deviation


@torch.no_grad()
def probe(model: SpeechLLM) -> Float[Tensor, "n l"]:
    """Log-probs of fixed random tokens given fixed random features: the same of the same model."""
    generator = torch.Generator().manual_seed(0)
    num_utterances = len(PROBE_FRAMES)
    rows = torch.arange(num_utterances)
    batch = SpeechBatch(
        utterances=(),
        features=torch.randn(num_utterances, max(PROBE_FRAMES), NUM_MEL_BINS, generator=generator),
        num_frames=torch.tensor(PROBE_FRAMES),
        row_utterance=rows,
        row_index=rows,
        replica=torch.zeros_like(rows),
        epoch=torch.zeros_like(rows),
    )
    tokens = torch.randint(
        model.causal_lm.config.vocab_size, (num_utterances, PROBE_TOKENS), generator=generator
    )
    return model(batch, tokens, torch.ones_like(tokens, dtype=torch.bool), temperature=1.0).logps
