import argparse
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from asrl.errors import UserError
from asrl.models.firered import load_firered
from asrl.models.lora import lora_layers

TOKENS = torch.tensor([[361, 427, 431, 602]])
MASK = torch.ones(1, 4, dtype=torch.bool)


@pytest.fixture
def copy(checkpoint, tmp_path):
    """A checkpoint to damage."""
    return shutil.copytree(checkpoint, tmp_path / "checkpoint", copy_function=shutil.copyfile)


def refuse(directory, **options):
    """The one-line error that loading this directory gives."""
    with pytest.raises(UserError) as error:
        load_firered(directory, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def change_state(directory, change):
    with torch.serialization.safe_globals([argparse.Namespace]):
        package = torch.load(directory / "model.pth.tar", weights_only=True)
    change(package["model_state_dict"])
    torch.save(package, directory / "model.pth.tar")


def score(model, batch):
    with torch.no_grad():
        return model(batch, TOKENS, MASK, temperature=1.0).logps


def without_lora(state):
    for name in [name for name in state if name.startswith("llm.")]:
        del state[name]


def test_the_three_starts_are_the_same_policy(checkpoint, make_batch):
    batch = make_batch([0], [0])
    expected = score(load_firered(checkpoint, lora_start="continue"), batch)
    for start in ("merge", "none"):
        # Folding adds W x and B A x in another order; the log-probs are near -12.
        torch.testing.assert_close(
            score(load_firered(checkpoint, lora_start=start), batch), expected, rtol=0, atol=2e-5
        )


def test_merge_starts_a_fresh_adapter_of_the_rank_asked_for(checkpoint):
    model = load_firered(checkpoint, lora_start="merge", lora_rank=3, lora_alpha=12, lora_dropout=0.25)
    layers = lora_layers(model.llm).values()
    assert len(layers) == 14  # 2 layers of 7 projections
    for layer in layers:
        assert len(layer.lora_A["default"].weight) == 3
        assert not layer.lora_B["default"].weight.any()
        assert layer.scaling["default"] == 4.0
        assert layer.lora_dropout["default"].p == 0.25


def test_frozen_decoder_has_the_type_asked_for_and_what_is_trained_is_float32(checkpoint, make_batch):
    model = load_firered(checkpoint, lora_start="continue", decoder_dtype=torch.bfloat16)
    for name, parameter in model.named_parameters():
        is_trained = not name.startswith("llm.") or ".lora_" in name
        assert parameter.requires_grad == is_trained
        assert parameter.dtype == (torch.float32 if is_trained else torch.bfloat16)
    assert score(model, make_batch([0], [0])).isfinite().all()


def test_training_the_decoder_loads_it_in_float32(checkpoint):
    model = load_firered(checkpoint, lora_start="none", decoder_dtype=torch.bfloat16, train_decoder=True)
    assert all(
        parameter.requires_grad and parameter.dtype == torch.float32 for parameter in model.parameters()
    )


def test_unknown_args_are_kept(checkpoint):
    args = load_firered(checkpoint).checkpoint_args
    assert args.encoder.pe_maxlen == 5000
    assert args.model.output_length_max == 150


def test_missing_positional_table_is_computed(copy, checkpoint, make_batch):
    change_state(copy, lambda state: state.pop("encoder.positional_encoding.pe"))
    batch = make_batch([0], [0])
    torch.testing.assert_close(
        score(load_firered(copy), batch), score(load_firered(checkpoint), batch), rtol=0, atol=1e-5
    )


def test_checkpoint_without_lora_loads_without_one(copy, make_batch):
    change_state(copy, without_lora)
    merged = load_firered(copy, lora_start="merge")
    assert merged.checkpoint_args.is_decoder_unchanged
    assert torch.equal(
        score(merged, make_batch([0], [0])),
        score(load_firered(copy, lora_start="none"), make_batch([0], [0])),
    )
    assert "model.pth.tar: no LoRA to train on" in refuse(copy, lora_start="continue")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda state: state.pop("encoder_projector.linear1.bias"),
            "missing: encoder_projector.linear1.bias",
        ),
        (lambda state: state.update(extra=torch.zeros(1)), "unexpected: extra"),
        (
            lambda state: state.update({"encoder_projector.linear1.bias": torch.zeros(3)}),
            "wrong shape: encoder_projector.linear1.bias [3] instead of [64]",
        ),
        (
            lambda state: [state.pop(name) for name in list(state) if ".ffn1." in name],
            "missing: encoder.layer_stack.0.ffn1.net.0.weight, encoder.layer_stack.0.ffn1.net.0.bias, "
            "encoder.layer_stack.0.ffn1.net.1.weight and 9 more",
        ),
        (
            lambda state: state.pop("llm.base_model.model.model.layers.0.mlp.up_proj.lora_B.default.weight"),
            "missing: llm.base_model.model.model.layers.0.mlp.up_proj.lora_B.default.weight",
        ),
    ],
)
def test_keys_and_shapes_that_do_not_fit_are_named(copy, change, message):
    change_state(copy, change)
    assert message in refuse(copy)


def test_missing_directory_is_named(tmp_path):
    assert f"{tmp_path / 'none'}: a checkpoint is a directory" in refuse(tmp_path / "none")


@pytest.mark.parametrize("name", ["asr_encoder.pth.tar", "model.pth.tar", "cmvn.ark"])
def test_missing_file_is_named(copy, name):
    (copy / name).unlink()
    assert f"{copy / name}: file not found" in refuse(copy)


