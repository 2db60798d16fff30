import argparse
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from asrl.errors import UserError
from asrl.models.firered import load_firered, save_firered
from asrl.models.lora import lora_layers

TOKENS = torch.tensor([[361, 427, 431, 602]])
MASK = torch.ones(1, 4, dtype=torch.bool)
PROJECTION = "llm.base_model.model.model.layers.0.self_attn.q_proj"


def read(path):
    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(path, weights_only=True)


@pytest.fixture
def score(make_batch):
    batch = make_batch([0], [0])

    def score_first(model):
        with torch.no_grad():
            return model(batch, TOKENS, MASK, temperature=1.0).logps

    return score_first


@pytest.fixture
def bare(checkpoint, tmp_path):
    """The checkpoint without LoRA."""
    directory = shutil.copytree(checkpoint, tmp_path / "bare", copy_function=shutil.copyfile)
    package = read(directory / "model.pth.tar")
    state = package["model_state_dict"]
    package["model_state_dict"] = {name: state[name] for name in state if not name.startswith("llm.")}
    torch.save(package, directory / "model.pth.tar")
    return directory


def train_a_little(model):
    """Change every trainable weight."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.02)
    return model


def test_untrained_model_is_exported_bit_for_bit(checkpoint, model, tmp_path):
    save_firered(model, tmp_path / "export", merge_lora=False)
    for name in ("asr_encoder.pth.tar", "model.pth.tar"):
        expected, found = read(checkpoint / name), read(tmp_path / "export" / name)
        assert vars(found["args"]) == vars(expected["args"])
        assert list(found) == list(expected)
    expected, found = (
        read(path / "model.pth.tar")["model_state_dict"] for path in (checkpoint, tmp_path / "export")
    )
    assert list(found) == list(expected)  # also in the released order
    assert all(
        found[name].dtype == torch.float32 and torch.equal(found[name], expected[name]) for name in expected
    )
    names = {path.name for path in checkpoint.rglob("*")}
    assert {path.name for path in (tmp_path / "export").rglob("*")} == names
    for name in (
        "cmvn.ark",
        "config.yaml",
        "Qwen2-7B-Instruct/model.safetensors",
        "Qwen2-7B-Instruct/config.json",
    ):
        assert (tmp_path / "export" / name).read_bytes() == (checkpoint / name).read_bytes()


def test_trained_lora_survives_an_unmerged_export(model, score, tmp_path):
    expected = score(train_a_little(model))
    save_firered(model, tmp_path / "export", merge_lora=False)
    assert torch.equal(score(load_firered(tmp_path / "export", lora_start="continue")), expected)


def test_smaller_rank_is_exported_at_the_released_rank_and_scale(bare, score, tmp_path):
    model = train_a_little(load_firered(bare, lora_start="merge", lora_rank=2, lora_alpha=3))
    expected = score(model)
    save_firered(model, tmp_path / "export", merge_lora=False)
    state = read(tmp_path / "export" / "model.pth.tar")["model_state_dict"]
    layer = lora_layers(model.llm)["model.layers.0.self_attn.q_proj"]
    lora_a, lora_b = (
        state[f"{PROJECTION}.lora_A.default.weight"],
        state[f"{PROJECTION}.lora_B.default.weight"],
    )
    assert torch.equal(lora_a[:2], layer.lora_A["default"].weight)
    # Scale 3 / 2 against the released 16 / 64: B grows by 6.
    torch.testing.assert_close(lora_b[:, :2], 6 * layer.lora_B["default"].weight, rtol=1e-6, atol=0)
    assert (lora_a.shape, lora_b.shape) == ((64, 64), (64, 64))
    assert not lora_a[2:].any()
    assert not lora_b[:, 2:].any()
    # The products have more terms, all zero, in another order; the log-probs are near -12.
    torch.testing.assert_close(
        score(load_firered(tmp_path / "export", lora_start="continue")), expected, rtol=0, atol=2e-5
    )


@pytest.mark.parametrize("start", ["continue", "merge"])
def test_merged_export_scores_as_the_model_and_leaves_it_alone(checkpoint, score, tmp_path, start):
    model = train_a_little(load_firered(checkpoint, lora_start=start, lora_rank=70))
    expected = score(model)
    save_firered(model, tmp_path / "export", merge_lora=True)
    assert torch.equal(score(model), expected)
    package = read(tmp_path / "export" / "model.pth.tar")
    assert package["args"].use_lora == 0
    assert not any(name.startswith("llm.") for name in package["model_state_dict"])
    # Folding adds W x and B A x in another order.
    torch.testing.assert_close(
        score(load_firered(tmp_path / "export", lora_start="none")), expected, rtol=0, atol=2e-5
    )


def test_merged_weights_have_the_type_asked_for(model, tmp_path):
    save_firered(model, tmp_path / "export", merge_lora=True, decoder_dtype=torch.bfloat16)
    folder = tmp_path / "export" / "Qwen2-7B-Instruct"
    assert {weight.dtype for weight in load_file(folder / "model.safetensors").values()} == {torch.bfloat16}
    assert json.loads((folder / "config.json").read_text())["torch_dtype"] == "bfloat16"
    save_firered(model, tmp_path / "exact", merge_lora=True)
    assert (
        json.loads((tmp_path / "exact/Qwen2-7B-Instruct/config.json").read_text())["torch_dtype"] == "float32"
    )


def test_trained_decoder_is_exported(checkpoint, score, tmp_path):
    model = train_a_little(load_firered(checkpoint, lora_start="none", train_decoder=True))
    expected = score(model)
    save_firered(model, tmp_path / "export", merge_lora=True)
    assert torch.equal(score(load_firered(tmp_path / "export", lora_start="none")), expected)


def test_tied_decoder_is_exported_and_loaded(bare, score, tmp_path):
    folder = bare / "Qwen2-7B-Instruct"
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    state = load_file(folder / "model.safetensors")
    del state["lm_head.weight"]
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    model = train_a_little(load_firered(bare, lora_start="none", train_decoder=True))
    assert model.causal_lm.lm_head.weight is model.causal_lm.model.embed_tokens.weight
    expected = score(model)
    save_firered(model, tmp_path / "export", merge_lora=True)
    assert "lm_head.weight" not in load_file(tmp_path / "export" / "Qwen2-7B-Instruct" / "model.safetensors")
    assert torch.equal(score(load_firered(tmp_path / "export", lora_start="none")), expected)


def test_positional_table_may_be_left_out(model, score, tmp_path):
    save_firered(model, tmp_path / "export", merge_lora=False, with_positional_table=False)
    state = read(tmp_path / "export" / "model.pth.tar")["model_state_dict"]
    assert "encoder.positional_encoding.pe" not in state
    reloaded = load_firered(tmp_path / "export", lora_start="continue")
    torch.testing.assert_close(score(reloaded), score(model), rtol=0, atol=1e-5)


def test_decoder_folder_may_be_linked(checkpoint, model, score, tmp_path):
    save_firered(model, tmp_path / "export", merge_lora=False, link_decoder=True)
    link = tmp_path / "export" / "Qwen2-7B-Instruct"
    assert link.is_symlink()
    assert link.resolve() == (checkpoint / "Qwen2-7B-Instruct").resolve()
    assert torch.equal(score(load_firered(tmp_path / "export", lora_start="continue")), score(model))


@pytest.mark.parametrize("start", ["merge", "none"])
def test_unmerged_export_of_a_folded_decoder_is_refused(checkpoint, tmp_path, start):
    with pytest.raises(UserError, match="export merged"):
        save_firered(load_firered(checkpoint, lora_start=start), tmp_path / "export", merge_lora=False)
    assert list(tmp_path.iterdir()) == []


def test_unmerged_export_of_a_trained_decoder_is_refused(bare, tmp_path):
    model = load_firered(bare, lora_start="none", train_decoder=True)
    with pytest.raises(UserError, match="export merged"):
        save_firered(model, tmp_path / "export", merge_lora=False)


def test_rank_beyond_the_released_one_is_refused_unmerged(bare, tmp_path):
    model = load_firered(bare, lora_start="merge", lora_rank=65)
    with pytest.raises(UserError, match="rank 64 at most, got 65; export merged"):
        save_firered(model, tmp_path / "export", merge_lora=False)


def test_directory_in_use_is_refused(model, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="already exists"):
        save_firered(model, tmp_path, merge_lora=False)


def test_failed_export_leaves_nothing_behind(model, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr("asrl.models.firered.copy_decoder", fail)
    with pytest.raises(OSError, match="disk full"):
        save_firered(model, tmp_path / "export", merge_lora=False)
    assert list(tmp_path.iterdir()) == []


def test_source_that_is_gone_is_named(checkpoint, tmp_path):
    source = shutil.copytree(checkpoint, tmp_path / "source")
    model = load_firered(source, lora_start="continue")
    shutil.rmtree(source)
    with pytest.raises(UserError, match="source: a checkpoint is a directory"):
        save_firered(model, tmp_path / "export", merge_lora=False)
