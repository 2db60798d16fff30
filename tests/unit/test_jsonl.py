import json

import pytest

from asrl.errors import UserError
from asrl.jsonl import JsonLines, read_json_lines


def test_appended_records_are_read_back_in_order(tmp_path):
    file = JsonLines(tmp_path / "metrics.jsonl")
    file.append({"step": 1, "text": "你好"}, {"step": 2})
    file.append({"step": 3})
    assert read_json_lines(file.path) == [{"step": 1, "text": "你好"}, {"step": 2}, {"step": 3}]
    assert file.path.read_text(encoding="utf-8").splitlines()[0] == '{"step": 1, "text": "你好"}'


def test_truncating_drops_later_steps_and_a_line_cut_short(tmp_path):
    path = tmp_path / "metrics.jsonl"
    whole = '{"step": 1}\n{"step": 2}\n{"step": 2, "dev": 0.5}\n'
    path.write_text(whole + '{"step": 3}\n{"step": 4, "lo')
    JsonLines(path).truncate_after(2)
    assert path.read_text() == whole


def test_a_last_line_without_newline_counts_as_cut_even_where_it_is_json(tmp_path):
    path = tmp_path / "metrics.jsonl"
    # Whether {"step": 2, "loss": 1 would have gone on as 1.5 cannot be known, nor can 12 in {"step": 12}.
    path.write_text('{"step": 1}\n{"step": 1}')
    assert len(read_json_lines(path)) == 1
    JsonLines(path).truncate_after(5)
    assert path.read_text() == '{"step": 1}\n'


def test_a_character_cut_in_two_by_a_kill_does_no_harm(tmp_path):
    path = tmp_path / "completions.jsonl"
    whole = '{"step": 1, "hypothesis": "你好"}\n'.encode()
    path.write_bytes(whole + whole[:-5])  # ends within 好, three bytes in UTF-8
    assert read_json_lines(path) == [{"step": 1, "hypothesis": "你好"}]
    JsonLines(path).truncate_after(1)
    assert path.read_bytes() == whole


def test_truncating_rewrites_the_very_same_bytes(tmp_path):
    path = tmp_path / "metrics.jsonl"
    record = {"step": 1, "kl": 0.1 + 0.2, "tiny": 1e-17, "text": "\u2028", "none": None}
    JsonLines(path).append(record)
    before = path.read_bytes()
    JsonLines(path).truncate_after(1)
    assert path.read_bytes() == before
    assert read_json_lines(path) == [record]


def test_truncating_a_file_that_is_not_there_is_fine(tmp_path):
    JsonLines(tmp_path / "metrics.jsonl").truncate_after(0)
    assert not (tmp_path / "metrics.jsonl").exists()


def test_truncating_leaves_the_old_file_if_it_fails_half_way(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n')

    def fail(*_):
        raise OSError("killed")

    monkeypatch.setattr("asrl.files.os.replace", fail)
    with pytest.raises(UserError, match="cannot write"):
        JsonLines(path).truncate_after(1)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]


@pytest.mark.parametrize("line", [b"nonsense", b"12", b"", b'{"text": "\xff"}'])
def test_a_broken_line_is_named(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 2}\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl:2: not a JSON object"):
        read_json_lines(path)


@pytest.mark.parametrize("line", ['{"loss": 1}', '{"step": "2"}'])
def test_a_line_of_no_step_is_named_when_a_run_cuts_its_file_back(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n' + line + "\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl:2: .* a whole number 'step'"):
        JsonLines(path).truncate_after(1)


def test_a_directory_in_place_of_the_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"cannot read \(Is a directory\)"):
        read_json_lines(tmp_path)
    with pytest.raises(UserError, match=r"cannot write \(Is a directory\)"):
        JsonLines(tmp_path).append({"step": 1})


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"none\.jsonl: no such file"):
        read_json_lines(tmp_path / "none.jsonl")
