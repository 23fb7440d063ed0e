"""A cross-validation: the answers for all rows, by models that had not seen them."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from finetune.config import RunConfig
from finetune.errors import DataError
from finetune.evaluation import cross_validation, picking, report
from finetune.jobs import scheduler
from finetune.runs import events, pair_index
from finetune.runs.queue import Queue
from finetune.runs.store import RunStore
from tests.support import stand_in
from tests.support.folded_runs import ROWS, finish, folded, prepared

CONFIG = RunConfig(folds=4)


def test_the_answers_of_the_folds_are_the_evaluation_of_the_run_on_all_rows(
    store: RunStore,
) -> None:
    *others, run = folded(store, CONFIG)
    cross_validation.gather(run, store.runs())
    for other in others:
        store.delete(other)
    evaluation = report.evaluate_run(run, finish(run))
    analysis = evaluation.analysis
    assert analysis.examples == ROWS
    assert analysis.folds == 4
    assert evaluation.table is not None
    assert evaluation.table.column("sentence1").to_pylist() == [f"left {n}" for n in range(ROWS)]
    # The models' last answers, not their best ones, which were all right.
    wrong = int((~evaluation.right).sum())
    assert 4 <= wrong <= 22
    assert analysis.scores["accuracy"].value == pytest.approx(1 - wrong / ROWS)
    assert set(evaluation.suspected_labels) <= set(np.flatnonzero(~evaluation.right))
    assert analysis.order is not None
    assert analysis.order.flips == analysis.order.pairs >= 20
    assert max(analysis.order.worst) > 45
    assert run.state().baselines["words"] == pytest.approx({"f1": 0.525, "examples": ROWS})
    assert analysis.details.fitted is not None
    assert analysis.slices


def test_no_selection_bias_is_taken_from_models_that_were_not_picked(store: RunStore) -> None:
    fold, *_ = folded(store, CONFIG)
    assert picking.run_picking(fold, fold.state()) is None
    assert report.evaluate_run(fold, fold.state()).analysis.expected == {}


def test_answers_are_refused_if_rows_have_changed_or_folds_are_missing(store: RunStore) -> None:
    first, *_, run = folded(store, CONFIG)
    target = prepared(ROWS).target
    texts = ([f"{side} {n}" for n in range(ROWS)] for side in ("left", "right"))
    hashes = pair_index.pair_hashes(*texts)
    with pytest.raises(DataError, match="have not finished"):
        cross_validation.out_of_fold(run, target, hashes)
    first.append(events.Resumed(step=4))
    with pytest.raises(DataError, match="4 folds; these have not finished: 1"):
        cross_validation.gather(run, store.runs())
    first.append(events.Saved(step=8))
    first.append(events.Evaluated(step=8, epoch=1, metrics={"f1": 0.5}, seconds=1, best=True))
    first.append(events.Finished(step=8, seconds=2.0))
    cross_validation.gather(run, store.runs())
    answers = cross_validation.out_of_fold(run, target, hashes)
    assert answers.labels.tolist() == [n % 2 for n in range(ROWS)]
    with pytest.raises(DataError, match="data has changed"):
        cross_validation.out_of_fold(run, target, hashes[::-1])


def test_the_run_on_all_rows_waits_for_its_folds_and_for_no_others(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in.use(monkeypatch)
    started: list[str] = []
    monkeypatch.setattr(scheduler, "_start", lambda _, run, __: started.append(run.title()))
    first, *_, run = folded(store, CONFIG)
    queue = Queue(store.root)
    queue.add(run.id)
    queue.add(first.id)
    scheduler.dispatch_queue(store)
    assert started == ["tickets fold 1"]
    queue.remove(first.id)
    scheduler.dispatch_queue(store)
    assert started[1:] == ["tickets all rows"]
    assert len(cross_validation.read_folds(run)) == 4
    # One whose fold has ended too early says which.
    *others, late = folded(store, CONFIG)
    shutil.rmtree(others[2].folder)
    queue.remove(run.id)
    queue.add(late.id)
    scheduler.dispatch_queue(store)
    state = late.state()
    assert (state.status, "finished: 3" in state.error) == ("failed", True)
    assert "Resume" in state.remedy
    assert late.id not in queue.waiting()
