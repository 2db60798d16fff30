"""This module is the only place that says which sentences the demo's speakers can utter.

Fourteen templates with fixed shares expand to 63 thousand distinct Mandarin commands. The share of a
template is kept in every split and the draw is uniform over its distinct sentences; a plain uniform draw over
all sentences would give mostly digit strings, and drawing the slots would give the same few sentences.
"""

import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES = _words(
    "张伟 王芳 李娜 刘洋 陈静 杨帆 赵磊 黄敏 周杰 吴倩 徐强 孙丽 马超 朱婷 胡斌 郭涛 何雪 林峰 罗佳 "
    "高翔 梁宇 宋慧 郑浩 谢文轩 韩梅梅 唐明月 冯建国 董小红 程思远 曹子豪"
)
TERMS = _words(
    "强化学习 语音识别 大模型 神经网络 注意力 编码器 解码器 声学模型 语言模型 奖励函数 策略梯度 "
    "学习率 损失函数 训练集 热词 分词器"
)
PLACES = _words("北京 上海 广州 深圳 成都 重庆 杭州 南京 武汉 西安 天津 苏州")
SONGS = _words(
    "茉莉花 康定情歌 南泥湾 彩云追月 高山流水 二泉映月 梅花三弄 渔舟唱晚 阳关三叠 十面埋伏 平湖秋月 "
    "春江花月夜"
)
HOTWORDS = {"name": NAMES, "term": TERMS, "place": PLACES, "song": SONGS}

_DIGITS = "零一二三四五六七八九"
_SLOTS: dict[str, tuple[str, ...]] = {
    **HOTWORDS,
    "please": ("", "请", "帮我"),
    "room": _words("客厅 卧室 厨房 书房 阳台 浴室"),
    "device": _words("灯 空调 电视 窗帘 风扇 音箱 加湿器 热水器 门"),
    "switch": _words("打开 关闭 关掉 检查"),
    "adjust": _words("打开 关掉 调高一点 调低一点"),
    "degrees": _words("十六 十七 十八 十九 二十 二十一 二十二 二十三 二十四 二十五 二十六 二十七 二十八"),
    "call": _words("给{0}打电话 呼叫{0} 拨打{0}的手机 联系{0} 给{0}发短信 打给{0} 给{0}留言"),
    "news": _words("我到了 我晚点到 今天不回家 会议取消了 下午见 快到家了"),
    "question": _words("什么时候到 在哪里 几点开会 几点回家 今天来吗"),
    "spot": _words("火车站 机场 医院 银行 公园 超市 大学 图书馆"),
    "go": _words("导航去 带我去 怎么去 我要去"),
    "date": _words("今天 明天 后天 周末"),
    "day": _words("今天 明天 后天 周末 今晚"),
    "weather": _words("天气怎么样 会下雨吗 多少度 冷不冷 会下雪吗 风大不大 空气好吗 有雾吗"),
    "period": _words("早上 上午 下午 晚上"),
    "hour": _words("六点 七点 八点 九点 十点 十一点"),
    "half": ("", "半", "一刻"),
    "task": _words("起床 开会 吃药 取快递 接孩子 写作业 喝水 买菜 跑步 看书"),
    "minutes": _words("两 五 十 十五 二十 三十 四十 五十"),
    "play": _words("播放{0} 来一首{0} 我想听{0} 循环{0} 收藏{0} 下载{0} 别放{0}了 下一首放{0}"),
    "study": _words("搜索{0}的论文 什么是{0} 解释一下{0} 打开{0}的代码 {0}怎么用 推荐{0}的课程 找{0}的资料"),
    "digit": tuple(_DIGITS),
    "number": _words("验证码{0} 尾号{0} 密码{0} 编号{0} 分机{0}"),
}


@dataclass(frozen=True)
class Template:
    """Patterns that share one part of the corpus.

    Attributes:
        name: Name in the manifests.
        share: Fraction of the utterances of every split.
        patterns: ``{slot}`` is filled from the slot's list; ``{frame:slot}`` puts the filler into a frame.
    """

    name: str
    share: float
    patterns: tuple[str, ...]


TEMPLATES = (
    Template("switch", 0.10, ("{please}{switch}{room}的{device}", "{please}把{room}的{device}{adjust}")),
    Template("temperature", 0.05, ("{please}把{room}空调调到{degrees}度", "{room}空调设为{degrees}度")),
    Template("call", 0.10, ("{please}{call:name}", "{day}{call:name}")),
    Template("message", 0.09, ("告诉{name}{news}", "问{name}{question}", "转告{name}{news}")),
    Template("navigation", 0.10, ("{go}{place}{spot}", "去{place}{spot}要多久")),
    Template(
        "route", 0.04, ("从{place}到{place}怎么走", "查{place}到{place}的车票", "订{place}飞{place}的机票")
    ),
    Template("weather", 0.08, ("{place}{day}{weather}",)),
    Template("alarm", 0.08, ("{date}{period}{hour}{half}提醒我{task}", "{day}{hour}{half}叫我{task}")),
    Template("timer", 0.03, ("{minutes}分钟后提醒我{task}", "{please}{minutes}分钟后叫我{task}")),
    Template(
        "music",
        0.07,
        ("{please}{play:song}", "{day}{play:song}", "放{song}给{name}听", "来一首{song}给{name}"),
    ),
    Template("speaker", 0.05, ("用{room}音箱播放{song}", "{room}的音箱别放{song}", "把{song}分享给{name}")),
    Template("term", 0.07, ("{please}{study:term}", "{day}{study:term}", "给{name}讲{term}")),
    Template("comparison", 0.06, ("比较{term}和{term}", "{name}在研究{term}", "{name}讲了{term}")),
    Template("digits", 0.08, ("{number:digit}{digit}{digit}{digit}",)),
)


