"""A run that is killed at random moments is in the end the run that was left alone."""

import json
import subprocess
import sys

import pytest
from runs import ROOT


@pytest.mark.slow
@pytest.mark.parametrize("num_processes", [1, 2])
def test_three_kills_change_nothing(tmp_path, num_processes):
    words = ["--kills", "3", "--num-processes", str(num_processes), "--json", str(tmp_path / "kills.json")]
    command = [sys.executable, str(ROOT / "scripts" / "kill_test.py"), *words, "--folder", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr[-3000:]
    results = json.loads((tmp_path / "kills.json").read_text())
    assert [kill["killed"] for kill in results["kills"]] == ["one rank", "all", "one rank"]
    assert set(results["is_same"].values()) == {True}
