"""Measure the handling of data: opening a huge manifest, memory of its workers, throughput of the loader.

    python scripts/bench_data.py --lines 5000000

writes a manifest of so many lines that name the demo's audio files, opens it twice, lets worker processes
read lines at random, and then loads features of the demo's training set with one worker and with two. Beside
the time that passed stands the time on the CPU, which other programs on the machine do not lengthen.
"""

import argparse
import json
import multiprocessing
import os
import random
import re
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asrl.data.dataset import SpeechDataset, make_loader
from asrl.data.features import read_cmvn
from asrl.data.manifest import Manifest, read_manifest
from asrl.data.sampler import permute, plain_batches

DEMO = Path(__file__).resolve().parents[1] / "demo"
NUM_READS = 100_000
NUM_PASSES = 2  # over the demo's training set


def main() -> None:
    """Measure both, and print one line for each figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=200_000, help="of the manifest (default: 200000)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ASRL_CACHE"] = f"{folder}/cache"
        manifest = measure_opening(Path(folder) / "large.jsonl", arguments.lines)
        measure_workers(manifest)
    measure_loader()


@contextmanager
def timed(name: str) -> Iterator[None]:
    """Print how long the block took."""
    before, on_cpu = time.perf_counter(), time.process_time()
    yield
    passed, on_cpu = time.perf_counter() - before, time.process_time() - on_cpu
    print(f"{name}: {passed:.2f} s ({on_cpu:.2f} s on the CPU)", flush=True)


def measure_opening(path: Path, num_lines: int) -> Manifest:
    """Write a manifest and open it twice."""
    rows = [json.loads(line) for line in (DEMO / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    with timed(f"written: {num_lines} lines"), path.open("w", encoding="utf-8") as file:
        absolute = [row | {"key": "KEY", "audio": str(DEMO / row["audio"])} for row in rows]
        texts = [json.dumps(row, ensure_ascii=False) + "\n" for row in absolute]
        for number in range(num_lines):
            file.write(texts[number % len(texts)].replace("KEY", f"utterance-{number:09d}", 1))
    print(f"size: {path.stat().st_size / 1e9:.2f} GB")
    with timed("first opening, every line checked"):
        read_manifest(path)
    before = memory()["rss"]
    with timed("later opening"):
        manifest = read_manifest(path)
    print(f"memory of the open manifest: {memory()['rss'] - before:.1f} MB")
    with timed(f"order of one epoch of {num_lines}"):
        permute(num_lines, 0, 0)
    return manifest


def measure_workers(manifest: Manifest) -> None:
    """Let processes read lines at random, forked and spawned."""
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        answers = context.SimpleQueue()
        workers = [context.Process(target=_read, args=(manifest, seed, answers)) for seed in range(2)]
        for worker in workers:
            worker.start()
        for passed, on_cpu, grown, resident in (answers.get() for _ in workers):
            print(
                f"worker ({method}): {NUM_READS / passed:.0f} random lines a second "
                f"({NUM_READS / on_cpu:.0f} a second on the CPU), {resident:.0f} MB resident, "
                f"{grown:.1f} MB of it taken by {NUM_READS} reads and not shared"
            )
        for worker in workers:
            worker.join()


def _read(manifest: Manifest, seed: int, answers: "multiprocessing.SimpleQueue") -> None:
    draw = random.Random(seed)
    manifest[0]
    before, start, on_cpu = memory()["own"], time.perf_counter(), time.process_time()
    for _ in range(NUM_READS):
        manifest[draw.randrange(len(manifest))]
    passed, on_cpu = time.perf_counter() - start, time.process_time() - on_cpu
    answers.put((passed, on_cpu, memory()["own"] - before, memory()["rss"]))


def measure_loader() -> None:
    """Load the features of the demo's training set several times, in batches of 16."""
    utterances = list(read_manifest(DEMO / "train.jsonl"))
    hours = NUM_PASSES * sum(utterance.columns["duration"] for utterance in utterances) / 3600
    cmvn = read_cmvn(DEMO / "FireRedASR-LLM-demo" / "cmvn.ark")
    dataset = SpeechDataset(utterances * NUM_PASSES, cmvn=cmvn)
    for num_workers in (1, 2):
        start, on_cpu = time.perf_counter(), children_seconds()
        for _ in make_loader(dataset, plain_batches(len(dataset), 16), num_workers=num_workers):
            pass
        passed, on_cpu = time.perf_counter() - start, children_seconds() - on_cpu
        print(
            f"loader with {num_workers} workers: {hours / passed:.3f} hours of audio a second, "
            f"{hours / on_cpu:.3f} a second of a core",
            flush=True,
        )


def children_seconds() -> float:
    """Time on the CPU of the processes that this one has started and that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def memory() -> dict[str, float]:
    """Memory of this process in MB: resident, and what no other process or file could give back."""
    text = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    sizes = {name: int(size) / 1000 for name, size in re.findall(r"(\w+): +(\d+) kB", text)}
    return {"rss": sizes["Rss"], "own": sizes["Private_Dirty"]}


if __name__ == "__main__":
    main()
