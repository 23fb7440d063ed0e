"""Runs whose evaluations differ by chance alone, so that the best of them is no better."""

from __future__ import annotations

from typing import Any

import numpy as np

from finetune.config import RunConfig
from finetune.evaluation import saved_predictions
from finetune.metrics.catalog import tallied_scores
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.tasks.registry import deciding_metric

EXAMPLES = 200


def picked_run(store: RunStore, evaluations: int, seed: int = 0, **values: Any) -> Run:
    """A finished run of so many evaluations on the same 200 pairs, each right on about 75%."""
    run = store.create(RunConfig(**values))
    run.append(events.Started(device="CPU"))
    run.append(
        events.Prepared(
            train_examples=9, validation_examples=EXAMPLES, steps_per_epoch=evaluations,
            total_steps=evaluations, labels=["no", "yes"], parameters=1, precision="no",
            data={"positive_label": "yes", "rows": {}, "source": "", "revision": "", "splits": {}},
        )
    )  # fmt: skip
    labels = np.random.default_rng(99).integers(0, 2, EXAMPLES)
    draw, best = np.random.default_rng(seed), -np.inf
    metric = deciding_metric(run.config(), run.state().task)
    for step in range(1, evaluations + 1):
        margins = 0.7 + draw.normal(size=EXAMPLES)  # of the true class over the other
        logits = np.zeros((EXAMPLES, 2), np.float32)
        logits[np.arange(EXAMPLES), labels] = margins
        saved_predictions.save_logits(run, step, logits, labels)
        scores = tallied_scores(labels, logits.argmax(axis=1), 2)
        scores["loss"] = float(np.log1p(np.exp(-margins)).mean())
        score = -scores[metric] if metric == "loss" else scores[metric]
        run.append(
            events.Evaluated(
                step=step, epoch=1.0, metrics=scores, seconds=1.0, best=score > best
            )
        )  # fmt: skip
        if score > best:
            best = score
            run.append(events.Saved(step=step))
    run.best.mkdir()
    (run.best / "config.json").write_text("{}")
    run.append(events.Finished(step=evaluations, seconds=1.0))
    return run
