"""Runs whose events and answers a test lays down by hand, and files to compare with them."""

import random

import numpy as np
import pyarrow as pa

from finetune.config import RunConfig
from finetune.data.sources import LABELS
from finetune.evaluation import cross_validation, saved_predictions
from finetune.evaluation.saved_predictions import SwappedLogits
from finetune.metrics import catalog
from finetune.runs import events, grids
from finetune.tasks.registry import task_of
from tests.support import toys
from tests.support.uploads import write_csv

HEAD = ("sentence1", "sentence2", "label")
FILTERS = {"which": "all", "label": "", "search": "", "page": 0}


def prepared(rows, names=("no", "yes"), **values):
    """What a run of these classes says before its first step."""
    known = {
        "train_examples": 64, "validation_examples": rows, "steps_per_epoch": 4, "total_steps": 8,
        "labels": list(names), "parameters": 1000, "precision": "no",
        "data": {"positive_label": names[-1], "rows": {}},
    }  # fmt: skip
    return events.Prepared(**known | values)


def add_scores(run, step, logits, labels, best=True, scores=None):
    """Append an evaluation, whose logits are saved."""
    saved_predictions.save_logits(run, step, logits.astype(np.float32), np.array(labels))
    scores = scores or {"accuracy": 0.5, "f1": 0.5}
    run.append(events.Evaluated(step=step, epoch=1, metrics=scores, seconds=1, best=best))


def keep_rows(run, *columns):
    """Keep the rows that the logits are of."""
    table = pa.table(dict(zip(HEAD, map(list, columns), strict=True)))
    saved_predictions.save_examples(run, "validation", table)


def evaluated(store, checkpoint, seed, skill, scale=1.0):
    """A finished run whose model is the toy, with saved logits of its own; their `scale` makes it
    too sure of itself."""
    run = store.create(RunConfig(checkpoint=str(checkpoint), max_length=32, seed=seed))
    rows = toys.rows(60, seed=3)
    truth = np.array([label for _, _, label in rows])
    run.append(events.Started(device="CPU"))
    data = {"positive_label": "equivalent", "rows": {"train": 64, "validation": 60, "test": 8}}
    majority = {"accuracy": 0.6, "f1": 0.75}
    known = {"steps_per_epoch": 8, "total_steps": 16, "majority": majority, "data": data}
    run.append(prepared(60, tuple(LABELS), **known))
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
    run.append(events.BaselinesMeasured(baselines={"counting words (TF-IDF)": {"f1": 0.7}}))
    run.append(events.Finished(step=16, seconds=3.0))
    keep_rows(run, *zip(*rows, strict=True))
    toys.copy_model(checkpoint, run.best)
    return run


def sure(answers, classes=2, by=2.0):
    logits = np.zeros((len(answers), classes), np.float32)
    logits[np.arange(len(answers)), answers] = by
    return logits


def scored(store, steps, labels, best, names=("no", "yes")):
    """A run with the saved logits of some evaluations."""
    run = store.create(RunConfig())
    run.append(events.Started(device="CPU"))
    run.append(prepared(len(labels), names, steps_per_epoch=1, total_steps=9))
    for step, logits in steps.items():
        add_scores(run, step, logits, labels, step <= best)
    return run, run.state()


ROWS = 60  # of a cross-validation


def folded(store, config, right=0.8):
    """Finished runs of the folds of a cross-validation, whose last models get about this share of
    the rows right, and the run on all rows, which has not begun."""
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
            scores = {"accuracy": float((answers == labels).mean()), "f1": 0.5}
            add_scores(run, step, logits, labels, step == 8, scores)
        given = logits[:: len(own) // 5]
        orders = SwappedLogits(8, np.arange(len(own))[:: len(own) // 5], given, given[:, ::-1])
        saved_predictions.save_swapped_logits(run, orders)
        keep_rows(run, *([f"{side} {n}" for n in own] for side in ("left", "right")), labels)
        measured = {"words": {"f1": 0.5 + planned.config.fold / 100, "examples": len(own)}}
        run.append(events.BaselinesMeasured(baselines=measured))
        run.append(events.Saved(step=8))
        run.append(events.Finished(step=8, seconds=2.0))
    return runs


def finish(run):
    """Write what the worker of the run on all rows writes, from the answers of the folds."""
    target = prepared(ROWS).target
    answers = saved_predictions.read_logits(run, 0, target)
    task = task_of(target)
    values = task.plain_answers(answers.logits)
    scores = task.scores(values, answers.labels, target, [*map(catalog.find, ("accuracy", "f1"))])
    run.append(events.Started(device="CPU"))
    run.append(prepared(ROWS))
    folds = cross_validation.read_folds(run)
    run.append(events.BaselinesMeasured(baselines=cross_validation.baselines_over(folds)))
    add_scores(run, 12, answers.logits, answers.labels, scores=scores)
    run.append(events.Saved(step=12))
    cross_validation.keep_orders(run, 12)
    run.best.mkdir()
    (run.best / "config.json").write_text('{"finetune": {"step": 12}}')
    run.append(events.Finished(step=12, seconds=3.0))
    return run.state()


Rows = list[tuple[str, str, int]]


def new_rows(count, seed, words="", long=0):
    """Pairs that share no sentence, with further words and letters."""
    draw = random.Random(seed)
    pairs = []
    for _ in range(count):
        first, second = draw.sample(toys.ANIMALS, 2)
        name = f"{words} {draw.randrange(10**6)} {'a ' * draw.randint(0, 5 + long)}"
        texts = f"the {first} {name} sees a {second} .", f"a {first} {name} hears the {second} ."
        pairs.append((*texts, draw.randint(0, 1)))
    return pairs


def monitored_run(store, checkpoint, count=200):
    """A finished run of the toy that kept so many validation pairs."""
    run = toys.finished_run(store, checkpoint)
    keep_rows(run, *zip(*new_rows(count, 1), strict=True))
    return run


def write_rows(path, pairs, labelled=False):
    lines = [(*texts, LABELS[label]) for *texts, label in pairs]
    return write_csv(
        path, [HEAD, *lines] if labelled else [HEAD[:2], *(line[:2] for line in lines)]
    )
