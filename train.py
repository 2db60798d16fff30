"""Reinforcement learning: ``accelerate launch train.py importance_sampling_level=sequence``."""

from asrl.cli.train import main
from asrl.errors import exit_with_one_line

if __name__ == "__main__":
    exit_with_one_line(main)
