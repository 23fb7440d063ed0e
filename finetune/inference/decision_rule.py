"""Reads, writes and applies what a person chose for a model: its `DecisionRule`.

It is stored in the `config.json` beside the model's weights, under a key that other programs
ignore:

    "finetune": {"threshold": 0.43, "positive": "equivalent", "temperature": 1.31, "step": 400}

`step`: optimizer steps the model has taken, written when it is saved, as is the `margin` of a
score. Several labels have `thresholds` by their names. `sure` has the fields of a `SureRule`.
"""

import contextlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from finetune import disk
from finetune.errors import DataError, StoreError
from finetune.metrics.calibration import Logits
from finetune.runs.run import NOTES, read_notes
from finetune.tasks.base import DecisionRule, PredictOptions, SureRule, Target
from finetune.tasks.registry import task_of

# Above 0 and below these.
_LIMITS = {"threshold": 1, "temperature": 1000, "margin": float("inf")}


def read_rule(folder: Path) -> DecisionRule:
    """Read the rule of the model in a folder; the defaults if it cannot be read."""
    notes = read_notes(folder)
    usable = {
        name: notes[name]
        for name, limit in _LIMITS.items()
        if type(notes.get(name)) in (int, float) and 0 < notes[name] < limit
    }
    positive = notes.get("positive")
    sure = None
    with contextlib.suppress(KeyError, AttributeError, ValueError):
        kept = notes["sure"]
        levels = {"classes": _levels(kept.get("classes"))}
        sure = TypeAdapter(SureRule).validate_python({**kept, **levels})
    return DecisionRule(
        **usable,
        positive=positive if isinstance(positive, str) else "",
        thresholds=tuple((name, at) for name, at in _levels(notes.get("thresholds")) if 0 < at < 1),
        sure=sure,
    )


def _levels(named: Any) -> tuple[tuple[str, float], ...]:
    items = named.items() if isinstance(named, dict) else ()
    return tuple((name, level) for name, level in items if isinstance(level, float))


def write_rule(folder: Path, **values: Any) -> DecisionRule:
    """Change fields of the rule of the model in a folder; None or "" resets a choice. DataError
    names an invalid value.

    A threshold changes the answers, so that the bound of `sure` is forgotten with it.
    """
    for name, limit in _LIMITS.items():
        value = values.get(name)
        if value is not None and not 0 < value < limit:
            raise DataError(
                "The {name} {value:g} is out of range.",
                "Choose one between 0 and {limit}.",
                name=name,
                value=value,
                limit=limit,
            )
    config = disk.read_json(folder / "config.json")
    if not config:
        raise StoreError("This run has no saved model.", "One is saved at the first evaluation.")
    before = read_rule(folder)
    rule = replace(before, **values)
    if "sure" not in values and deciding(rule) != deciding(before):
        rule = replace(rule, sure=None)
    notes = read_notes(folder) | asdict(rule) | {"thresholds": dict(rule.thresholds)}
    if rule.sure:
        notes["sure"] |= {"classes": dict(rule.sure.classes)}
    config.pop(NOTES, None)
    if notes := {name: value for name, value in notes.items() if value not in (None, "", {})}:
        config[NOTES] = notes
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    disk.write_atomically(folder / "config.json", text)
    return rule


def deciding(rule: DecisionRule) -> tuple[Any, ...]:
    """Return the parts of a rule that change an answer."""
    return rule.threshold, rule.threshold and rule.positive, rule.thresholds


def is_bounded(target: Target, rule: DecisionRule, options: PredictOptions, orders: int) -> bool:
    """True if a bound is kept with the model that is one of answers of these options: in the given
    order, at the saved threshold. A temperature does not matter. `orders`: in how many the
    sentences are read, if `options` ask for both."""
    thresholds = rule.threshold_for(target.names), *rule.thresholds
    in_order = not options.both_orders or orders < 2
    return rule.sure is not None and in_order and (options.threshold or not any(thresholds))


def sure_answers(
    logits: Logits,
    target: Target,
    rule: DecisionRule,
    options: PredictOptions,
    swapped: Logits | None = None,
) -> NDArray[np.bool_] | None:
    """Return which answers are given, and not "unsure", shape (pairs,); None unless `is_bounded`.
    `logits` and `swapped` are those of a task's `answers`."""
    sure = rule.sure
    if sure is None or not is_bounded(target, rule, options, 1 if swapped is None else 2):
        return None
    answers = task_of(target).answers(logits, target, rule)
    level: Any = sure.above
    if sure.classes:
        own = dict(sure.classes)
        level = np.array([own.get(name, sure.above) for name in target.names])[answers.values]
    return np.asarray(answers.probability_of(answers.values).astype(np.float64) > level)
