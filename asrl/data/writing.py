"""This module is the only place that writes manifests for people."""

import json
import os
import shutil
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from asrl.data.cache import cache_folder
from asrl.data.shapes import to_columns
from asrl.errors import UserError
from asrl.utterance import Utterance


def write_manifest(path: Path, utterances: Iterable[Utterance]) -> int:
    """Write a JSONL manifest of our own layout, whole or not at all; return how many lines it has.

    Paths of audio files become relative to the manifest's folder if they lie in it, and absolute otherwise.
    Audio that lies in the cache, because it comes out of a data set, is copied to a folder beside it.

    Raises:
        UserError: The file cannot be written.
    """
    path = Path(os.path.abspath(path))
    unfinished = path.with_name(f".{path.name}.writing")
    num_lines = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("w", encoding="utf-8") as file, ExitStack() as stack:
            stack.callback(unfinished.unlink, missing_ok=True)
            for utterance in utterances:
                columns = to_columns(utterance) | {"audio": _place_audio(utterance.audio, path)}
                file.write(json.dumps(columns, ensure_ascii=False) + "\n")
                num_lines += 1
            file.flush()
            os.replace(unfinished, path)
    except OSError as error:
        raise UserError(f"{path}: cannot write ({error.strerror})") from error
    return num_lines


def _place_audio(audio: str, manifest: Path) -> str:
    file = Path(os.path.abspath(audio))
    if file.is_relative_to(os.path.abspath(cache_folder())):
        folder = manifest.with_name(f"{manifest.stem}-audio")
        folder.mkdir(exist_ok=True)
        shutil.copyfile(file, folder / file.name)
        file = folder / file.name
    return str(file.relative_to(manifest.parent) if file.is_relative_to(manifest.parent) else file)
