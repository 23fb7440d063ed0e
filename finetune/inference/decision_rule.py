"""Reads and writes what a person chose for a model: its `DecisionRule`.

It is stored in the `config.json` beside the model's weights, under a key that other programs
ignore:

    "finetune": {"threshold": 0.43, "positive": "equivalent", "temperature": 1.31, "step": 400}

`step`: optimizer steps the model has taken, written when it is saved, as is the `margin` of a
score. Several labels have `thresholds` by their names.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from finetune import disk
from finetune.disk import write_atomically
from finetune.errors import DataError, StoreError
from finetune.runs.run import NOTES
from finetune.tasks.base import DecisionRule

# Above 0 and below these.
_LIMITS = {"threshold": 1, "temperature": 1000, "margin": float("inf")}


def read_rule(folder: Path) -> DecisionRule:
    """Read the rule of the model in a folder; the defaults if it cannot be read."""
    notes = _notes(disk.read_json(folder / "config.json"))
    usable = {
        name: notes[name]
        for name, limit in _LIMITS.items()
        if type(notes.get(name)) in (int, float) and 0 < notes[name] < limit
    }
    positive, thresholds = notes.get("positive"), notes.get("thresholds")
    levels = thresholds.items() if isinstance(thresholds, dict) else ()
    return DecisionRule(
        **usable,
        positive=positive if isinstance(positive, str) else "",
        thresholds=tuple(
            (name, level) for name, level in levels if isinstance(level, float) and 0 < level < 1
        ),
    )


def _notes(config: dict[str, Any]) -> dict[str, Any]:
    notes = config.get(NOTES)
    return notes if isinstance(notes, dict) else {}


def write_rule(folder: Path, **values: Any) -> DecisionRule:
    """Change fields of the rule of the model in a folder; None or "" resets a choice. DataError
    names an invalid value."""
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
    rule = replace(read_rule(folder), **values)
    notes = _notes(config) | asdict(rule) | {"thresholds": dict(rule.thresholds)}
    config.pop(NOTES, None)
    if notes := {name: value for name, value in notes.items() if value not in (None, "", {})}:
        config[NOTES] = notes
    write_atomically(folder / "config.json", json.dumps(config, indent=2, sort_keys=True) + "\n")
    return rule
