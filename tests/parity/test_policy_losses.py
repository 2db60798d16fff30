"""Losses and gradients against those of independent implementations, frozen in ``policy_losses.npz``."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from asrl.losses import policy_loss

ARRAYS = np.load(Path(__file__).parents[1] / "data" / "golden" / "policy_losses.npz")
CASES = json.loads(str(ARRAYS["cases"]))
OPTIONS = (
    "loss_type",
    "importance_sampling_level",
    "beta",
    "epsilon",
    "epsilon_high",
    "delta",
    "max_completion_length",
)


def name_of(case):
    delta = "" if case["delta"] is None else f"-delta{case['delta']}"
    level = case["importance_sampling_level"]
    return f"{case['loss_type']}-{level}-beta{case['beta']}-{case['advantages']}{delta}"


def tensor(name, dtype):
    return torch.from_numpy(ARRAYS[name]).to(dtype)


def test_there_are_84_distinct_cases():
    assert len({json.dumps(case, sort_keys=True) for case in CASES}) == 84


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize(("index", "case"), list(enumerate(CASES)), ids=[name_of(case) for case in CASES])
def test_loss_and_gradient_agree(index, case, dtype):
    logps = tensor("logps", dtype).requires_grad_()
    advantages = "advantages" if case["advantages"] == "sequence" else "token_advantages"
    output = policy_loss(
        logps,
        old_logps=tensor("old_logps", dtype),
        ref_logps=tensor("ref_logps", dtype),
        advantages=tensor(advantages, dtype),
        mask=torch.from_numpy(ARRAYS["mask"]).bool(),
        **{name: case[name] for name in OPTIONS},
    )
    output.loss.backward()
    assert output.loss.dtype == dtype
    assert output.loss.item() == pytest.approx(case["loss"], abs=1e-6, rel=0)
    torch.testing.assert_close(logps.grad, tensor(f"grad_{index}", dtype), atol=1e-6, rtol=0)
