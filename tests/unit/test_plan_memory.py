"""The memory planner: its figures, where its sizes come from, its advice."""

import importlib
from pathlib import Path

import pytest

from asrl.errors import UserError
from asrl.models.sizes import ModelSizes

SCRIPTS = Path(__file__).parents[2] / "scripts"
RELEASED = ["--released", "experiment=firered_llm_8gpu"]


@pytest.fixture
def plan(monkeypatch, capsys):
    """Runs the planner with these words and returns its rows by kind, in GiB, and the lines of its advice."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    planner = importlib.import_module("plan_memory")

    def run(*words):
        monkeypatch.setattr("sys.argv", ["plan_memory.py", *words])
        planner.main()
        lines = capsys.readouterr().out.splitlines()
        cells = [line.strip("│┃ ").split("│") for line in lines if line.startswith("│")]
        advice = [line for line in lines if "GiB" in line and not line.startswith(("┃", " " * 9))]
        return {kind.strip(): float(size) for kind, size in cells}, advice

    run.planner = planner
    return run


def test_the_released_model_on_one_gpu_of_eight(plan):
    rows, _ = plan(*RELEASED)
    # 7,615,616,512 frozen weights in two bytes and a table of 12,798,720 in four; 894,051,936 trained ones.
    assert rows["frozen weights"] == pytest.approx((2 * 7_615_616_512 + 4 * 12_798_720) / 2**30, abs=0.005)
    for kind in ("trained weights", "gradients", "buffers"):
        assert rows[kind] == pytest.approx(4 * 894_051_936 / 2**30, abs=0.005)
    assert rows["optimizer states"] == pytest.approx(8 * 894_051_936 / 2**30, abs=0.005)


def test_the_total_has_the_larger_of_update_and_rollout(plan):
    rows, _ = plan(*RELEASED)
    phases = {kind: size for kind, size in rows.items() if kind.startswith(("update", "rollout"))}
    static = sum(size for kind, size in rows.items() if kind not in phases and not kind.startswith("total"))
    update, rollout = (
        sum(size for kind, size in phases.items() if kind.startswith(phase))
        for phase in ("update", "rollout")
    )
    total = rows["total, with the larger of update and rollout"]
    assert total == pytest.approx(static + max(update, rollout), abs=0.05)


def test_sharding_over_twice_the_ranks_halves_what_is_cut(plan):
    eight, sixteen = (plan(*RELEASED, "--backend", "zero2", "--ranks", ranks)[0] for ranks in ("8", "16"))
    assert sixteen["optimizer states"] == pytest.approx(eight["optimizer states"] / 2, abs=0.006)
    assert sixteen["trained weights"] == eight["trained weights"]


def test_the_cache_grows_with_speech_and_text(plan):
    # 8 rows of 187 embeddings of speech, 14 tokens around them and 60 of text; 28 layers, keys and values of
    # 512 numbers in two bytes.
    bytes_per_position = 8 * 28 * 2 * 512 * 2
    for words, positions in (
        ((), 187 + 14 + 60),
        (("--seconds", "20"), 250 + 14 + 60),
        (("--tokens", "200"), 187 + 14 + 200),
    ):
        cache = plan(*RELEASED, *words)[0]["rollout: key/value cache"]
        assert cache == pytest.approx(positions * bytes_per_position / 2**30, abs=0.006)


def test_transcripts_that_share_less_need_more(plan):
    kind = "update: activations of the decoder"
    few, many = (plan(*RELEASED, "--unique-share", share)[0][kind] for share in ("0.2", "1"))
    assert many > 1.5 * few


def test_sizes_are_read_from_the_checkpoint(plan, golden):
    config = plan.planner.compose_config("train", [f"model.path={golden / 'FireRedASR-LLM-tiny'}"])
    assert plan.planner.find_sizes(config, is_released=False) == ModelSizes(
        num_bins=80,
        encoder_width=32,
        encoder_heads=4,
        encoder_layers=2,
        kernel_size=33,
        downsample=2,
        hidden_size=64,
        num_heads=4,
        num_key_value_heads=2,
        intermediate_size=128,
        num_layers=2,
        vocab_size=640,
    )


def test_without_a_checkpoint_it_points_to_the_released_sizes(plan):
    with pytest.raises(UserError, match="--released"):
        plan("experiment=firered_llm_8gpu", "model.path=nowhere")


def test_a_kept_reference_counts_under_ddp(plan):
    rows, _ = plan(*RELEASED, "beta=0.1", "reference=frozen")
    assert rows["reference policy"] == rows["trained weights"]


def test_what_fits_is_told_the_rest(plan):
    rows, advice = plan(*RELEASED, "--gpu-memory", "80")
    spare = 80 - rows["total, with the larger of update and rollout"]
    assert advice == [f"fits into 80 GiB, with {spare:.1f} GiB to spare"]


def test_what_does_not_fit_is_told_the_changes_that_help_most_first(plan):
    settings = ["model.decoder_dtype=float32", "model.gradient_checkpointing=false"]
    _, (verdict, *changes) = plan(*RELEASED, *settings, "--gpu-memory", "24")
    assert verdict.startswith("does not fit into 24 GiB")
    sizes = [float(line.split()[0]) for line in changes]
    assert sizes == sorted(sizes)
    names = [line.split("GiB")[1].strip() for line in changes]
    # 28 GiB of float32 weights: cutting them over 8 ranks helps most, half their bytes next.
    assert names[:3] == ["--backend fsdp2", "--backend zero3", "model.decoder_dtype=bfloat16"]
    assert "model.gradient_checkpointing=true" in names
    # What a change says is what a plan with it says.
    rows, _ = plan(*RELEASED, *settings, "model.decoder_dtype=bfloat16")
    assert rows["total, with the larger of update and rollout"] == pytest.approx(sizes[2], abs=0.006)
