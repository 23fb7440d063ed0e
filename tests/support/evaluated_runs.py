"""Finished runs of the toy with an evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from finetune.config import RunConfig
from finetune.evaluation import saved_predictions
from finetune.runs import events
from finetune.runs.run import Run
from finetune.ui.tabs.evaluate import Evaluation
from tests.support import toys
from tests.support.browser import App

LABELS = ["not_equivalent", "equivalent"]


FILTERS: dict[str, Any] = {
    "which": "all", "label": "", "search": "", "page": 0,
}  # fmt: skip


def evaluated(
    app: App | Evaluation, checkpoint: Path, seed: int, skill: float, scale: float = 1.0
) -> Run:
    """A finished run whose model is the toy, with saved logits of its own; their `scale` makes it
    too sure of itself."""
    run = app.store.create(RunConfig(checkpoint=str(checkpoint), max_length=32, seed=seed))
    rows = toys.rows(60, seed=3)
    truth = np.array([label for _, _, label in rows])
    run.append(events.Started(device="CPU"))
    run.append(
        events.Prepared(
            train_examples=64, validation_examples=60, steps_per_epoch=8, total_steps=16,
            labels=LABELS, parameters=1000, precision="no",
            majority={"accuracy": 0.6, "f1": 0.75},
            data={"positive_label": "equivalent",
                  "rows": {"train": 64, "validation": 60, "test": 8}},
        )
    )  # fmt: skip
    draw = np.random.default_rng(seed)
    for step in (8, 16):
        logits = draw.normal(0, 1, (60, 2)).astype(np.float32)
        logits[np.arange(60), truth] += skill * step / 16
        logits *= scale
        logits[5] = [9, 0] if truth[5] else [0, 9]  # surely wrong, each time
        saved_predictions.save_logits(run, step, logits, truth)
        run.append(
            events.Evaluated(
                step=step, epoch=step / 8, seconds=0.1, best=True,
                metrics={"accuracy": 0.8, "f1": 0.85}, intervals={"f1": [0.8, 0.9]},
            )
        )  # fmt: skip
        run.append(events.Saved(step=step))
    run.append(events.BaselinesMeasured(baselines={"TF-IDF + linear model": {"f1": 0.7}}))
    run.append(events.Finished(step=16, seconds=3.0))
    columns = ("sentence1", "sentence2", "label")
    table = pa.table(dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True)))
    saved_predictions.save_examples(run, "validation", table)
    toys.copy_model(checkpoint, run.best)
    return run
