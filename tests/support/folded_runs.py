"""The runs of a cross-validation with saved answers of a test's own."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from finetune.config import RunConfig
from finetune.evaluation import saved_predictions
from finetune.evaluation.saved_predictions import SwappedLogits
from finetune.runs import events, grids
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import RunSummary

ROWS = 60
NAMES = ["no", "yes"]


def prepared(rows: int) -> events.Prepared:
    return events.Prepared(
        train_examples=ROWS, validation_examples=rows, steps_per_epoch=4, total_steps=8,
        labels=NAMES, parameters=1, precision="no", data={"positive_label": "yes", "rows": {}},
    )  # fmt: skip


def folded(store: RunStore, config: RunConfig, right: float = 0.8) -> list[Run]:
    """Finished runs of the folds, whose last models get about this share of the rows right, and the
    run on all rows, which has not begun."""
    draw, runs = np.random.default_rng(1), []
    rows = np.array_split(np.arange(ROWS), config.folds)
    for planned in grids.plan_runs(config):
        title = grids.BETWEEN.join(("tickets", *planned.member))
        run = store.create(planned.config, group=planned.group, title=title)
        runs.append(run)
        if not planned.config.fold:
            continue
        own = rows[planned.config.fold - 1]
        labels = own % 2
        run.append(events.Started(device="CPU"))
        run.append(prepared(len(own)))
        for step in (4, 8):
            # The earlier model is better, and yet not kept.
            answers = np.where(draw.random(len(own)) < (1.0 if step < 8 else right), labels,
                               1 - labels)  # fmt: skip
            logits = np.zeros((len(own), 2), np.float32)
            logits[np.arange(len(own)), answers] = draw.uniform(1, 3, len(own))
            saved_predictions.save_logits(run, step, logits, labels)
            scores = {"accuracy": float((answers == labels).mean()), "f1": 0.5}
            run.append(
                events.Evaluated(step=step, epoch=1, metrics=scores, seconds=1, best=step == 8)
            )
        given = logits[:: len(own) // 5]
        orders = SwappedLogits(8, np.arange(len(own))[:: len(own) // 5], given, given[:, ::-1])
        saved_predictions.save_swapped_logits(run, orders)
        texts = [[f"{side} {n}" for n in own] for side in ("left", "right")]
        table = pa.table({"sentence1": texts[0], "sentence2": texts[1], "label": labels})
        saved_predictions.save_examples(run, "validation", table)
        measured = {"words": {"f1": 0.5 + planned.config.fold / 100, "examples": len(own)}}
        run.append(events.BaselinesMeasured(baselines=measured))
        run.append(events.Saved(step=8))
        run.append(events.Finished(step=8, seconds=2.0))
    return runs


def finish(run: Run) -> RunSummary:
    """Write what the worker of the run on all rows writes, from the answers of the folds."""
    from finetune.evaluation import cross_validation
    from finetune.metrics import catalog
    from finetune.tasks.registry import task_of

    target = prepared(ROWS).target
    answers = saved_predictions.read_logits(run, 0, target)
    task = task_of(target)
    values = task.plain_answers(answers.logits)
    scores = task.scores(values, answers.labels, target, [*map(catalog.find, ("accuracy", "f1"))])
    run.append(events.Started(device="CPU"))
    run.append(prepared(ROWS))
    folds = cross_validation.read_folds(run)
    run.append(events.BaselinesMeasured(baselines=cross_validation.baselines_over(folds)))
    saved_predictions.save_logits(run, 12, answers.logits, answers.labels)
    run.append(events.Evaluated(step=12, epoch=2, metrics=scores, seconds=1, best=True))
    run.append(events.Saved(step=12))
    cross_validation.keep_orders(run, 12)
    run.best.mkdir()
    (run.best / "config.json").write_text('{"finetune": {"step": 12}}')
    run.append(events.Finished(step=12, seconds=3.0))
    return run.state()
