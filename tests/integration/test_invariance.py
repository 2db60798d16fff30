"""The same rows give the same gradient, however ranks, micro-batches and batches of rollouts cut them."""

import pytest
import torch
from runs import final_weights, finish, read_metrics, restored_signals, start, write_manifest
from safetensors.torch import load_file
from step_gradients import all_gradients, build

from asrl.losses import LEVELS, LOSS_TYPES

# Twelve rows a step: ranks, rows per device, accumulation, steps per generation.
CUTS = [(1, 6, 2, 1), (1, 3, 4, 1), (1, 12, 1, 2), (2, 6, 1, 1), (2, 2, 3, 2), (3, 4, 1, 1)]


def overrides(rows, accumulation, steps):
    return (
        f"trainer.rows_per_device={rows}",
        f"trainer.gradient_accumulation_steps={accumulation}",
        f"steps_per_generation={steps}",
    )


@pytest.fixture(scope="module")
def compute(golden, manifest, tmp_path_factory):
    """Gradients under one cut: in this process, or in several of their own."""

    def run(ranks, *cut):
        folder = tmp_path_factory.mktemp("invariance")
        words = [str(golden / "FireRedASR-LLM-tiny"), str(manifest), folder, *overrides(*cut)]
        if ranks == 1:
            with restored_signals():
                return all_gradients(build(*words))
        words = [str(word) for word in words]
        result = finish(start(words, num_processes=ranks, script="tests/integration/step_gradients.py"))
        assert result.status == 0, result.errors[-3000:]
        return load_file(folder / "gradients.safetensors")

    return run


@pytest.fixture(scope="module")
def whole(compute):
    """Gradients in one pass on one rank."""
    gradients = compute(1, 12, 1, 1)
    assert len(gradients) == len(LOSS_TYPES) * len(LEVELS)
    norms = [round(float(gradient.norm()), 6) for gradient in gradients.values()]
    assert min(norms) > 0.01
    assert len(set(norms)) > len(LOSS_TYPES)  # they do differ
    return gradients


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: "x".join(map(str, cut)))
def test_every_loss_type_has_the_same_gradient(compute, whole, cut):
    gradients = compute(*cut)
    differences = {
        name: float((gradients[name] - gradient).norm() / gradient.norm()) for name, gradient in whole.items()
    }
    assert gradients.keys() == whole.keys()
    assert all(torch.isfinite(gradient).all() for gradient in gradients.values())
    assert max(differences.values()) < 1e-6, differences


def test_evaluation_logging_and_workers_change_no_draw(train_here, rows, tmp_path):
    dev = write_manifest(tmp_path / "dev.jsonl", rows[:5])
    common = ("dropout=true", "trainer.max_steps=3", "old_logps=recompute")
    train_here(tmp_path / "bare", *common, "trainer.eval_every=0", "logger.completions_every=0")
    watched = (f"data.dev={dev}", "trainer.eval_every=1", "trainer.save_every=1", "data.num_workers=2")
    train_here(tmp_path / "watched", *common, *watched)
    steps = [row for row in read_metrics(tmp_path / "watched") if "loss" in row]
    assert steps == read_metrics(tmp_path / "bare")
    assert len(steps) == 3
    weights, others = final_weights(tmp_path / "bare"), final_weights(tmp_path / "watched")
    assert [name for name, weight in weights.items() if not torch.equal(weight, others[name])] == []
