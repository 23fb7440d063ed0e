"""The decision rule: how a model's logits become probabilities and an answer.

It is stored in the `config.json` beside the model's weights, under a key that other programs
ignore:

    "finetune": {"threshold": 0.43, "positive": "equivalent", "temperature": 1.31, "step": 400}

`step`: optimizer steps the model has taken, written when it is saved.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune import disk
from finetune.disk import write_atomically
from finetune.errors import DataError, StoreError
from finetune.metrics.calibration import Logits, probabilities
from finetune.runs.run import NOTES

_LIMITS = {"threshold": 1, "temperature": 1000}  # above 0 and below these


@dataclass(frozen=True)
class DecisionRule:
    """A person's choices for one model; None for a default."""

    threshold: float | None = None  # plain probability from which `positive` is the answer
    temperature: float | None = None  # calibrated probabilities are softmax(logits / temperature)
    positive: str = ""  # name of a class, of two

    def threshold_for(self, labels: Sequence[str]) -> float | None:
        """The threshold, or None unless there are two classes, one of them `positive`."""
        return self.threshold if len(labels) == 2 and self.positive in labels else None


@dataclass(frozen=True)
class PredictOptions:
    """Options for turning logits into an answer."""

    both_orders: bool = False  # average the probabilities of both orders of the sentences
    threshold: bool = True  # use the threshold saved with the model, if there is one
    calibrated: bool = False  # use the temperature saved with the model


def decide(
    logits: Logits,
    labels: Sequence[str],
    rule: DecisionRule,
    options: PredictOptions,
    swapped: Logits | None = None,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return probabilities of shape (pairs, classes), and the answers as class indices of shape
    (pairs,): the most probable class, or the one that the threshold decides.

    Args:
        swapped: logits of the sentences in the other order; None for single sentences.
    """
    temperature = (rule.temperature if options.calibrated else None) or 1.0
    shares = probabilities(logits, temperature)
    if options.both_orders and swapped is not None:
        shares = (shares + probabilities(swapped, temperature)) / np.float32(2)
    level = rule.threshold_for(labels) if options.threshold else None
    if level is None:
        return shares, shares.argmax(axis=1)
    positive = labels.index(rule.positive)
    if temperature != 1:  # the calibrated probability at which the plain one is the threshold
        odds = math.log(level / (1 - level))
        level = 1 / (1 + math.exp(-odds / temperature))
    called = shares[:, positive].astype(np.float64) >= level  # float32 would round the threshold
    return shares, np.where(called, positive, 1 - positive)


def decided_answers(
    logits: Logits, labels: Sequence[str], rule: DecisionRule, swapped: Logits | None = None
) -> NDArray[np.int64]:
    """Return the answers as class indices of shape (pairs,): by the saved threshold if there is
    one, or the most probable class. `swapped` averages both orders."""
    options = PredictOptions(both_orders=swapped is not None)
    return decide(logits, labels, rule, options, swapped)[1]


def read_rule(folder: Path) -> DecisionRule:
    """Read the rule of the model in a folder; the defaults if it cannot be read."""
    notes = _notes(disk.read_json(folder / "config.json"))
    numbers = {name: notes.get(name) for name in _LIMITS}
    usable = {name: value for name, value in numbers.items() if _is_within(value, _LIMITS[name])}
    positive = notes.get("positive")
    return DecisionRule(**usable, positive=positive if isinstance(positive, str) else "")


def _notes(config: dict[str, Any]) -> dict[str, Any]:
    notes = config.get(NOTES)
    return notes if isinstance(notes, dict) else {}


def _is_within(value: Any, limit: float) -> bool:
    return type(value) in (int, float) and 0 < value < limit


def write_rule(folder: Path, **values: Any) -> DecisionRule:
    """Change fields of the rule of the model in a folder; None or "" resets a choice. DataError
    names an invalid value."""
    for name, limit in _LIMITS.items():
        value = values.get(name)
        if value is not None and not 0 < value < limit:
            raise DataError(
                "The {name} is {threshold:g}.",
                "Choose one between 0 and {limit}.",
                name=name,
                threshold=value,
                limit=limit,
            )
    config = disk.read_json(folder / "config.json")
    if not config:
        raise StoreError("This run has no saved model.", "It is there after the first evaluation.")
    rule = replace(read_rule(folder), **values)
    notes = _notes(config) | asdict(rule)
    config.pop(NOTES, None)
    if notes := {name: value for name, value in notes.items() if value not in (None, "")}:
        config[NOTES] = notes
    write_atomically(folder / "config.json", json.dumps(config, indent=2, sort_keys=True) + "\n")
    return rule
