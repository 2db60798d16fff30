"""The Czech recipe on dialogues written for the tests; nothing is downloaded."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asrl.data.manifest import read_manifest
from asrl.errors import UserError
from asrl.models.prompt import PREFIX, SUFFIX, clean_text, load_tokenizer
from asrl.text import ErrorCounts

SCRIPTS = Path(__file__).parents[2] / "scripts"

LUA = r"""
-- dialogId("old", "font", "Old.")
dialogId("hl-m-kde", "font_small", "Where is (the) captain?")
dialogStr("Kde je kapitán Vrána?")

dialogId("hl-v-nic", "font_big", "No text.")

dialogId("hl-v-tam",
    "font_big", "There.")
dialogStr( "Říkal: \"Tam!\"" )
dialogStr("Tohle už k ničemu nepatří.")
"""


@pytest.fixture(scope="module")
def recipe():
    """Import a script of the recipe by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS / "demo"))
        patch.syspath_prepend(str(SCRIPTS / "recipes" / "fillets_cs"))
        yield importlib.import_module


@pytest.fixture
def game(tmp_path):
    """Two scenes, one of them shared, with a clip that has no text and one that is not written as spoken."""
    lines = {
        "script/harbour/dialogs_cs.lua": {"p-m-lod": "Ta loď, Vrána, je krásná!", "p-v-kod": "Kód 42."},
        "script/harbour/dialogs_nl.lua": {"p-m-lod": "Dat schip."},
        "script/share/black_dialogs_cs.lua": {"p-m-lod": "To už tu jednou bylo."},
    }
    for name, texts in lines.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        calls = (f'dialogId("{key}", "f", "?")\ndialogStr("{text}")\n' for key, text in texts.items())
        path.write_text("".join(calls), encoding="utf-8")
    for name in ("harbour/cs/p-m-lod", "harbour/cs/p-v-kod", "harbour/cs/p-x-sum", "share/black/cs/p-m-lod"):
        path = tmp_path / "sound" / f"{name}.ogg"
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, np.zeros(44100, dtype=np.float32), 22050)
    return tmp_path


def test_a_text_belongs_to_the_name_before_it(recipe):
    texts = recipe("dialogs").parse_dialogs(LUA)
    assert texts == {"hl-m-kde": "Kde je kapitán Vrána?", "hl-v-tam": 'Říkal: "Tam!"'}


def test_clips_find_their_text_in_their_own_scene(recipe, game):
    clips = list(recipe("dialogs").find_clips(game, "cs"))
    assert [(clip.scene, clip.name, clip.subtitle) for clip in clips] == [
        ("harbour", "p-m-lod", "Ta loď, Vrána, je krásná!"),
        ("harbour", "p-v-kod", "Kód 42."),
        ("share", "p-m-lod", "To už tu jednou bylo."),
    ]


def test_a_game_without_recordings_is_refused(recipe, tmp_path):
    with pytest.raises(UserError, match="no recordings in"):
        list(recipe("dialogs").find_clips(tmp_path, "cs"))


@pytest.mark.parametrize(
    ("subtitle", "text"),
    [
        ("Chceš-li… ‚ne‘, řekni „ŘEKA“!", "chceš li ne řekni řeka"),
        ("du\u030am", "dům"),
        ("Už je 5 hodin.", ""),
        ("Konkrétně %1 hodin!", ""),
        ("Спасибо", ""),
        ("...", ""),
    ],
)
def test_only_what_is_written_as_spoken_is_used(recipe, subtitle, text):
    assert recipe("splits").spoken_text(subtitle) == text


@pytest.mark.parametrize(
    ("text", "seconds", "usable"),
    [
        ("deset písmen", 2.0, True),
        ("", 2.0, False),
        ("ááá", 2.0, False),  # 1.5 letters a second
        ("deset písmen", 0.5, False),  # 24 a second
        ("a" * 300, 30.0, False),
    ],
)
def test_implausible_recordings_are_left_out(recipe, text, seconds, usable):
    assert recipe("splits").is_usable(text, seconds) is usable


def test_scenes_fill_the_splits_from_the_longest_on(recipe):
    # 20 s in all, so 15 s and 5 s are wanted. Filled shares before each choice: 0 and 0; 8/15 and 0;
    # 8/15 and 6/5; 12/15 and 6/5.
    seconds = {"a": 8.0, "b": 6.0, "c": 4.0, "d": 2.0}
    chosen = recipe("splits").split_scenes(seconds, {"train": 0.75, "test": 0.25})
    assert chosen == {"a": "train", "b": "test", "c": "train", "d": "train"}


def test_fewer_scenes_than_splits_are_refused(recipe):
    with pytest.raises(UserError, match="each of the 2 splits needs a scene, got 1"):
        recipe("splits").split_scenes({"a": 1.0}, {"train": 0.5, "test": 0.5})


def test_hotwords_are_names_and_the_rarest_long_word(recipe):
    splits = recipe("splits")
    counts = splits.count_words(["krásná krásná podivuhodná", "vrána"])
    subtitle = "Krásná podivuhodná loď, Vrána! Tohle je krásná loď."
    # "Krásná" and "Tohle" begin sentences; "tohle" has five letters
    assert splits.find_hotwords(subtitle, counts) == ["vrána", "podivuhodná"]


