"""Speak the demo's corpus: noisy train/dev/test splits to ship and a clean split for supervised training.

Example:
    python scripts/demo/build_corpus.py --output build/demo-corpus
"""

import argparse
import json
import multiprocessing
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import grammar
import soundfile
import synthesis
import torch
from tqdm import tqdm

from asrl.data.audio import read_audio
from asrl.data.features import accumulate_cmvn, fbank, write_cmvn
from asrl.errors import UserError

SHIPPED = {"test": 768, "dev": 256, "train": 800}


@dataclass(frozen=True)
class Job:
    """One utterance to be spoken; ``seed`` is the corpus seed, the key makes it the utterance's own."""

    key: str
    line: grammar.Line
    babble_text: str
    condition: synthesis.Condition
    path: Path
    seed: int


def speak_job(job: Job) -> dict[str, object]:
    """Write the audio of one utterance and return its manifest line."""
    seed = f"{job.seed}/{job.key}"
    recording = synthesis.record(
        job.line.text, babble_text=job.babble_text, condition=job.condition, seed=seed
    )
    synthesis.write_opus(job.path, recording.waveform)
    return {
        "key": job.key,
        "audio": f"audio/{job.path.parent.name}/{job.path.name}",
        "text": job.line.text,
        "hotwords": list(grammar.find_hotwords(job.line.text)),
        "distractors": list(grammar.draw_distractors(job.line.text, seed=seed)),
        "duration": round(soundfile.info(job.path).frames / synthesis.SAMPLE_RATE, 3),
        "template": job.line.template,
        "voice": recording.voice,
        "noise": recording.noise,
        "snr": recording.snr,
    }


def list_jobs(split: str, lines: Sequence[grammar.Line], *, folder: Path, seed: int) -> Iterator[Job]:
    """Jobs of a split; the babble of an utterance says the sentence of the next one."""
    condition = synthesis.CLEAN if split == "sft" else synthesis.NOISY
    for index, line in enumerate(lines):
        key = f"{split}-{index:04d}"
        babble = lines[(index + 1) % len(lines)].text
        yield Job(key, line, babble, condition, folder / "audio" / split / f"{key}.opus", seed)


def build_split(split: str, lines: Sequence[grammar.Line], *, folder: Path, seed: int, workers: int) -> None:
    """Write the audio and then the manifest of one split.

    Each utterance gets a freshly forked process: eSpeak's output depends on what its process said before.
    """
    audio = folder / "audio" / split
    shutil.rmtree(audio, ignore_errors=True)
    audio.mkdir(parents=True)
    jobs = list_jobs(split, lines, folder=folder, seed=seed)
    with multiprocessing.get_context("fork").Pool(workers, maxtasksperchild=1) as pool:
        rows = list(tqdm(pool.imap(speak_job, jobs), desc=split, total=len(lines), unit="utt"))
    manifest = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / f"{split}.jsonl").write_text(manifest, encoding="utf-8")


def write_statistics(folder: Path) -> None:
    """Feature mean and variance of the sft split, taken after the codec, to ``cmvn.ark``."""
    paths = sorted((folder / "audio" / "sft").glob("*.opus"))
    features = (fbank(read_audio(path)) for path in tqdm(paths, desc="cmvn", unit="utt"))
    write_cmvn(folder / "cmvn.ark", accumulate_cmvn(features))


def parse_arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description="Speak the demo's corpus with eSpeak NG (Linux or macOS).")
    parser.add_argument("--output", type=Path, required=True, help="folder of the sft split and cmvn.ark")
    parser.add_argument("--shipped", type=Path, default=Path("demo"), help="folder of train, dev and test")
    parser.add_argument("--sft-utterances", type=int, default=4000, help="size of the sft split")
    parser.add_argument("--seed", type=int, default=0, help="seeds sentences, voices, rooms and noise")
    parser.add_argument("--workers", type=int, default=2, help="processes that speak and encode")
    arguments = parser.parse_args()
    for name in ("sft_utterances", "workers"):
        if getattr(arguments, name) < 1:
            option = "--" + name.replace("_", "-")
            raise UserError(f"{option} must be at least 1, got {getattr(arguments, name)}: give a larger one")
    return arguments


def main() -> None:
    """Build every split, then the feature statistics."""
    arguments = parse_arguments()
    torch.set_num_threads(1)
    synthesis.load_espeak()
    splits = grammar.split_sentences(shipped=SHIPPED, num_sft=arguments.sft_utterances, seed=arguments.seed)
    for split, lines in splits.items():
        folder = arguments.output if split == "sft" else arguments.shipped
        build_split(split, lines, folder=folder, seed=arguments.seed, workers=arguments.workers)
    write_statistics(arguments.output)


if __name__ == "__main__":
    try:
        main()
    except (UserError, OSError) as error:
        sys.exit(f"build_corpus: {error}")
