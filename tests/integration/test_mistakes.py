"""What a user can get wrong ends with status 2 and one line that names the place."""

import pytest
from runs import finish, start, write_manifest


def assert_one_line(result, *, is_alone=True):
    """The error line, which must be the last and the only one (``is_alone``: with nothing but it)."""
    lines = [line for line in result.errors.replace("\r", "\n").splitlines() if line.strip()]
    assert result.status == 2, result.errors
    assert [line for line in lines if line.startswith("error: ")] == lines[-1:], result.errors
    assert "Traceback" not in result.errors
    if is_alone:
        assert len(lines) == 1, result.errors
    return lines[-1]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "importance_sampling_level=sequense",
            "importance_sampling_level must be one of token, sequence, sequence_token, got 'sequense'; "
            "did you mean 'sequence'",
        ),
        (
            "importance_sampling_levle=token",
            "'importance_sampling_levle'; did you mean 'importance_sampling_level'",
        ),
        ("trainer.max_step=5", "'trainer.max_step'; did you mean 'trainer.max_steps'"),
        ("trainer.max_steps=many", "trainer.max_steps: Value 'many' of type 'str' could not be converted"),
        ("optim=demmo", "optim=demmo: there is no configs/optim/demmo.yaml; did you mean 'demo'"),
        ("optim.schedule=lineer", "optim.schedule"),
        ("num_generations=5", "num_generations=5 must divide"),
        ("num_generations", "not a setting of the form key=value"),
        ("reward.accuracy.weight=heavy", "reward.accuracy"),
        ("reward.signal.function=toy_rewards:odd", "'toy_rewards:odd'"),
        ("model.path=nowhere", "nowhere"),
        ("data.train=nowhere.jsonl", "nowhere.jsonl: cannot read the manifest"),
    ],
)
def test_a_wrong_setting_is_named(command, arguments, tmp_path, word, message):
    words = arguments(tmp_path / "run")
    if word.startswith(("reward.signal", "model.path", "data.train", "optim=")):
        key = word.split("=")[0]
        words = [other for other in words if other.split("=")[0].lstrip("+") != key]
        word = word.replace("reward.signal", "+reward.signal")
    line = assert_one_line(
        command("train", *words, word), is_alone=not word.startswith(("optim.schedule", "num_generations=5"))
    )
    assert message in line


def break_text(rows, folder):
    rows[1]["text"] = "，。"


def break_audio(rows, folder):
    rows[1]["audio"] = "missing.wav"


def break_key(rows, folder):
    rows[1]["key"] = rows[0]["key"]


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (break_text, ":2: column 'text' has no letters or digits"),
        (break_audio, "missing.wav does not exist"),
        (break_key, "was already used on line 1"),
    ],
)
def test_a_wrong_manifest_line_is_named(command, arguments, rows, tmp_path, harm, message):
    broken = [dict(row) for row in rows]
    harm(broken, tmp_path)
    path = write_manifest(tmp_path / "train.jsonl", broken)
    line = assert_one_line(command("train", *arguments(tmp_path / "run", f"data.train={path}")))
    assert f"{path}:2: " in line
    assert message in line


def test_a_manifest_line_of_broken_json_is_named(command, arguments, rows, tmp_path):
    path = write_manifest(tmp_path / "train.jsonl", rows)
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[4] = lines[4][:-10]
    path.write_text("\n".join(lines), encoding="utf-8")
    line = assert_one_line(command("train", *arguments(tmp_path / "run", f"data.train={path}")))
    assert f"{path}:5: not valid JSON" in line


def unreadable(rows, tmp_path):
    """A manifest whose every recording is a text file."""
    (tmp_path / "noise.wav").write_text("this is not audio")
    broken = [row | {"audio": str(tmp_path / "noise.wav")} for row in rows]
    return write_manifest(tmp_path / "train.jsonl", broken)


def test_an_unreadable_recording_is_named(command, arguments, rows, tmp_path):
    path = unreadable(rows, tmp_path)
    result = command("train", *arguments(tmp_path / "run", f"data.train={path}"))
    line = assert_one_line(result, is_alone=False)
    assert "noise.wav: cannot read audio" in line
    assert f"{path}:" in line


def test_an_unreadable_recording_is_named_by_a_real_process_with_workers(arguments, rows, tmp_path):
    path = unreadable(rows, tmp_path)
    words = arguments(tmp_path / "run", f"data.train={path}", "data.num_workers=1")
    line = assert_one_line(finish(start(words)), is_alone=False)
    assert "noise.wav: cannot read audio" in line
    assert f"{path}:" in line