def test_distractors_are_not_in_the_text(recipe):
    draw = recipe("splits").draw_distractors
    assert draw("vidím vránu", ["vránu", "kapitána"], num_words=2, seed="u") == ["kapitána"]


def test_the_manifest_is_one_of_ours(recipe, game, tmp_path):
    builder = recipe("build_corpus")
    clips = [clip for clip in recipe("dialogs").find_clips(game, "cs") if clip.scene == "harbour"][:1]
    lines = [builder.Line(clip, "ta loď vrána je krásná", 2.0, "sft") for clip in clips]
    builder.build_split("sft", lines, tmp_path, workers=1)
    utterances = list(read_manifest(tmp_path / "sft.jsonl"))
    assert [utterance.key for utterance in utterances] == [
        "harbour-p-m-lod-0.9",
        "harbour-p-m-lod",
        "harbour-p-m-lod-1.1",
    ]
    assert utterances[0].transcript == "ta loď vrána je krásná"
    assert utterances[0].hotwords == ("vrána", "krásná")
    # 2 s at nine tenths and at eleven tenths of the speed
    rows = [json.loads(line) for line in (tmp_path / "sft.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["duration"] for row in rows] == pytest.approx([2 / 0.9, 2.0, 2 / 1.1], abs=0.01)


def test_no_scene_is_in_two_splits(recipe, game, monkeypatch):
    builder = recipe("build_corpus")
    monkeypatch.setattr(builder, "SHARES", {"sft": 0.5, "test": 0.5})
    lines = builder.choose_lines(recipe("dialogs").find_clips(game, "cs"))
    assert [(line.clip.scene, line.text, line.split) for line in lines] == [
        ("harbour", "ta loď vrána je krásná", "sft"),
        ("share", "to už tu jednou bylo", "test"),
    ]


def test_synthesised_texts_are_new_and_short(recipe):
    texts = recipe("pretraining_text").choose_texts(
        ["Kdo se moc ptá, moc se dozví. Ano.", "Kdo se moc ptá - ten ví.", "Zakázaná věta tady."],
        ["Kam plujeme? Domů.", "Nikam!"],
        num_texts=5,
        forbidden={"zakázaná věta tady", "nikam domů"},
        seed=0,
    )
    # two of five are clauses of quotations, of which "ano" and "ten ví" are too short; the rest are pairs
    quotations = {"kdo se moc ptá", "moc se dozví"}
    pairs = {"kam plujeme domů", "domů kam plujeme", "kam plujeme nikam", "nikam kam plujeme", "domů nikam"}
    assert len(set(texts)) == 5
    assert set(texts) & quotations == quotations
    assert set(texts) - quotations <= pairs


def test_fortunes_lose_their_authors_and_slovak_is_left_out(recipe, tmp_path):
    (tmp_path / "citat.u8").write_text("Jedna.\n\t\t-- Autor\n%\nDvě\nřádky.\n%\n", encoding="utf-8")
    (tmp_path / "klasik-sk.u8").write_text("Čo je to?\n%\n", encoding="utf-8")
    assert [" ".join(text.split()) for text in recipe("pretraining_text").fortunes(tmp_path)] == [
        "Jedna.",
        "Dvě řádky.",
        "",
    ]


@pytest.fixture(scope="module")
def tokenizer(recipe, tmp_path_factory):
    folder = tmp_path_factory.mktemp("czech-tokenizer")
    texts = ["příliš žluťoučký kůň úpěl ďábelské ódy", "ta loď je krásná", "kam ta loď pluje"] * 20
    built = recipe("create_model").build_czech_tokenizer(texts, num_tokens=320)
    recipe("tokenizer").save_tokenizer(built, folder)
    recipe("init_model").write_json(folder / "config.json", recipe("init_model").decoder_settings(built))
    return load_tokenizer(folder)


@pytest.mark.parametrize(
    "text",
    [
        "příliš žluťoučký kůň úpěl ďábelské ódy",
        "ŘEŘICHA, ŠŤÁVA!",
        "o'connor chceš-li",
        "zcela nové slovo xyz",
    ],
)
def test_czech_survives_the_tokenizer(tokenizer, text):
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(tokens) == text


def test_decomposed_letters_become_composed_ones(tokenizer):
    tokens = tokenizer("du\u030am", add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(tokens) == "dům"


def test_frequent_words_and_the_prompt_take_few_tokens(tokenizer):
    assert len(tokenizer(" loď", add_special_tokens=False)["input_ids"]) == 1
    assert len(tokenizer(PREFIX + SUFFIX, add_special_tokens=False)["input_ids"]) == 9


def test_what_the_model_is_taught_is_the_czech_text():
    assert clean_text("Ta loď, Vrána, je KRÁSNÁ!") == "ta loď vrána je krásná"


def test_an_interval_of_a_rate_holds_the_rate(recipe):
    # Equal utterances: every resample has the rate 1/4.
    interval = recipe("report").rate_interval([ErrorCounts(3, 1, 0, 0)] * 5)
    assert (interval.low, interval.difference, interval.high) == (0.25, 0.25, 0.25)
