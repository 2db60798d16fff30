import json
import re

import pytest

from asrl.errors import UserError
from asrl.evaluate import Transcription, write_transcriptions
from asrl.report.figures import draw_curves, moving_mean, table_rows
from asrl.report.page import write_page
from asrl.report.runs import read_run


def lines(*pairs):
    return [Transcription(place, f"u{place}", *pair, False) for place, pair in enumerate(pairs)]


@pytest.fixture
def run_dir(tmp_path):
    """A run whose first utterance lost two errors, whose second gained one and whose third did not change."""
    directory = tmp_path / "my run"
    directory.mkdir()
    metrics = [{"step": step, "loss": 0.0, "reward/mean": step / 10} for step in (1, 2, 3)]
    metrics.insert(2, {"step": 2, "dev_greedy/cer": 0.5})
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    before = lines(("天气很好", "天很"), ("你好", "你好"), ("<b>", "b"))
    after = lines(("天气很好", "天气很好"), ("你好", "你<i>"), ("<b>", "b"))
    for step, transcriptions in ((0, before), (20, lines(("不", "看"))), (100, after)):
        write_transcriptions(directory / "evaluations" / f"dev-greedy-{step:08d}.jsonl", transcriptions)
    write_transcriptions(directory / "evaluations" / "test-greedy-00000000.jsonl", before)
    return directory


def test_the_first_evaluation_is_compared_with_the_last(run_dir):
    run = read_run(run_dir)
    (comparison,) = run.comparisons  # of "test" there is but one
    assert comparison.split == "dev"
    # Of 4 + 2 + 1 units: two deleted before, one substituted after.
    assert comparison.difference == pytest.approx(-1 / 7)
    assert [(change.after.key, change.num_errors) for change in run.most_improved(5)] == [("u0", -2)]
    assert [(change.after.key, change.num_errors) for change in run.most_harmed(5)] == [("u1", 1)]
    assert run.most_improved(0) == []


def test_a_curve_holds_the_steps_at_which_it_was_measured(run_dir):
    run = read_run(run_dir)
    assert run.curve("reward/mean") == ([1, 2, 3], [0.1, 0.2, 0.3])
    assert run.curve("dev_greedy/cer") == ([2], [0.5])
    assert run.curve("kl") == ([], [])


def test_a_moving_mean_looks_back_as_far_as_there_is():
    assert moving_mean([1.0, 2.0, 3.0, 8.0], 2) == [1.0, 1.5, 2.5, 5.5]


def test_a_row_of_the_table_holds_rates_in_percent(run_dir):
    assert table_rows([read_run(run_dir)])[0][:8] == (
        *("my run", "dev", "greedy"),
        *("28.57", "0.0 / 28.6 / 0.0"),
        *("14.29", "14.3 / 0.0 / 0.0", "-14.29"),
    )


def test_the_page_shows_errors_in_colour_and_escapes_texts(run_dir, tmp_path):
    run = read_run(run_dir)
    draw_curves([run], tmp_path / "curves.png")
    write_page(tmp_path / "page.html", [run], [{"steps": 3}], images=[("Curves", tmp_path / "curves.png")])
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert '天 <span class="deletion">气</span> 很 <span class="deletion">好</span>' in page
    assert '你 <span class="substitution" title="好">i</span>' in page
    assert "<td>2 → 0</td>" in page
    assert "<i>" not in page
    assert len(re.findall("data:image/png;base64,", page)) == 1


def test_long_curves_are_smoothed_and_runs_share_a_panel(run_dir, tmp_path, monkeypatch):
    from matplotlib.axes import Axes  # noqa: PLC0415

    drawn = []
    monkeypatch.setattr(Axes, "plot", lambda self, steps, values, **_: drawn.append((len(steps), values[-1])))
    metrics = [{"step": step, "reward/mean": float(step)} for step in range(1, 101)]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    draw_curves([read_run(run_dir)], tmp_path / "curves.png")
    # The points, and means over a twentieth of them: 96 ... 100.
    assert drawn == [(100, 100.0), (100, 98.0)]


def test_a_directory_without_metrics_is_no_run(tmp_path):
    with pytest.raises(UserError, match="not the directory of a run"):
        read_run(tmp_path)
