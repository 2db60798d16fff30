"""Fetch the recordings of Fish Fillets NG in Czech and make a corpus of them: audio and four manifests.

The game is GPL-2: its packages are fetched from Debian into the output folder, nothing of them is shipped.

Example:
    python scripts/recipes/fillets_cs/build_corpus.py --output build/fillets_cs
"""

import argparse
import json
import multiprocessing
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import soundfile
import torch
from dialogs import Clip, find_clips
from splits import count_words, draw_distractors, find_hotwords, is_usable, split_scenes, spoken_text
from torchaudio.functional import resample
from tqdm import tqdm

from asrl.errors import UserError, exit_with_one_line

PACKAGES = ("fillets-ng-data", "fillets-ng-data-cs", "fortunes-cs")
GAME = Path("usr/share/games/fillets-ng")
SAMPLE_RATE = 16000
# Scenes for supervised training, for reinforcement learning alone, and held out.
SHARES = {"sft": 0.62, "rl": 0.18, "dev": 0.05, "test": 0.15}
SPEEDS = (0.9, 1.0, 1.1)  # of the supervised split
MAX_SECONDS = {"sft": 8.0, "rl": 6.0}  # of training, at the speed as recorded


@dataclass(frozen=True)
class Line:
    """A usable clip, its text, the length of its recording in seconds, and its split."""

    clip: Clip
    text: str
    seconds: float
    split: str


def fetch_packages(folder: Path) -> Path:
    """Download and extract the Debian packages, unless they are there; return the folder extracted to.

    Raises:
        UserError: ``apt-get`` or ``dpkg-deb`` is missing or fails.
    """
    extracted = folder / "extracted"
    if extracted.is_dir():
        return extracted
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / "extracted.new", ignore_errors=True)
    for package in PACKAGES:
        if not list(folder.glob(f"{package}_*.deb")):
            run_tool(["apt-get", "download", package], folder)
        archive = next(folder.glob(f"{package}_*.deb"))
        run_tool(["dpkg-deb", "-x", archive.name, "extracted.new"], folder)
    (folder / "extracted.new").rename(extracted)
    return extracted


def run_tool(command: Sequence[str], folder: Path) -> None:
    """Run a tool of Debian in a folder.

    Raises:
        UserError: It is missing or fails.
    """
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise UserError(f"{command[0]} is not installed: run this on Debian or Ubuntu") from None
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip() or "no message").splitlines()[-1]
        raise UserError(f"{' '.join(command)} failed ({reason}): try apt-get update") from error


def choose_lines(clips: Iterable[Clip]) -> list[Line]:
    """The usable clips, with the split of their scene."""
    measured = [(clip, spoken_text(clip.subtitle), soundfile.info(clip.audio).duration) for clip in clips]
    usable = [row for row in measured if is_usable(*row[1:])]
    seconds: Counter[str] = Counter()
    for clip, _, duration in usable:
        seconds[clip.scene] += duration
    split_of_scene = split_scenes(seconds, SHARES)
    lines = [Line(*row, split_of_scene[row[0].scene]) for row in usable]
    return [line for line in lines if line.seconds <= MAX_SECONDS.get(line.split, line.seconds)]


def write_audio(job: tuple[Line, Path, float]) -> float:
    """Write a clip at another speed (and pitch) as 16 kHz FLAC; return its length in seconds."""
    line, path, speed = job
    channels, rate = soundfile.read(line.clip.audio, dtype="float32", always_2d=True)
    waveform = torch.from_numpy(channels).mean(dim=1)
    # Read as if recorded at a higher rate, the recording is shorter.
    waveform = resample(waveform, round(rate * speed / 50) * 50, SAMPLE_RATE)
    soundfile.write(path, waveform.clamp(-1, 1).numpy(), SAMPLE_RATE)
    return len(waveform) / SAMPLE_RATE


def build_split(split: str, lines: Sequence[Line], folder: Path, *, workers: int) -> None:
    """Write the audio and then the manifest of one split."""
    audio = folder / "audio" / split
    shutil.rmtree(audio, ignore_errors=True)
    audio.mkdir(parents=True)
    jobs = []
    for line in lines:
        for speed in SPEEDS if split == "sft" else (1.0,):
            suffix = "" if speed == 1 else f"-{speed}"
            jobs.append((line, audio / f"{line.clip.scene}-{line.clip.name}{suffix}.flac", speed))
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        seconds = list(tqdm(pool.imap(write_audio, jobs, chunksize=8), desc=split, total=len(jobs)))
    write_manifest(folder / f"{split}.jsonl", [manifest_row(*job, folder) for job in jobs], seconds)
    print(f"{split}: {len(lines)} clips, {sum(line.seconds for line in lines) / 60:.1f} minutes")


def manifest_row(line: Line, path: Path, speed: float, folder: Path) -> dict[str, object]:
    """Columns that do not depend on other lines."""
    return {
        "key": path.stem,
        "audio": path.relative_to(folder).as_posix(),
        "text": line.text,
        "subtitle": line.clip.subtitle,
        "scene": line.clip.scene,
        "speed": speed,
    }


def write_manifest(path: Path, rows: Sequence[dict[str, object]], seconds: Sequence[float]) -> None:
    """Add hotwords and distractors, which are chosen within a split, and write."""
    counts = count_words(str(row["text"]) for row in rows)
    hotwords = [find_hotwords(str(row["subtitle"]), counts) for row in rows]
    known = {word for words in hotwords for word in words}
    with path.open("w", encoding="utf-8") as file:
        for row, words, duration in zip(rows, hotwords, seconds, strict=True):
            distractors = draw_distractors(
                str(row["text"]), known, num_words=max(1, len(words)), seed=str(row["key"])
            )
            columns = row | {
                "hotwords": words,
                "distractors": distractors,
                "duration": round(duration, 3),
            }
            file.write(json.dumps(columns, ensure_ascii=False) + "\n")


def main() -> None:
    """Fetch, split and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="folder for packages, audio and manifests")
    parser.add_argument("--workers", type=int, default=2, help="processes that convert audio")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = choose_lines(find_clips(fetch_packages(options.output) / GAME, "cs"))
    for split in SHARES:
        chosen = [line for line in lines if line.split == split]
        build_split(split, chosen, options.output, workers=options.workers)


if __name__ == "__main__":
    exit_with_one_line(main)
