"""How a model's logits become an answer: the most probable class, or a threshold a person chose;
plain probabilities, or calibrated ones.

Kept with the model, under the key `finetune` of its `config.json`, which other programs ignore:

    "finetune": {"threshold": 0.43, "temperature": 1.31, "step": 400}

`threshold`: of two classes the positive one is the answer when softmax(logits)[positive] reaches
it. `temperature`: calibrated probabilities are softmax(logits / temperature); it changes no
answer, and the threshold is of the plain probability. `step`: optimizer steps the model has taken,
written when it is saved (`model.save`), not chosen. Knows no torch and no page.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from finetune import json_files
from finetune.disk import write_atomically
from finetune.errors import DataError, StoreError
from finetune.runs.run import NOTES

KEY = NOTES


@dataclass(frozen=True)
class DecisionRule:
    """What was chosen for one model; None where nothing was.

    Args:
        threshold: of the positive class' plain probability, above 0 and below 1.
        temperature: above 0; more than 1 makes a model less sure.
        positive: the class that the threshold is about, by name.
    """

    threshold: float | None = None
    temperature: float | None = None
    positive: str = ""

    def check(self) -> DecisionRule:
        """This decision, if it can be used.

        Raises:
            DataError: naming the value that cannot.
        """
        if self.threshold is not None and not 0 < self.threshold < 1:
            raise DataError(f"The threshold is {self.threshold:g}.", "Choose one between 0 and 1.")
        if self.temperature is not None and not 0 < self.temperature < 1000:
            raise DataError(f"The temperature is {self.temperature:g}.", "Fit it anew.")
        return self


def rescale_threshold(threshold: float, temperature: float) -> float:
    """The threshold of the calibrated probability that means the same as one of the plain."""
    return 1 / (1 + math.exp(-math.log(threshold / (1 - threshold)) / temperature))


def read_rule(folder: Path) -> DecisionRule:
    """What was chosen for the model in a folder; nothing where it cannot be read."""
    found = json_files.read(folder / "config.json").get(KEY)
    if not isinstance(found, dict):
        return DecisionRule()
    positive = found.get("positive")
    return DecisionRule(
        _number(found.get("threshold")),
        _number(found.get("temperature")),
        positive if isinstance(positive, str) else "",
    )


def write_rule(folder: Path, **values: Any) -> DecisionRule:
    """Change what was chosen for the model in a folder.

    Raises:
        DataError: as `Decision.check`.
        StoreError: when there is no model or its folder cannot be written.
    """
    changed = replace(read_rule(folder), **values).check()
    known = json_files.read(folder / "config.json")
    if not known:
        raise StoreError("This run has no saved model.", "It is there after the first evaluation.")
    chosen = {name: value for name, value in asdict(changed).items() if value not in (None, "")}
    if isinstance(before := known.pop(KEY, None), dict) and "step" in before:
        chosen["step"] = before["step"]
    if chosen:
        known[KEY] = chosen
    write_atomically(folder / "config.json", json.dumps(known, indent=2, sort_keys=True) + "\n")
    return changed


def _number(value: object) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if good and value > 0 else None  # type: ignore[arg-type, operator]
