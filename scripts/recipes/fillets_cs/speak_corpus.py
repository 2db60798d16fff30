"""Let eSpeak NG read out Czech text, and write the manifests of both supervised stages.

Example:
    python scripts/recipes/fillets_cs/speak_corpus.py --corpus build/fillets_cs
"""

import argparse
import json
import multiprocessing
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import soundfile
import synthesis
import torch
from build_corpus import SPEEDS
from pretraining_text import choose_texts, fortunes
from tqdm import tqdm

from asrl.data.audio import read_audio
from asrl.data.features import accumulate_cmvn, fbank, write_cmvn
from asrl.data.manifest import read_manifest
from asrl.errors import exit_with_one_line

# Batches are padded to their longest utterance, so a few long ones would cost most of the time.
PRETRAIN_SECONDS = 4.0
WARM_START_SECONDS = 6.0
FORTUNES = Path("extracted/usr/share/games/fortunes/cs")
CZECH = synthesis.Condition(
    voices=synthesis.SEEN_VOICES + synthesis.UNSEEN_VOICES,
    snr=(12.0, 35.0),
    t60=0.25,
    language="cs",
    speed=(130, 210),
)


@dataclass(frozen=True)
class Job:
    """A text to be spoken, what the babble says, and where the recording goes."""

    text: str
    babble_text: str
    path: Path
    seed: int


def speak_job(job: Job) -> float:
    """Write the recording as FLAC; return its length in seconds."""
    recording = synthesis.record(
        job.text, babble_text=job.babble_text, condition=CZECH, seed=f"{job.seed}/{job.path.stem}"
    )
    soundfile.write(job.path, recording.waveform, synthesis.SAMPLE_RATE)
    return len(recording.waveform) / synthesis.SAMPLE_RATE


def write_split(texts: list[str], folder: Path, *, seed: int, workers: int) -> None:
    """Speak every text and write ``synthetic.jsonl``.

    Each utterance gets a freshly forked process: eSpeak's output depends on what its process said before.
    """
    audio = folder / "audio" / "synthetic"
    shutil.rmtree(audio, ignore_errors=True)
    audio.mkdir(parents=True)
    jobs = [
        Job(text, texts[index - 1], audio / f"synthetic-{index:05d}.flac", seed)
        for index, text in enumerate(texts)
    ]
    with multiprocessing.get_context("fork").Pool(workers, maxtasksperchild=1) as pool:
        seconds = list(tqdm(pool.imap(speak_job, jobs), desc="synthetic", total=len(jobs), unit="utt"))
    with (folder / "synthetic.jsonl").open("w", encoding="utf-8") as file:
        for job, duration in zip(jobs, seconds, strict=True):
            row = {
                "key": job.path.stem,
                "audio": job.path.relative_to(folder).as_posix(),
                "text": job.text,
                "duration": round(duration, 3),
            }
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    print(f"synthetic: {len(jobs)} utterances, {sum(seconds) / 60:.1f} minutes")


def write_statistics(folder: Path) -> None:
    """Feature mean and variance of the recordings for supervised training, to ``cmvn.ark``."""
    utterances = read_manifest(folder / "sft.jsonl")
    features = (
        fbank(read_audio(utterance.audio)) for utterance in tqdm(utterances[:: len(SPEEDS)], desc="cmvn")
    )
    write_cmvn(folder / "cmvn.ark", accumulate_cmvn(features))


def select(folder: Path, sources: Sequence[str], target: str, *, max_seconds: float) -> None:
    """Write the manifest of a stage: the lines of other manifests that are short enough."""
    lines = [line for name in sources for line in (folder / f"{name}.jsonl").open(encoding="utf-8")]
    chosen = [line for line in lines if json.loads(line)["duration"] <= max_seconds]
    (folder / f"{target}.jsonl").write_text("".join(chosen), encoding="utf-8")
    print(f"{target}: {len(chosen)} utterances")


def main() -> None:
    """Choose texts, speak them, and collect what each stage trains on."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, required=True, help="folder that build_corpus.py wrote")
    parser.add_argument("--utterances", type=int, default=12_000, help="texts to speak")
    parser.add_argument("--seed", type=int, default=0, help="of texts, voices, rooms and noise")
    parser.add_argument("--workers", type=int, default=2, help="processes that speak")
    options = parser.parse_args()
    torch.set_num_threads(1)
    synthesis.load_espeak()
    splits = {
        name: read_manifest(options.corpus / f"{name}.jsonl", check_audio=False)
        for name in ("sft", "rl", "dev", "test")
    }
    texts = choose_texts(
        fortunes(options.corpus / FORTUNES),
        (utterance.columns["subtitle"] for utterance in splits["sft"]),
        num_texts=options.utterances,
        forbidden={u.transcript for name in ("rl", "dev", "test") for u in splits[name]},
        seed=options.seed,
    )
    write_split(texts, options.corpus, seed=options.seed, workers=options.workers)
    write_statistics(options.corpus)
    select(options.corpus, ("synthetic", "sft"), "pretrain", max_seconds=PRETRAIN_SECONDS)
    select(options.corpus, ("sft",), "warm_start", max_seconds=WARM_START_SECONDS)


if __name__ == "__main__":
    exit_with_one_line(main)
