"""Reinforcement learning for speech-recognition LLMs."""

__version__ = "0.1.0"
