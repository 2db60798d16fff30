"""The shipped demo corpus is what its builder promises; the grammar gives the same splits every time."""

import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path

import pytest
import soundfile

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "demo"
SPLITS = ("train", "dev", "test")


def _load(name):
    specification = importlib.util.spec_from_file_location(
        f"demo_{name}", ROOT / "scripts" / "demo" / f"{name}.py"
    )
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def grammar():
    return _load("grammar")


@pytest.fixture(scope="module")
def rows():
    return {
        split: [
            json.loads(line) for line in (DEMO / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
        ]
        for split in SPLITS
    }


def _every(rows):
    return [row for split in SPLITS for row in rows[split]]


def _split(grammar, seed):
    shipped = {"test": 768, "dev": 256, "train": 800}
    return grammar.split_sentences(shipped=shipped, num_sft=4000, seed=seed)


def test_splits_have_their_sizes_and_unique_keys(rows):
    assert {split: len(rows[split]) for split in SPLITS} == {"train": 800, "dev": 256, "test": 768}
    assert len({row["key"] for row in _every(rows)}) == 800 + 256 + 768


def test_no_sentence_occurs_twice_in_the_shipped_splits(rows):
    assert max(Counter(row["text"] for row in _every(rows)).values()) == 1


def test_manifests_hold_the_sentences_that_the_grammar_draws_for_seed_0(rows, grammar):
    splits = _split(grammar, seed=0)
    for split in SPLITS:
        assert [row["text"] for row in rows[split]] == [line.text for line in splits[split]]


def test_digit_strings_are_rare(rows):
    # Counted from the text and not from the column, by three digits in a row.
    for split in SPLITS:
        texts = [
            "".join("d" if char in "零一二三四五六七八九" else "-" for char in r["text"]) for r in rows[split]
        ]
        assert 0.05 < sum("ddd" in text for text in texts) / len(texts) <= 0.15


def test_every_audio_file_exists_and_has_the_stated_duration(rows):
    for row in _every(rows):
        info = soundfile.info(DEMO / row["audio"])
        assert (info.samplerate, info.channels, info.format, info.subtype) == (16000, 1, "OGG", "OPUS")
        assert row["duration"] == pytest.approx(info.frames / 16000, abs=5.1e-4)  # written to the millisecond


def test_no_audio_file_is_left_over(rows):
    files = {path.relative_to(DEMO).as_posix() for path in (DEMO / "audio").rglob("*") if path.is_file()}
    assert files == {row["audio"] for row in _every(rows)}


def test_the_corpus_is_small():
    assert sum(path.stat().st_size for path in DEMO.rglob("*.opus")) <= 13e6


def test_hotwords_are_in_the_text_and_distractors_are_not(rows, grammar):
    listed = {word for words in grammar.HOTWORDS.values() for word in words}
    for row in _every(rows):
        assert set(row["hotwords"]) == {word for word in listed if word in row["text"]}
        assert len(set(row["distractors"])) == 2
        assert set(row["distractors"]) <= {word for word in listed if word not in row["text"]}


def test_every_hotword_is_tested_and_trained(rows, grammar):
    listed = {word for words in grammar.HOTWORDS.values() for word in words}
    for split in ("train", "test"):
        assert {word for row in rows[split] for word in row["hotwords"]} == listed


def test_distractors_come_from_the_class_of_the_first_hotword(grammar):
    assert set(grammar.draw_distractors("给王芳讲热词", seed="1")) <= set(grammar.NAMES) - {"王芳"}


def test_shipped_audio_is_noisy_and_spoken_by_thirty_voices(rows):
    assert all(0 <= row["snr"] <= 15 for row in _every(rows))
    assert {row["noise"] for row in rows["train"]} == {"pink", "babble"}
    assert len({row["voice"] for row in rows["train"]}) == 30


def test_supervised_sentences_are_distinct_enough_and_unseen_elsewhere(grammar):
    splits = _split(grammar, seed=0)
    shipped = {line.text for split in SPLITS for line in splits[split]}
    supervised = [line.text for line in splits["sft"]]
    assert len(supervised) == 4000
    assert len(set(supervised)) >= 2500
    assert not shipped & set(supervised)


def test_supervised_sentences_contain_every_character(grammar):
    assert "".join(sorted({char for line in _split(grammar, seed=0)["sft"] for char in line.text})) == (
        grammar.characters()
    )


def test_same_seed_gives_the_same_splits_and_another_seed_others(grammar):
    assert _split(grammar, seed=3) == _split(grammar, seed=3)
    assert _split(grammar, seed=3)["test"] != _split(grammar, seed=4)["test"]


def test_template_shares_hold_in_every_split(grammar):
    # navigation has a share of 0.1: 76.8, 25.6, 80 and 400 sentences, rounded down or up.
    splits = _split(grammar, seed=0)
    counts = {split: sum(line.template == "navigation" for line in lines) for split, lines in splits.items()}
    assert counts == {"test": 77, "dev": 26, "train": 80, "sft": 400}


def test_sentences_have_4_to_13_characters(grammar):
    lengths = {len(text) for group in grammar.sentences().values() for text in group}
    assert min(lengths) == 4
    assert max(lengths) == 13


def test_no_route_leads_from_a_place_to_itself(grammar):
    routes = grammar.sentences()["route"]
    assert "从北京到上海怎么走" in routes
    assert "从北京到北京怎么走" not in routes
    assert len(routes) == 3 * 12 * 11


def test_digit_strings_are_recognised_and_clock_times_are_not(grammar):
    assert grammar.is_digit_string("尾号二零六零")
    assert not grammar.is_digit_string("把客厅空调调到二十八度")
