"""This module is the only place that decides which clips are used, for what, and what their hotwords are."""

import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from asrl.errors import UserError
from asrl.text import normalize_text, tokenize

# Digits, placeholders and a passage in Russian are not written as they are spoken.
_CZECH = re.compile(r"[a-záčďéěíňóřšťúůýž' ]+")
_NAME = re.compile(r"[^\W\d_],? ([A-ZÁČĎÉĚÍŇÓŘŠŤÚŮÝŽ]\w{2,})")
MIN_RARE_LETTERS = 6
MAX_HOTWORDS = 2
# Fewer letters a second are a shout, a song or a noise with a caption, more are a wrong caption.
PLAUSIBLE_SPEED = (3.0, 22.0)
MAX_SECONDS = 30.0  # what the model takes


def spoken_text(subtitle: str) -> str:
    """The subtitle in lower case without punctuation, or nothing if it is not written as it is spoken."""
    text = normalize_text(subtitle)
    return text if _CZECH.fullmatch(text) else ""


def is_usable(text: str, seconds: float) -> bool:
    """Whether a recording can be a transcript's: written as spoken, at a plausible speed, not too long."""
    low, high = PLAUSIBLE_SPEED
    return bool(text) and seconds < MAX_SECONDS and low <= len(text) / seconds <= high


def split_scenes(seconds: Mapping[str, float], shares: Mapping[str, float]) -> dict[str, str]:
    """Choose the split of every scene, so that no scene is in two of them.

    Scenes are dealt out from the longest to the shortest, each to the split that lacks most of its share.

    Args:
        seconds: Speech of each scene.
        shares: Wanted part of all speech for each split; they add up to 1.

    Raises:
        UserError: There are fewer scenes than splits.
    """
    if len(seconds) < len(shares):
        raise UserError(
            f"each of the {len(shares)} splits needs a scene, got {len(seconds)}; extract the packages again"
        )
    total = sum(seconds.values())
    filled = dict.fromkeys(shares, 0.0)
    split_of_scene = {}
    for scene in sorted(seconds, key=lambda name: (-seconds[name], name)):
        split = min(filled, key=lambda name: filled[name] / (shares[name] * total))
        split_of_scene[scene] = split
        filled[split] += seconds[scene]
    return split_of_scene


def count_words(texts: Iterable[str]) -> Counter[str]:
    """How often each word occurs in normalised texts."""
    return Counter(word for text in texts for word in tokenize(text))


def find_hotwords(subtitle: str, counts: Mapping[str, int]) -> list[str]:
    """Names and the rarest word of a subtitle, at most two in all, in normal form and as inflected there.

    A name is a capitalised word that does not begin a sentence; a rare word has at least six letters.
    """
    names = [normalize_text(name) for name in _NAME.findall(subtitle)]
    words = {word for word in tokenize(normalize_text(subtitle)) if len(word) >= MIN_RARE_LETTERS}
    rarest = sorted(words, key=lambda word: (counts[word], -len(word), word))[:1]
    return list(dict.fromkeys([*names, *rarest]))[:MAX_HOTWORDS]


def draw_distractors(text: str, hotwords: Iterable[str], *, num_words: int, seed: str) -> list[str]:
    """Hotwords of other utterances that do not occur in a normalised text."""
    words = set(tokenize(text))
    absent = sorted(set(hotwords) - words)
    return random.Random(seed).sample(absent, min(num_words, len(absent)))
