"""This module is the only place that knows other people's rules of counting errors; it needs no torch.

Ours are in ``text``. Upstream's two are those of ``utils/wer.py``, so that figures can be compared with
published ones: ``upstream-v1`` of FireRedASR, ``upstream-v2`` of FireRedASR2S. Source: FireRedTeam/FireRedASR
at commit 834635e and FireRedTeam/FireRedASR2S at commit 72096c2.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from asrl.alignment import Step, align, align_diagonal_first
from asrl.errors import UserError
from asrl.text import text_units

_PUNCTUATION = (
    ',.?!":()[]{}/;`|=+'
    "，。？！＂＃＄％＆＇（）＊＋－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､　"
    "、〃〈〉《》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏﹑﹔·｡"
)
_PUNCTUATION_RUN = re.compile(f"[{re.escape(_PUNCTUATION)}]+")
_TAG = re.compile(r"<\|.*?\|>")
_ANGLE_SPAN = re.compile("<.*>")
_HAN = "\u4e00-\u9fff"
_KANA = "\u3040-\u30ff\u31f0-\u31ff"
_UNITS_V1 = re.compile(rf"[{_HAN}]|[^\s{_HAN}]+")
_UNITS_V2 = re.compile(rf"[{_HAN}{_KANA}]|[^\s{_HAN}{_KANA}]+")
_SPELLED_WORD = re.compile(r"(?<!\S)[A-Za-z](?:\s+[A-Za-z])+(?!\S)")
_LONGEST_SPELLED_WORD = 5


@dataclass(frozen=True)
class Rules:
    """How errors are counted.

    Attributes:
        units: What a text is cut into.
        align: Lines up the units of reference and hypothesis.
    """

    units: Callable[[str], Sequence[str]]
    align: Callable[[Sequence[str], Sequence[str]], list[Step]]

    def steps(self, reference: str, hypothesis: str) -> list[Step]:
        """Line up two texts."""
        return self.align(self.units(reference), self.units(hypothesis))


def units_v1(text: str) -> list[str]:
    """Units of FireRedASR: Han characters and other words, in capitals, without tags and punctuation."""
    return _UNITS_V1.findall(_plain(text).upper())


def units_v2(text: str) -> list[str]:
    """Units of FireRedASR2S: also without ``<...>``, kana one by one, spelled words (``u s b``) whole."""
    return _UNITS_V2.findall(_join_spelled(_ANGLE_SPAN.sub("", _plain(text))).upper())


def _plain(text: str) -> str:
    """Without tags, unknown words and punctuation."""
    text = " ".join(" ".join(_TAG.split(text)).split())
    return _PUNCTUATION_RUN.sub(" ", text.replace("<unk>", "")).strip()


def _join_spelled(text: str) -> str:
    """Join letters that stand alone, unless some of the text is spelled at length."""
    words = [match.split() for match in _SPELLED_WORD.findall(text)]
    if any(len(letters) > _LONGEST_SPELLED_WORD for letters in words):
        return text
    return _SPELLED_WORD.sub(lambda match: "".join(match[0].split()), text)


RULES = {
    "asrl": Rules(text_units, align),
    "upstream-v1": Rules(units_v1, align_diagonal_first),
    "upstream-v2": Rules(units_v2, align_diagonal_first),
}


def numbers_to_chinese(text: str) -> str:
    """Write Arabic numerals as Chinese ones, as upstream does with ``do_tn``.

    Raises:
        UserError: cn2an is not installed.
    """
    try:
        import cn2an  # type: ignore[import-untyped]  # noqa: PLC0415 (optional)
    except ImportError as error:
        raise UserError("--numbers-to-chinese needs the package cn2an: pip install cn2an") from error
    return str(cn2an.transform(text, "an2cn"))
