"""Shared fixtures; shapes in annotations are checked while the tests run."""

import os
import tempfile
from pathlib import Path

import jaxtyping
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
CACHE = tempfile.TemporaryDirectory(prefix="asrl-tests-")
os.environ["ASRL_CACHE"] = CACHE.name

jaxtyping.install_import_hook("asrl", "beartype.beartype")

DATA = Path(__file__).parent / "data"


@pytest.fixture(autouse=True)
def _one_thread():
    import torch  # noqa: PLC0415 (after the environment is set)

    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def golden() -> Path:
    """Reference tensors and the tiny random checkpoint they were computed with."""
    return DATA / "golden"
