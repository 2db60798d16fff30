"""Model directories of every odd kind."""

import json
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import torch
from cases import Case

from asrl.models.released_files import read_package

TINY = Path(__file__).parents[2] / "data" / "golden" / "FireRedASR-LLM-tiny"
MODEL = "model.pth.tar"
ENCODER = "asr_encoder.pth.tar"
DECODER = "Qwen2-7B-Instruct"
WEIGHTS = f"{DECODER}/model.safetensors"


def copied(harm: Callable[[Path], object]):
    """A copy of the tiny model that some harm was done to."""

    def make(folder: Path) -> Path:
        shutil.copytree(TINY, folder / "model")
        harm(folder / "model")
        return folder / "model"

    return make


def without(name: str):
    def harm(model: Path) -> None:
        path = model / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return copied(harm)


def cut(name: str, share: float = 0.5):
    def harm(model: Path) -> None:
        raw = (model / name).read_bytes()
        (model / name).write_bytes(raw[: int(len(raw) * share)])

    return copied(harm)


def holding(name: str, content: bytes):
    return copied(lambda model: (model / name).write_bytes(content))


def as_directory(name: str):
    def harm(model: Path) -> None:
        (model / name).unlink()
        (model / name).mkdir()

    return copied(harm)


def repacked(change: Callable[[dict], object], name: str = MODEL):
    """The model's file with something changed in it."""

    def harm(model: Path) -> None:
        package = read_package(model / name)
        package = {**package}
        if "model_state_dict" in package:
            package["model_state_dict"] = {k: v.clone() for k, v in package["model_state_dict"].items()}
        change(package)
        torch.save(package, model / "new")
        (model / "new").replace(model / name)

    return copied(harm)


def configured(**changes: object):
    """The decoder's config with other values."""

    def harm(model: Path) -> None:
        path = model / DECODER / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return copied(harm)


class Trap:
    """Runs code when it is unpickled as usual."""

    def __reduce__(self):
        return exec, ("raise SystemExit('the code in a checkpoint was run')",)


def with_broken_link(model: Path) -> None:
    shutil.rmtree(model / DECODER)
    (model / DECODER).symlink_to(model / "nowhere")


def statistics(count: float, value: float = 1.0) -> bytes:
    values = [value] * 80 + [count] + [2 * value] * 80 + [0.0]
    return b"\0BDM " + struct.pack("<bibi", 4, 2, 4, 81) + struct.pack("<162d", *values)


def first_weight(package: dict) -> str:
    return next(iter(package["model_state_dict"]))


def reshape(package: dict) -> None:
    package["model_state_dict"][first_weight(package)] = torch.zeros(3)


def set_args(name: str, value: object):
    def change(package: dict) -> None:
        setattr(package["args"], name, value)

    return change


def make_file(path: Path) -> Path:
    path.write_text("not a directory")
    return path


def make_directory(path: Path) -> Path:
    path.mkdir()
    return path


def drop_lora(package: dict) -> None:
    state = package["model_state_dict"]
    package["model_state_dict"] = {name: tensor for name, tensor in state.items() if "lora" not in name}


