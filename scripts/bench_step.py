"""Time a training step both ways, interleaved in one process on the same weights, data and noise.

``baseline`` is what a padded trainer does: one row per transcript, encoder and prompt anew for each, one
token at a time. ``tree`` is the default here. The learning rate is 0, so that both see the same weights
throughout.

Settings:
    demo        the embedded demo at temperature 1.0
    demo-cold   the same at temperature 0.3, which stands for a stronger model
    wide        the widths of the released model, few layers, random weights that write a given text of 80
                tokens nearly without error

Example:
    python scripts/bench_step.py --json bench.json
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parent))
from wide_model import build_wide_trainer, wide_batches

from asrl.cli.compose import compose_config
from asrl.cli.distribute import start_accelerator
from asrl.cli.train import build_trainer
from asrl.errors import exit_with_one_line
from asrl.experience import Experience
from asrl.micro_batches import tree_positions
from asrl.rollout.engines import ENGINES
from asrl.trainer import Trainer
from asrl.types import SpeechBatch

ARMS = {"baseline": ("plain", "replicas"), "tree": ("drafted", "tree")}
DEMO = [
    "logger=none",
    "data.dev=null",
    "data.test=null",
    "data.num_workers=0",
    "trainer.save_every=0",
    *(f"optim.learning_rate.{part}=0" for part in ("encoder", "projector", "decoder")),
]


def demo_trainer(run_dir: Path, temperature: float) -> Trainer:
    """The embedded demo with frozen weights."""
    overrides = [*DEMO, f"rollout.temperature={temperature}", f"run_dir={run_dir}"]
    return build_trainer(compose_config("train", overrides), start_accelerator())


def use_arm(trainer: Trainer, arm: str) -> None:
    """Switch rollout engine and layout."""
    engine, layout = ARMS[arm]
    trainer.parts = trainer.learner.parts = replace(trainer.parts, generate=ENGINES[engine])
    trainer.parts.model.layout = trainer.config.model.layout = layout


def reset_peak_memory() -> None:
    """Forget the highest memory use so far (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> float:
    """Highest memory use since the reset, in MiB."""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) / 1024


def unique_floor(trainer: Trainer, experience: Experience) -> int:
    """Fewest positions the decoder must read in the update: every prompt and shared beginning once."""
    rows = torch.arange(len(experience.advantages))
    used = experience.select(torch.cat(trainer.learner.cut(experience, rows)))
    utterances = used.batch.row_utterance.tolist()
    prompts = trainer.parts.model.count_prompt(used.batch.num_frames).tolist()
    count = tree_positions(used.transcripts(), utterances, prompts)
    rows_of: dict[int, list[int]] = {}
    for row, utterance in enumerate(utterances):
        rows_of.setdefault(utterance, []).append(row)
    return sum(count(own) for own in rows_of.values())


def run_step(trainer: Trainer, batch: SpeechBatch) -> dict[str, Any]:
    """One training step; seconds, work counters and peak memory of it."""
    model = trainer.parts.model
    reset_peak_memory()
    model.work.clear()
    start = time.perf_counter()
    completions = trainer.rollout(batch)
    drawn, rollout_work = time.perf_counter(), dict(model.work)
    experience = trainer.collect(batch, completions)
    model.work.clear()
    collected = time.perf_counter()
    for rows in trainer.learner.optimizer_steps(experience):
        trainer.learner.learn(rows)
    end = time.perf_counter()
    return {
        "transcripts": experience.transcripts(),
        "seconds": {"rollout": drawn - start, "update": end - collected, "step": end - start},
        "work": {"rollout": rollout_work, "update": dict(model.work)},
        "floor": unique_floor(trainer, experience),
        "num_utterances": len(batch.utterances),
        "peak_mib": peak_memory(),
    }


