"""The rules of the house: floors, sizes, first lines."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from importlinter.api import read_configuration

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "asrl").rglob("*.py"))
FILES = [*SOURCES, *sorted((ROOT / "scripts").rglob("*.py")), *sorted((ROOT / "tests").rglob("*.py"))]
TORCH_FREE = ", ".join(
    f"asrl.{name}"
    for name in ["rewards", "bootstrap", "errors", "registry", "utterance", "text", "files", "jsonl"]
)
KNOW_HYDRA = {"trainer", "learner", "sft", "config", "config_checks", "cli"}


def functions(path: Path) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]


def num_body_lines(function: ast.FunctionDef) -> int:
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def test_body_lines_are_counted_without_signature_and_docstring(tmp_path):
    path = tmp_path / "three.py"
    path.write_text(
        'def three(\n    a,\n):\n    """Doc.\n\n    More.\n    """\n    b = (\n        a\n    )\n'
    )
    assert [num_body_lines(function) for function in functions(path)] == [3]


def test_imports_go_down_only():
    command = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


def test_every_module_below_the_loops_is_kept_from_hydra():
    contracts = read_configuration(str(ROOT / "pyproject.toml"))["contracts_options"]
    kept = next(contract for contract in contracts if "hydra" in contract.get("forbidden_modules", ()))
    modules = {path.relative_to(ROOT / "asrl").parts[0].removesuffix(".py") for path in SOURCES}
    assert {f"asrl.{name}" for name in modules - KNOW_HYDRA - {"__init__"}} == set(kept["source_modules"])


def test_rewards_and_text_load_without_torch():
    code = f"import sys, {TORCH_FREE}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_are_short(path):
    assert len(path.read_text().splitlines()) <= 300
    long = {function.name: num_body_lines(function) for function in functions(path)}
    assert {name: lines for name, lines in long.items() if lines > 40} == {}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_says_what_only_it_does(path):
    if path.name == "__init__.py" and path.parent.name not in ("asrl", "rewards"):
        assert path.read_text() == ""
    elif path != ROOT / "asrl" / "__init__.py":
        assert path.read_text().startswith('"""This module is the only place ')
