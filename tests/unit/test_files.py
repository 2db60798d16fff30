"""A file that is replaced has its old or its new content, never half of it."""

import os

import pytest

from asrl.errors import UserError
from asrl.files import replace_text


def test_a_file_gets_new_content(tmp_path):
    path = tmp_path / "config.yaml"
    for text in ("seed: 1\n", "文\n"):
        replace_text(path, text)
        assert path.read_text(encoding="utf-8") == text
    assert [file.name for file in tmp_path.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize("name", ["sync", "os.replace"])
def test_a_failure_leaves_the_old_content_and_nothing_else(tmp_path, monkeypatch, name):
    path = tmp_path / "config.yaml"
    replace_text(path, "old")

    def fill(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(f"asrl.files.{name}", fill)
    with pytest.raises(UserError, match=r"config\.yaml: cannot write \(No space left on device\)"):
        replace_text(path, "new")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["config.yaml"]


def test_a_directory_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match=r"nowhere/config\.yaml: cannot write \(No such file or directory\)"):
        replace_text(tmp_path / "nowhere" / "config.yaml", "text")
