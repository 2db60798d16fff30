"""Rewards that give a random model a signal, and some that do harm."""

import math
import os
from dataclasses import replace

import asrl.learner


def even_characters(hypotheses, utterances):
    """Share of characters with an even code point: differs between almost any two hypotheses."""
    return [sum(ord(c) % 2 == 0 for c in text) / max(len(text), 1) for text in hypotheses]


def length(hypotheses, utterances):
    return [float(len(text)) for text in hypotheses]


def poisoned_loss(hypotheses, utterances):
    """Make the loss of the second batch NaN, on the last rank alone."""
    _poison_once(lambda loss: loss * math.nan)
    return even_characters(hypotheses, utterances)


def poisoned_gradient(hypotheses, utterances):
    """Make the gradient of the second batch infinite, on the last rank alone; the loss stays as it is."""

    def poison(loss):
        loss.register_hook(lambda gradient: gradient * math.inf)
        return loss

    _poison_once(poison)
    return even_characters(hypotheses, utterances)


CALLS: list[str] = []


def _poison_once(poison):
    CALLS.append("batch")
    if len(CALLS) != 2 or os.environ["RANK"] != "1":
        return
    healthy = asrl.learner.policy_loss

    def policy_loss(*args, **options):
        asrl.learner.policy_loss = healthy
        output = healthy(*args, **options)
        return replace(output, loss=poison(output.loss))

    asrl.learner.policy_loss = policy_loss
