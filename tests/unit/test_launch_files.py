"""accelerate understands every launch file, and each starts what its name says."""

from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file

FILES = sorted((Path(__file__).parents[2] / "configs" / "accelerate").glob("*.yaml"))
DISTRIBUTED_TYPES = {"cpu": "NO", "ddp": "MULTI_GPU", "zero": "DEEPSPEED", "fsdp": "FSDP"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_accelerate_reads_the_file(path):
    config = load_config_from_file(str(path))  # refuses keys that it does not know
    kind = path.stem.split("_")[0].rstrip("0123456789")
    assert str(config.distributed_type).removeprefix("DistributedType.") == DISTRIBUTED_TYPES[kind]
    # The precision is a setting of the run, the same under every backend.
    assert config.mixed_precision == "no"


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_stage_is_that_of_the_name(stage):
    path = next(path for path in FILES if path.stem == f"zero{stage}")
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["deepspeed_config"]["zero_stage"] == stage
