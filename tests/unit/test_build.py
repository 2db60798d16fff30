from pathlib import Path

import pytest
import torch

from asrl.cli.build import unused_run_dir
from asrl.cli.distribute import start_accelerator
from asrl.errors import UserError


def test_the_number_of_threads_is_set_only_if_given():
    start_accelerator(num_threads=2)
    assert torch.get_num_threads() == 2
    start_accelerator()
    assert torch.get_num_threads() == 2


def test_a_run_never_writes_into_the_directory_of_another(tmp_path):
    names = [unused_run_dir(str(tmp_path / "run"), start_accelerator()).name for _ in range(3)]
    assert names == ["run", "run-2", "run-3"]


@pytest.mark.parametrize("wanted", ["", "file/run"])
def test_a_directory_that_cannot_be_created_is_named(tmp_path, monkeypatch, wanted):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    with pytest.raises(UserError, match=rf"^run_dir={wanted}: cannot create"):
        unused_run_dir(wanted, start_accelerator())
