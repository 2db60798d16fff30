"""Copy a trained demo model to its place, without the positional table, which every loader computes anew.

Example:
    python scripts/demo/ship_model.py --model runs/sft-demo/model --output demo/FireRedASR-LLM-demo
"""

import argparse
import shutil
from pathlib import Path

from asrl.errors import exit_with_one_line
from asrl.models.firered import load_firered, save_firered


def main() -> None:
    """Parse the command line and copy."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="directory written by supervised training")
    parser.add_argument("--output", type=Path, required=True, help="replaced if it exists")
    options = parser.parse_args()
    model = load_firered(options.model, lora_start="none")
    shutil.rmtree(options.output, ignore_errors=True)
    save_firered(model, options.output, merge_lora=True, with_positional_table=False)
    size = sum(path.stat().st_size for path in options.output.rglob("*") if path.is_file())
    print(f"{options.output}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    exit_with_one_line(main)
