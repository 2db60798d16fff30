import json

import pytest

from asrl.tracking import Clock, Tracker, timed


def test_a_clock_adds_up_phases_and_starts_anew_after_each_reading(monkeypatch):
    ticks = iter([0.0, 3.0, 10.0, 11.0, 20.0, 26.0])
    monkeypatch.setattr("asrl.tracking.time.perf_counter", lambda: next(ticks))
    clock = Clock()
    for name in ("rollout", "update", "rollout"):
        with clock.phase(name):
            pass
    # 3 and 6 seconds of rollout, 1 of update.
    assert clock.read() == pytest.approx(
        {"seconds/rollout": 9, "seconds/update": 1, "share/rollout": 0.9, "share/update": 0.1}
    )
    assert clock.read() == {}


def test_a_timed_method_returns_what_it_would_and_is_booked_even_if_it_fails():
    class Timed:
        clock = Clock()

        @timed("work")
        def divide(self, a, *, b):
            return a / b

    timed_object = Timed()
    assert timed_object.divide(6, b=2) == 3
    with pytest.raises(ZeroDivisionError):
        timed_object.divide(6, b=0)
    assert set(timed_object.clock.read()) == {"seconds/work", "share/work"}


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_tracker_writes_metrics_without_anything_of_the_clock(tmp_path):
    with Tracker(tmp_path, max_steps=2, start=0, wandb=None) as tracker:
        tracker.step(1, {"loss": 0.5}, {"seconds/update": 3.0})
        tracker.evaluation(1, {"dev_greedy/cer": 0.25})
        tracker.transcripts(1, [{"key": "a", "hypothesis": "好"}])
    assert read(tmp_path / "metrics.jsonl") == [
        {"step": 1, "loss": 0.5},
        {"step": 1, "dev_greedy/cer": 0.25},
    ]
    assert read(tmp_path / "timings.jsonl") == [{"step": 1, "seconds/update": 3.0}]
    assert read(tmp_path / "completions.jsonl") == [{"step": 1, "key": "a", "hypothesis": "好"}]


def test_a_tracker_of_a_resumed_run_cuts_every_file_back(tmp_path):
    names = ("metrics", "timings", "completions")
    for name in names:
        (tmp_path / f"{name}.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st')
    with Tracker(tmp_path, max_steps=4, start=2, wandb=None):
        pass
    for name in names:
        assert [row["step"] for row in read(tmp_path / f"{name}.jsonl")] == [1, 2]


def test_an_error_leaves_the_line_of_the_progress_bar(tmp_path, capsys):
    with pytest.raises(ValueError, match="broken"), Tracker(tmp_path, max_steps=2, start=0, wandb=None):
        raise ValueError("broken")
    assert capsys.readouterr().err.endswith("\n")