def compare(trainer: Trainer, batches: Iterable[SpeechBatch], num_repeats: int) -> dict[str, Any]:
    """Run every batch both ways in turn, after one that does not count; ratios and counters."""
    pairs = []
    for repeat, batch in enumerate(tqdm(islice(batches, num_repeats + 1), total=num_repeats + 1)):
        pair = {}
        # Turn about, so that a drift of the machine's speed favours neither.
        for arm in list(ARMS)[:: 1 if repeat % 2 else -1]:
            use_arm(trainer, arm)
            pair[arm] = run_step(trainer, batch)
        assert pair["baseline"].pop("transcripts") == pair["tree"].pop("transcripts"), "the engines disagree"
        if repeat:
            pairs.append(pair)
    return summarise(pairs)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and largest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def summarise(pairs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Speed-up of every phase pair by pair, seconds, counters per utterance and step, and memory."""
    result: dict[str, Any] = {"repeats": len(pairs), "speedup": {}, "arms": {}}
    for phase in ("rollout", "update", "step"):
        ratios = [p["baseline"]["seconds"][phase] / p["tree"]["seconds"][phase] for p in pairs]
        result["speedup"][phase] = spread(ratios)
    for arm in ARMS:
        runs = [pair[arm] for pair in pairs]
        num_utterances = sum(run["num_utterances"] for run in runs)
        counters = {}
        for phase in ("rollout", "update"):
            work = sum((Counter(run["work"][phase]) for run in runs), Counter())
            counters[phase] = {
                "encoder_passes_per_utterance": work["encoder_utterances"] / num_utterances,
                "decoder_positions": work["decoder_positions"] / len(runs),
                "decoder_forwards": work["decoder_forwards"] / len(runs),
            }
        floor = sum(run["floor"] for run in runs) / len(runs)
        counters["update"]["positions_over_floor"] = counters["update"]["decoder_positions"] / floor
        seconds = {phase: spread([run["seconds"][phase] for run in runs]) for phase in runs[0]["seconds"]}
        peak = max(run["peak_mib"] for run in runs)
        result["arms"][arm] = {"seconds": seconds, "work": counters, "peak_mib": peak}
    return result


def run_setting(name: str, num_repeats: int) -> dict[str, Any]:
    """Measure one setting."""
    if name == "wide":
        return compare(build_wide_trainer(), wide_batches(), num_repeats)
    with tempfile.TemporaryDirectory() as directory:
        trainer = demo_trainer(Path(directory) / "run", temperature=0.3 if name == "demo-cold" else 1.0)
        with trainer.parts.tracker:
            return compare(trainer, trainer.parts.loader, num_repeats)


def show(name: str, result: dict[str, Any]) -> None:
    """Print the speed-ups and the counters of one setting."""
    print(f"\n{name} ({result['repeats']} steps)")
    for phase, ratio in result["speedup"].items():
        seconds = [result["arms"][arm]["seconds"][phase]["median"] for arm in ARMS]
        spread_text = f"{ratio['median']:.1f} x  [{ratio['min']:.1f}, {ratio['max']:.1f}]"
        print(f"  {phase:8} {spread_text:22} {seconds[0]:.3f} s -> {seconds[1]:.3f} s")
    for arm, figures in result["arms"].items():
        work = figures["work"]
        print(
            f"  {arm:8} encoder passes per utterance "
            f"{work['rollout']['encoder_passes_per_utterance']:.2f} (rollout) "
            f"{work['update']['encoder_passes_per_utterance']:.2f} (update); decoder positions "
            f"{work['rollout']['decoder_positions']:.0f} + {work['update']['decoder_positions']:.0f}; "
            f"forwards {work['rollout']['decoder_forwards']:.1f}; update positions over floor "
            f"{work['update']['positions_over_floor']:.2f}; peak {figures['peak_mib']:.0f} MiB"
        )


def main() -> None:
    """Parse the command line, measure, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument(
        "--setting", choices=("demo", "demo-cold", "wide"), action="append", help="default: all"
    )
    parser.add_argument("--repeats", type=int, help="steps that count (default: 10, wide 3)")
    options = parser.parse_args()
    results = {}
    for name in options.setting or ("demo", "demo-cold", "wide"):
        results[name] = run_setting(name, options.repeats or (3 if name == "wide" else 10))
        show(name, results[name])
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    exit_with_one_line(main)
