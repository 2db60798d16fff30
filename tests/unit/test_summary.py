import json

import pytest

from asrl.cli.summary import print_summary, training_figures, write_summary
from asrl.comparison import compare
from asrl.evaluate import Transcription


def transcription(place, transcript, hypothesis):
    return Transcription(place, f"u{place}", transcript, hypothesis, False)


def step(number, **metrics):
    return {"step": number, "loss": 0.0, **metrics}


def test_first_and_last_reward_are_means_over_25_steps():
    # Rewards 1 ... 100: the first 25 have the mean 13, the last 25 (76 ... 100) 88.
    rows = [step(number, **{"reward/mean": float(number)}) for number in range(1, 101)]
    figures = training_figures(rows)
    assert figures["steps"] == 100
    assert figures["first reward"] == 13
    assert figures["last reward"] == 88


def test_a_short_run_takes_what_there_is_and_steps_without_rollouts_do_not_count():
    rows = [step(1, **{"reward/mean": 1.0}), step(2), step(3, **{"reward/mean": 2.0}), step(4)]
    figures = training_figures(rows)
    assert (figures["steps"], figures["first reward"], figures["last reward"]) == (4, 1.0, 2.0)


def test_clip_ratio_and_kl_are_means_with_the_largest_and_the_first():
    rows = [
        step(1, **{"clip_ratio/any": 0.0, "kl": 0.5}),
        step(2, **{"clip_ratio/any": 0.3, "kl": 0.1}),
        {"step": 2, "dev_greedy/cer": 0.4},  # an evaluation, no step
        step(3, **{"clip_ratio/any": 0.0, "kl": 0.0}),
    ]
    assert training_figures(rows) == pytest.approx(
        {
            "steps": 3,
            "clip ratio": 0.1,
            "largest clip ratio": 0.3,
            "kl": 0.2,
            "largest kl": 0.5,
            "first kl": 0.5,
        }
    )


def test_without_reference_policy_there_are_no_figures_of_kl():
    assert not {"kl", "first kl"} & training_figures([step(1, **{"clip_ratio/any": 0.0})]).keys()


def test_a_run_without_steps_has_no_figures_but_their_number():
    assert training_figures([]) == {"steps": 0}


BEFORE = [transcription(0, "天气很好", "天汽很好"), transcription(1, "你好", "你好")]
AFTER = [transcription(0, "天气很好", "天气很好"), transcription(1, "你好", "你好吗呢")]


def test_the_summary_is_printed_and_written(tmp_path, capsys):
    comparison = compare("dev", "greedy", BEFORE, AFTER)
    write_summary(tmp_path / "summary.json", [comparison], {"steps": 3})
    content = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert content["evaluation"][0]["split"] == "dev"
    assert content["training"] == {"steps": 3}
    print_summary([comparison], {"steps": 3, "kl": 0.25}, tmp_path)
    printed = capsys.readouterr().out
    for part in ("16.67", "16.7 / 0.0 / 0.0", "33.33", "0.0 / 0.0 / 33.3", "+16.67", "steps 3, kl 0.25"):
        assert part in printed


def test_a_run_without_held_out_sets_prints_no_table(tmp_path, capsys):
    print_summary([], {"steps": 3}, tmp_path)
    assert "before" not in capsys.readouterr().out
