"""Answers that a file has already, beside the model's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import accuracy_score, cohen_kappa_score

import finetune
from finetune.data.sources import LABELS
from finetune.inference.other_answers import OtherAnswers
from finetune.runs.store import RunStore
from finetune.tasks.base import MULTI_LABEL, REGRESSION, Target
from finetune.tasks.registry import task_of
from tests.support import monitored, toys
from tests.support.judging import write_csv

NAMES = ("no", "yes")


def compared(
    target: Target, answers: Any, columns: dict[str, list[Any]], labels: list[Any] | None = None
) -> dict[str, dict[str, Any]]:
    """The report of columns by name, their rows read in two windows."""
    task = task_of(target)
    others = OtherAnswers(task, target, [*columns])
    values = np.array(answers)
    for part in (slice(0, 13), slice(13, None)):
        records = [
            dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)
        ]
        cells = labels[part] if labels else []
        own, numbers = values[part], [*range(len(values))][part]
        truth, known = task.parse(cells, target) if labels else (own, np.zeros(len(own), bool))
        hashes = np.array([numbers, numbers])
        others.add(records[part], numbers, own, truth, known, cells, hashes)
    return {one.pop("column"): one for one in others.report()}


def test_columns_of_answers_are_compared_and_the_labels_say_who_is_right() -> None:
    draw = np.random.default_rng(0)
    truth = draw.integers(0, 2, 60)
    ours, theirs = (np.where(draw.random(60) < right, truth, 1 - truth) for right in (0.9, 0.7))
    spelled = [NAMES[one].upper() for one in theirs]
    spelled[5] = ""  # not answered
    columns = {"gpt": spelled, "id": [*range(60)], "flag": [*theirs], "city": ["no where"] * 60,
               "always": ["yes"] * 60, "none": [None] * 60}  # fmt: skip
    found = compared(Target(NAMES), ours, columns, [NAMES[one] for one in truth])
    assert [*found] == ["gpt"]
    (gpt,), kept = found.values(), np.arange(60) != 5
    assert gpt["rows"] == gpt["labelled"] == 59
    a, b, c = ours[kept], theirs[kept], truth[kept]
    assert gpt["agreement"]["equal"][0] == accuracy_score(a, b)
    value, low, high = gpt["agreement"]["kappa"]
    assert value == pytest.approx(cohen_kappa_score(a, b))
    assert low < value < high
    only = int(((a == c) & (b != c)).sum()), int(((b == c) & (a != c)).sum())
    p = binomtest(only[0], sum(only)).pvalue
    assert gpt["right"] == {"first": only[0], "second": only[1], "neither": 0, "p": p}
    assert gpt["scores"]["accuracy"] == [accuracy_score(c, a), accuracy_score(c, b)]
    assert gpt["difference"]["accuracy"][0] == pytest.approx((a == c).mean() - (b == c).mean())
    assert gpt["differ"] == np.flatnonzero(kept & (ours != theirs)).tolist()
    # Numbers of classes count if the labels are numbers.
    answers, columns = [0, 1] * 20, {"second": ["1", "1", "0", "1"] * 10}
    assert compared(Target(NAMES), answers, columns) == {}
    assert [*compared(Target(NAMES), answers, columns, ["0", "1"] * 20)] == ["second"]
    assert [*compared(Target(("0", "1")), answers, columns)] == ["second"]


def test_scores_and_sets_of_labels_are_compared_as_such() -> None:
    target = Target((), task=REGRESSION, low=0, high=5)
    scores = np.linspace(0, 5, 40, dtype=np.float32)
    columns = {"person": [f"{one / 2 + 1:.2f}" for one in scores], "year": [*range(1990, 2030)]}
    found = compared(target, scores, columns, [f"{one:.2f}" for one in scores])
    assert [*found] == ["person"]
    person = found["person"]
    assert person["agreement"]["pearson"][0] == pytest.approx(1, abs=0.001)
    assert person["agreement"]["difference"][0] == pytest.approx(-0.25, abs=0.01)
    assert person["difference"]["mae"][0] < 0
    assert "right" not in person
    several = Target(("a", "b"), task=MULTI_LABEL)
    sets = np.array([[1, 0], [1, 1], [0, 0], [0, 1]] * 10)
    found = compared(several, sets, {"other": ["a", "a;b", "a", "b"] * 10})
    assert found["other"]["agreement"]["equal"][0] == 0.75
    assert {"kappa a", "kappa b"} < {*found["other"]["agreement"]}
    columns = {"some": [*["a", "b"] * 6, *[""] * 28], "notes": [*["so so"] * 9, "a", *[" "] * 30]}
    found = compared(several, sets, columns)
    assert [(name, of["rows"]) for name, of in found.items()] == [("some", 12)]


def test_a_files_other_answers_are_in_its_report(
    store: RunStore, toy_checkpoint: Path, tmp_path: Path
) -> None:
    run = toys.finished_run(store, toy_checkpoint)
    pairs = [
        (*texts, LABELS[label], LABELS[n % 2])
        for n, (*texts, label) in enumerate(monitored.rows(40, 1))
    ]
    file = tmp_path / "x.csv"
    write_csv(file, [(*monitored.HEAD, "gpt"), *pairs])
    (other,) = finetune.compare_answers(run, file)
    assert (other["column"], other["rows"], other["labelled"]) == ("gpt", 40, 40)