def test_missing_decoder_folder_is_named(copy):
    shutil.rmtree(copy / "Qwen2-7B-Instruct")
    assert f"{copy}: no folder Qwen2* with a config.json inside" in refuse(copy)


def test_broken_symlink_of_the_decoder_folder_is_named(copy):
    shutil.rmtree(copy / "Qwen2-7B-Instruct")
    (copy / "Qwen2-7B-Instruct").symlink_to(copy / "elsewhere")
    assert f"Qwen2-7B-Instruct: symlink to {copy / 'elsewhere'}, which does not exist" in refuse(copy)


def test_decoder_folder_may_have_another_name_and_be_a_link(copy, checkpoint, make_batch):
    (copy / "Qwen2-7B-Instruct").rename(copy.parent / "decoder")
    (copy / "Qwen2-tiny").symlink_to(copy.parent / "decoder")
    batch = make_batch([0], [0])
    assert torch.equal(score(load_firered(copy), batch), score(load_firered(checkpoint), batch))


@pytest.mark.parametrize("name", ["asr_encoder.pth.tar", "model.pth.tar"])
@pytest.mark.parametrize("num_bytes", [0, 100, 1000])
def test_truncated_package_is_named(copy, name, num_bytes):
    (copy / name).write_bytes((copy / name).read_bytes()[:num_bytes])
    assert f"{copy / name}: " in refuse(copy)


@pytest.mark.parametrize("name", ["asr_encoder.pth.tar", "model.pth.tar"])
def test_package_that_runs_code_is_refused(copy, name):
    class Attack:
        def __reduce__(self):
            return print, ("attack",)

    torch.save({"args": Attack()}, copy / name)
    assert f"{copy / name}: holds something else than tensors" in refuse(copy)


@pytest.mark.parametrize("content", [[1, 2], {"state": 1}, {"args": {"d_model": 32}}])
def test_package_of_another_kind_is_refused(copy, content):
    torch.save(content, copy / "asr_encoder.pth.tar")
    assert "asr_encoder.pth.tar: must be a dict with an argparse.Namespace under 'args'" in refuse(copy)


def test_package_without_weights_is_refused(copy):
    shutil.copyfile(copy / "asr_encoder.pth.tar", copy / "model.pth.tar")
    assert "model.pth.tar: args.encoder_downsample_rate must be a number, got None" in refuse(copy)
    torch.save({"args": argparse.Namespace(encoder_downsample_rate=2)}, copy / "model.pth.tar")
    assert "model.pth.tar: must hold tensors by name under 'model_state_dict'" in refuse(copy)


def test_truncated_decoder_weights_are_named(copy):
    weights = copy / "Qwen2-7B-Instruct" / "model.safetensors"
    content = weights.read_bytes()
    for size in (0, 5, 2000, len(content) - 100):
        weights.write_bytes(content[:size])
        assert f"{weights}: incomplete or damaged ({size} bytes); copy it again" in refuse(copy)


@pytest.mark.parametrize("name", ["model.pth.tar", "Qwen2-7B-Instruct/model.safetensors"])
def test_pointer_that_a_clone_without_lfs_leaves_is_named(copy, name):
    (copy / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4\n")
    assert f"{copy / name}: is a Git LFS pointer" in refuse(copy)


@pytest.mark.parametrize("name", ["model.pth.tar", "Qwen2-7B-Instruct/model.safetensors"])
def test_broken_link_to_a_file_is_named(copy, name):
    (copy / name).unlink()
    (copy / name).symlink_to("blobs/1234")
    assert f"{copy / name}: link to blobs/1234, which does not exist" in refuse(copy)


def test_missing_decoder_weights_are_named(copy):
    (copy / "Qwen2-7B-Instruct" / "model.safetensors").unlink()
    assert "Qwen2-7B-Instruct: no *.safetensors file" in refuse(copy)


def test_missing_shard_is_named(copy):
    folder = copy / "Qwen2-7B-Instruct"
    index = {"metadata": {}, "weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert f"{folder / 'model-00001-of-00002.safetensors'}: file not found" in refuse(copy)


def test_decoder_weights_that_do_not_fit_their_config_are_named(copy):
    weights = copy / "Qwen2-7B-Instruct" / "model.safetensors"
    state = load_file(weights)
    del state["model.norm.weight"]
    save_file(state, weights, metadata={"format": "pt"})
    assert "Qwen2-7B-Instruct: keys do not fit the model; missing: model.norm.weight" in refuse(copy)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "not valid JSON"), ('{"model_type": "llama"}', "model_type must be 'qwen2', got 'llama'")],
)
def test_wrong_decoder_config_is_refused(copy, text, message):
    (copy / "Qwen2-7B-Instruct" / "config.json").write_text(text)
    assert message in refuse(copy)


def test_missing_tokenizer_is_named(copy):
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt"):
        (copy / "Qwen2-7B-Instruct" / name).unlink()
    assert "Qwen2-7B-Instruct: no usable tokenizer" in refuse(copy)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lora_start": "fresh"}, "lora.start is continue, merge or none, got 'fresh'"),
        ({"lora_start": "merge", "lora_rank": 0}, "lora.rank must be at least 1, got 0"),
        ({"lora_start": "merge", "train_decoder": True}, "needs lora.start none, got 'merge'"),
        ({"length_rule": "floor"}, "length_rule is 'stride' or 'arith', got 'floor'"),
    ],
)
def test_wrong_options_are_refused(checkpoint, options, message):
    assert message in refuse(checkpoint, **options)
