"""This module is the only place that knows how the game stores its dialogues: sounds, and texts in Lua."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from asrl.errors import UserError

# Group 1 is the function, group 2 the first argument between its quotes.
_CALL = re.compile(r'^\s*(dialogId|dialogStr)\s*\(\s*"((?:[^"\\]|\\.)*)"', re.MULTILINE | re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True)
class Clip:
    """A recorded line of dialogue.

    Attributes:
        scene: Room of the game in which it is spoken; the shared jokes count as one scene.
        name: Of the line within the scene.
        audio: Its recording.
        subtitle: Its text as the game shows it.
    """

    scene: str
    name: str
    audio: Path
    subtitle: str


def parse_dialogs(lua: str) -> dict[str, str]:
    """Texts by line name: each ``dialogStr`` belongs to the ``dialogId`` before it.

    Calls that are commented out do not count, and a name without a text has no entry.
    """
    texts = {}
    name = None
    for call in _CALL.finditer(lua):
        value = _ESCAPE.sub(r"\1", call[2])
        if call[1] == "dialogId":
            name = value
        elif name is not None:
            texts[name] = value
            name = None
    return texts


def read_dialogs(scripts: Path, language: str) -> dict[tuple[str, str], str]:
    """Texts by (scene, line name) of every ``*dialogs_LANGUAGE.lua`` below ``scripts``."""
    texts = {}
    for path in sorted(scripts.glob(f"**/*dialogs_{language}.lua")):
        scene = path.relative_to(scripts).parts[0]
        for name, text in parse_dialogs(path.read_text(encoding="utf-8")).items():
            texts[scene, name] = text
    return texts


def find_clips(game: Path, language: str) -> Iterator[Clip]:
    """Recordings that have a text, in the order of their paths.

    Raises:
        UserError: The folder holds no recordings in this language.
    """
    texts = read_dialogs(game / "script", language)
    recordings = sorted((game / "sound").glob(f"**/{language}/*.ogg"))
    if not recordings:
        raise UserError(f"{game}: no recordings in sound/**/{language}/*.ogg; extract the packages again")
    for audio in recordings:
        scene = audio.relative_to(game / "sound").parts[0]
        if (scene, audio.stem) in texts:
            yield Clip(scene, audio.stem, audio, texts[scene, audio.stem])