def _fields(pattern: str) -> list[str]:
    """Slot expressions and literal pieces of a pattern in order; slots keep their braces."""
    return [piece for piece in pattern.replace("{", "\0{").replace("}", "}\0").split("\0") if piece]


def _fillers(piece: str) -> tuple[str, ...]:
    if not piece.startswith("{"):
        return (piece,)
    frame, _, slot = piece[1:-1].rpartition(":")
    words = _SLOTS[slot]
    return tuple(shape.format(word) for shape in _SLOTS[frame] for word in words) if frame else words


def _is_wellformed(parts: Sequence[str]) -> bool:
    """Whether no place or term is put beside itself (`from Beijing to Beijing`), and the length is right."""
    words = [part for part in parts if part in PLACES or part in TERMS]
    return len(set(words)) == len(words) and 4 <= sum(map(len, parts)) <= 13


@cache
def sentences() -> dict[str, tuple[str, ...]]:
    """Distinct sentences of each template, sorted; of two templates the first keeps a sentence."""
    seen: set[str] = set()
    result = {}
    for template in TEMPLATES:
        products = (itertools.product(*map(_fillers, _fields(p))) for p in template.patterns)
        found = {"".join(parts) for parts in itertools.chain(*products) if _is_wellformed(parts)} - seen
        seen |= found
        result[template.name] = tuple(sorted(found))
    return result


def characters() -> str:
    """Every character that a sentence can contain, sorted."""
    return "".join(sorted({char for group in sentences().values() for text in group for char in text}))


def _quotas(num_utterances: int) -> dict[str, int]:
    """Utterances of each template; the largest remainders get what rounding down leaves."""
    exact = {template.name: template.share * num_utterances for template in TEMPLATES}
    quotas = {name: int(value + 1e-9) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: quotas[name] - exact[name])
    for name in by_remainder[: num_utterances - sum(quotas.values())]:
        quotas[name] += 1
    return quotas


@dataclass(frozen=True)
class Line:
    """A sentence to be spoken, and the template that it comes from."""

    template: str
    text: str


def split_sentences(*, shipped: dict[str, int], num_sft: int, seed: int) -> dict[str, list[Line]]:
    """Sentences of every split; no sentence occurs in two of them.

    The shipped splits take distinct sentences first; ``sft`` draws from the rest of each template, every
    sentence once before any comes twice.

    Args:
        shipped: Number of sentences of each distinct split.
        num_sft: Number of utterances of ``sft``.
        seed: Seeds the order; the same seed gives the same splits.
    """
    splits: dict[str, list[Line]] = {name: [] for name in (*shipped, "sft")}
    for name, group in sentences().items():
        shuffled = random.Random(f"{seed}/{name}").sample(group, len(group))
        start = 0
        for split, num_sentences in shipped.items():
            quota = _quotas(num_sentences)[name]
            splits[split] += [Line(name, text) for text in shuffled[start : start + quota]]
            start += quota
        rest = shuffled[start:]
        assert rest, f"template {name} has too few sentences"
        quota = _quotas(num_sft)[name]
        splits["sft"] += [Line(name, text) for text in itertools.islice(itertools.cycle(rest), quota)]
    for split, lines in splits.items():
        random.Random(f"{seed}/{split}").shuffle(lines)
    return splits


def find_hotwords(text: str) -> tuple[str, ...]:
    """Listed words that occur in the sentence, in the order in which they occur."""
    words = {word for group in HOTWORDS.values() for word in group if word in text}
    return tuple(sorted(words, key=text.index))


def draw_distractors(text: str, *, seed: str, num_words: int = 2) -> tuple[str, ...]:
    """Words of the class of the sentence's first hotword that are not in the sentence.

    A sentence without hotwords gets a class at random, so that inventing one can be noticed there as well.
    """
    generator = random.Random(seed)
    hotwords = find_hotwords(text)
    classes: Iterable[str] = (name for name, words in HOTWORDS.items() if hotwords and hotwords[0] in words)
    chosen = next(iter(classes), None) or generator.choice(sorted(HOTWORDS))
    return tuple(generator.sample([word for word in HOTWORDS[chosen] if word not in text], num_words))


def is_digit_string(text: str) -> bool:
    """Whether three or more digits follow one another (clock times never have that many)."""
    return any(all(char in _DIGITS for char in text[i : i + 3]) for i in range(len(text) - 2))
