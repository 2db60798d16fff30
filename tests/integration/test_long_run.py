"""A long run keeps its memory and its open files."""

import subprocess
import sys

import pytest
from runs import ROOT


@pytest.mark.slow
def test_neither_memory_nor_open_files_grow(tmp_path):
    command = [sys.executable, str(ROOT / "scripts" / "long_run.py"), "--csv", str(tmp_path / "growth.csv")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr[-3000:]
    assert len((tmp_path / "growth.csv").read_text().splitlines()) > 30