AT = r"{folder}/model"
DAMAGED = (
    rf"{AT}/\S+: (incomplete or damaged|damaged or not a torch file|holds something else than tensors).*"
)
CHECKPOINTS = [
    Case("no model", lambda folder: folder / "model", rf"{AT}: .+"),
    Case("file in place of a model", lambda folder: make_file(folder / "model"), rf"{AT}: .+"),
    Case(
        "empty directory", lambda folder: make_directory(folder / "model"), rf"{AT}/\S+: file not found; .*"
    ),
    Case("no statistics", without("cmvn.ark"), rf"{AT}/cmvn\.ark: file not found; .*"),
    Case("statistics cut short", cut("cmvn.ark"), rf"{AT}/cmvn\.ark: .* in 1311 bytes, got 655 bytes .*"),
    Case(
        "statistics of another kind",
        holding("cmvn.ark", b"0" * 1311),
        rf"{AT}/cmvn\.ark: .*got 1311 bytes .*",
    ),
    Case(
        "statistics of no frames", holding("cmvn.ark", statistics(0)), rf"{AT}/cmvn\.ark: .* one frame, got 0"
    ),
    Case("NaN in the statistics", holding("cmvn.ark", statistics(9, float("nan"))), ".*must be finite.*"),
    Case("no weights", without(MODEL), rf"{AT}/model\.pth\.tar: file not found; .*"),
    Case("weights cut short", cut(MODEL), DAMAGED),
    Case("weights of no bytes", holding(MODEL, b""), DAMAGED),
    Case("directory in place of weights", as_directory(MODEL), rf"{AT}/model\.pth\.tar: .+"),
    Case("text in place of weights", holding(MODEL, b"<html>not found</html>\n"), DAMAGED),
    Case(
        "pointer in place of weights",
        holding(MODEL, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
        rf"{AT}/model\.pth\.tar: is a Git LFS pointer, .*",
    ),
    Case("pickle in place of weights", holding(MODEL, pickle.dumps({"args": 1})), DAMAGED),
    Case("code in the weights", repacked(lambda package: package.update(trap=Trap())), DAMAGED),
    Case("weights without args", repacked(lambda package: package.pop("args")), rf"{AT}.* under 'args'; .*"),
    Case(
        "args without weights",
        repacked(lambda package: package.pop("model_state_dict")),
        rf"{AT}/model\.pth\.tar: .* 'model_state_dict'; .*",
    ),
    Case(
        "list in place of weights", repacked(lambda package: package.update(model_state_dict=[1])), rf"{AT}.*"
    ),
    Case("weight of another shape", repacked(reshape), rf"{AT}.*; wrong shape: .* \[3\] instead of .*"),
    Case(
        "weight missing",
        repacked(lambda package: package["model_state_dict"].pop(first_weight(package))),
        rf"{AT}.*; missing: encoder\..*",
    ),
    Case(
        "weight too many",
        repacked(lambda package: package["model_state_dict"].update({"encoder.extra": torch.zeros(2)})),
        rf"{AT}.*; unexpected: encoder\.extra; .*",
    ),
    Case("encoder's args cut short", cut(ENCODER), DAMAGED),
    Case("encoder without a width", repacked(set_args("d_model", None), ENCODER), rf"{AT}.*args\.d_model .*"),
    Case("encoder of no width", repacked(set_args("d_model", 0), ENCODER), rf"{AT}.+"),
    Case("encoder of another width", repacked(set_args("d_model", 48), ENCODER), rf"{AT}.+"),
    Case("heads that do not divide the width", repacked(set_args("n_head", 7), ENCODER), rf"{AT}.+"),
    Case(
        "dropout above 1", repacked(set_args("dropout_rate", 2.0), ENCODER), rf"{AT}.*from 0 to 1, got 2\.0"
    ),
    Case("no downsampling", repacked(set_args("encoder_downsample_rate", 0)), rf"{AT}.*above 0, got 0"),
    Case("layers below zero", repacked(set_args("n_layers_enc", -1), ENCODER), rf"{AT}.+"),
    Case("no decoder", without(DECODER), rf"{AT}: no folder Qwen2\* with a config\.json inside; .*"),
    Case(
        "broken link to the decoder", copied(with_broken_link), rf"{AT}/Qwen2\S+: symlink to .* not exist; .*"
    ),
    Case("decoder without weights", without(WEIGHTS), rf"{AT}/\S+: no \*\.safetensors file; .*"),
    Case(
        "decoder's weights cut short",
        cut(WEIGHTS),
        rf"{AT}/\S+safetensors: (missing, incomplete|incomplete or damaged) .*",
    ),
    Case(
        "decoder's weights of no bytes",
        holding(WEIGHTS, b""),
        rf"{AT}/\S+safetensors: (missing, incomplete|incomplete or damaged) .*",
    ),
    Case(
        "decoder without a config", without(f"{DECODER}/config.json"), rf"{AT}: no folder Qwen2\* with a .*"
    ),
    Case(
        "decoder's config cut short",
        cut(f"{DECODER}/config.json"),
        rf"{AT}/\S+config\.json: not valid JSON.*",
    ),
    Case("list as decoder's config", holding(f"{DECODER}/config.json", b"[]"), rf"{AT}/\S+config\.json: .+"),
    Case(
        "decoder of another kind", configured(model_type="llama"), rf"{AT}.* must be 'qwen2', got 'llama'; .*"
    ),
    Case("decoder of another width", configured(hidden_size=48), rf"{AT}/\S+: keys do not fit the model; .*"),
    Case("decoder of a width in words", configured(hidden_size="wide"), rf"{AT}/\S+: .+"),
    Case("decoder of no heads", configured(num_attention_heads=0), rf"{AT}/\S+: .+"),
    Case("decoder without a tokenizer", without(f"{DECODER}/tokenizer.json"), None),
    Case("decoder's tokenizer cut short", cut(f"{DECODER}/tokenizer.json"), rf"{AT}/\S+: .+"),
    Case("LoRA missing as a whole", repacked(drop_lora), None),
]
