"""Runs with saved logits of a test's own."""

from __future__ import annotations

import numpy as np

from finetune.config import RunConfig
from finetune.evaluation import saved_predictions
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import RunSummary


def sure(answers: list[int], classes: int = 2, by: float = 2.0) -> np.ndarray:
    logits = np.zeros((len(answers), classes), np.float32)
    logits[np.arange(len(answers)), answers] = by
    return logits


def evaluated(store: RunStore, steps: dict[int, np.ndarray], labels: list[int], best: int,
              names: tuple[str, ...] = ("no", "yes")) -> tuple[Run, RunSummary]:  # fmt: skip
    """A run with the saved logits of some evaluations."""
    run = store.create(RunConfig())
    run.append(events.Started(device="CPU"))
    run.append(
        events.Prepared(
            train_examples=9, validation_examples=len(labels), steps_per_epoch=1, total_steps=9,
            labels=list(names), parameters=1, precision="no",
            data={"positive_label": names[-1], "rows": {}},
        )
    )  # fmt: skip
    for step, logits in steps.items():
        saved_predictions.save_logits(run, step, logits, np.array(labels))
        scores = {"accuracy": 0.5, "f1": 0.5}
        run.append(
            events.Evaluated(step=step, epoch=1.0, metrics=scores, seconds=1, best=step <= best)
        )
    return run, run.state()
