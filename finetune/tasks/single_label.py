"""One class for each example: transformers' `single_label_classification`."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from finetune.metrics.calibration import Logits, probabilities
from finetune.tasks.base import Answers, DecisionRule, PredictOptions, Target

_ARGMAX = DecisionRule()


def answers(
    logits: Logits,
    target: Target,
    rule: DecisionRule = _ARGMAX,
    options: PredictOptions | None = None,
    swapped: Logits | None = None,
) -> Answers:
    """Answer by the most probable class, or by the threshold of a rule.

    Args:
        logits: shape (pairs, classes).
        rule: what was chosen for the model; nothing by default.
        options: by default the rule's threshold decides, and both orders are averaged if `swapped`
            is given.
        swapped: logits of the sentences in the other order; None for single sentences.
    """
    options = options or PredictOptions(both_orders=swapped is not None)
    temperature = (rule.temperature if options.calibrated else None) or 1.0
    shares = probabilities(logits, temperature)
    if options.both_orders and swapped is not None:
        shares = (shares + probabilities(swapped, temperature)) / np.float32(2)
    level = rule.threshold_for(target.names) if options.threshold else None
    if level is None:
        return Answers(shares, most_probable(shares))
    positive = target.names.index(rule.positive)
    if temperature != 1:  # the calibrated probability at which the plain one is the threshold
        odds = math.log(level / (1 - level))
        level = 1 / (1 + math.exp(-odds / temperature))
    called = shares[:, positive].astype(np.float64) >= level  # float32 would round the threshold
    return Answers(shares, np.where(called, positive, 1 - positive))


def most_probable(scores: Logits) -> NDArray[np.int64]:
    """The most probable class of each example, by logits or probabilities (examples, classes)."""
    return np.asarray(scores.argmax(axis=1), np.int64)
