"""Modules of `evaluate` that score a validation split batch by batch, as the course's loop does.

This project's modules lie in `scores/` and load by path. Others come from the Hub or a folder: they
are code, and run as such. Only workers import `evaluate`, because it imports `datasets`.

Source: https://huggingface.co/docs/evaluate
"""

import math
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from numpy.typing import NDArray

from finetune.environment import hub_connection, logs
from finetune.errors import ConfigError, DataError
from finetune.messages import message as _
from finetune.metrics.calibration import Logits, probabilities
from finetune.metrics.catalog import ALL

FOLDER = Path(__file__).parent / "scores"  # for `evaluate.load`, with a metric's name


def import_evaluate() -> ModuleType:
    """Import `evaluate`, but not the pipelines of transformers: only its evaluators need them, and
    they take as long to import as PyTorch."""
    loaded, name = cast(dict[str, ModuleType | None], sys.modules), "transformers.pipelines"
    if name in loaded:
        return import_module("evaluate")
    loaded[name] = None
    try:
        return import_module("evaluate")
    finally:
        del loaded[name]


class ScoreModules:
    """The metrics of a run. It is given logits, and hands each module what that takes: answers
    (`predictions`) or probabilities (`prediction_scores`).

    Args:
        names: of the metrics, folders, and modules of the Hub; the loss is the loop's own.
        classes: the number of classes or labels; 0 for scores.
        positive: of two classes, the index of the one that is meant.
        answer: turns logits into answers; the most probable class by default.
        shares: turns logits into probabilities.

    Raises:
        ConfigError: if a module cannot be loaded.
    """

    def __init__(
        self,
        names: Sequence[str],
        classes: int,
        positive: int = 1,
        answer: Callable[[Logits], NDArray[Any]] = lambda logits: logits.argmax(axis=1),
        shares: Callable[[Logits], Logits] = probabilities,
    ) -> None:
        evaluate = import_evaluate()
        self._answer, self._shares = answer, shares
        modules, options = {}, {"positive": positive, "classes": classes}
        for name in names:
            if name in ALL:
                modules[name] = evaluate.load(str(FOLDER), name, keep_in_memory=True, **options)
                continue
            if not os.path.exists(name) and not hub_connection.hub_is_reachable():
                problem = _("names {name}, a module of the Hub, which does not answer", name=name)
                raise ConfigError({"metrics": problem})
            try:
                modules[name] = evaluate.load(name, keep_in_memory=True)
            except Exception as error:  # other people's code may raise anything
                problem = _(
                    "names {name}, which cannot be loaded: {reason}",
                    name=name,
                    reason=logs.first_line(error),
                )
                raise ConfigError({"metrics": problem}) from error
        self._combined = evaluate.combine(modules)

    def add_batch(self, *, predictions: Logits, references: NDArray[Any]) -> None:
        """Add a batch: logits of shape (examples, outputs), targets of shape (examples, ...)."""
        try:
            self._combined.add_batch(
                predictions=self._answer(predictions),
                references=references,
                prediction_scores=self._shares(predictions),
            )
        except KeyError as error:
            raise DataError(
                "A metric of another module needs {name}, which is not available here.",
                "Remove that metric.",
                name=error,
            ) from error

    def compute(self) -> dict[str, float]:
        """Compute the scores of all batches since the last call, by name. Results that are not
        finite numbers are left out."""
        scores = self._combined.compute()
        return {
            name: float(value)
            for name, value in scores.items()
            if isinstance(value, Real) and math.isfinite(value)
        }
