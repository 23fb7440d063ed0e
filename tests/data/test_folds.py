"""The folds of a cross-validation: every row is held out once, and no sentence is in two."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finetune.config import RunConfig
from finetune.data import checks
from finetune.data.validation_cut import cut_folds
from finetune.errors import ConfigError, DataError
from tests.data.test_validation_cut import hashes
from tests.support.uploads import Row, pairs, some, texts, upload


def linked_rows(labels: list[object]) -> list[Row]:
    """Make rows of which many share a question with others."""
    draw = np.random.default_rng(3)
    return [
        (f"question {draw.integers(70)}" if n % 3 else f"alone {n}", f"answer {n}", label)
        for n, label in enumerate(labels)
    ]


LABELS = {
    "classes": [("no", "yes", "no")[n % 3] for n in range(120)],
    "scores": [n % 11 / 2 for n in range(120)],
    "labels": [("red;blue", "blue", "red;green")[n % 3] for n in range(120)],
}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_every_row_is_held_out_once_and_no_sentence_is_in_two_folds(
    tmp_path: Path, labels: list[object]
) -> None:
    """Those of a validation file too; the test file stays apart."""
    rows = linked_rows(labels)
    sealed = [(f"sealed {n}", f"sealed too {n}", label) for n, label in enumerate(labels[:9])]
    given = {"train": rows[:90], "validation": rows[90:], "test": sealed}
    last = pairs(tmp_path, **given, folds=4)  # type: ignore[arg-type]
    held_out: list[tuple[str, str]] = []
    sides: list[set[str]] = []
    for fold in range(1, 5):
        loaded = pairs(tmp_path, **given, folds=4, fold=fold)  # type: ignore[arg-type]
        assert loaded.target == last.target
        train, own = (texts(loaded.splits[name]) for name in ("train", "validation"))
        assert not {text for pair in train for text in pair} & {t for pair in own for t in pair}
        assert sorted(train + own) == sorted(row[:2] for row in rows)
        held_out += own
        sides.append({text for pair in own for text in pair})
        assert 20 <= len(own) <= 40
    assert max(Counter(text for side in sides for text in side).values()) == 1
    assert sorted(held_out) == sorted(row[:2] for row in rows)
    # The run on all rows has them as the others have answered them.
    assert texts(last.splits["validation"]) == held_out
    assert sorted(texts(last.splits["train"])) == sorted(held_out)
    assert len(last.splits["test"]) == 9


def test_classes_are_spread_over_the_folds_as_evenly_as_groups_allow() -> None:
    draw = np.random.default_rng(0)
    rows = [(group, 1000 * group + n, int(draw.random() < 0.2)) for group in range(150) for n in
            range(1 + group % 4)]  # fmt: skip
    keys = hashes(rows)
    share = keys.label.sum() / 5
    for seed in range(5):
        fold = cut_folds(keys, keys.label, 5, seed)
        positive = np.bincount(fold, weights=keys.label, minlength=6)[1:]
        assert np.abs(positive - share).max() <= 2
        assert np.abs(np.bincount(fold)[1:] - len(rows) / 5).max() <= 4
    again = cut_folds(keys, keys.label, 5, 4)
    assert again.tolist() == fold.tolist()
    assert cut_folds(keys, keys.label, 5, 3).tolist() != fold.tolist()


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (some(4), "there are 4. Set folds to 0"),
        ([*some(40), ("z", "y", 2)], "2 has 1. Set folds to 0, or leave the class out"),
        (
            [*some(40), *((f"z{n}", f"y{n}", 2) for n in range(3))],
            "2 has 3. Set folds to 3 at most",
        ),
        ([("one question", f"answer {n}", n % 2) for n in range(30)] + some(20), "60% of the rows"),
    ],
)
def test_folds_that_cannot_be_cut_are_refused_before_training(
    tmp_path: Path, rows: list[Row], problem: str
) -> None:
    values: dict[str, Any] = {"folds": 5, "rare_classes": "keep", "checkpoint": str(tmp_path)}
    with pytest.raises(DataError, match=problem):
        pairs(tmp_path, train=rows, **values)
    config = RunConfig(dataset=upload(tmp_path, "sentence1,sentence2,label", rows, (), ()))
    report = checks.check_pairs(config.changed(**values), tmp_path)
    (finding,) = report.blocked
    assert problem in f"{finding.title} {finding.action}"
    assert [(remedy.field, remedy.value) for remedy in finding.remedies] == [("folds", "")]


def test_the_check_speaks_of_all_rows_and_of_the_files_that_they_are_in(tmp_path: Path) -> None:
    rows = some(60)
    odd = [("left 3", "right 3", 0), ("left 4", "right 4", 0), ("left 5", "right 5", 1)]
    name = upload(tmp_path, "sentence1,sentence2,label", rows, odd, some(3))
    config = RunConfig(dataset=name, folds=3, checkpoint=str(tmp_path))
    report = checks.check_pairs(config, tmp_path)
    one = checks.check_pairs(config.changed(fold=2), tmp_path)
    assert (one.splits, one.fingerprint) == (report.splits, report.fingerprint)
    found = {finding.kind: finding for finding in report.findings}
    assert {split.name: split.rows for split in report.splits} == {
        "train": 63, "validation": 63, "test": 3,
    }  # fmt: skip
    assert found["conflicts"].rows == {"train": [5], "validation": [2]}
    assert found["duplicates"].rows == {"validation": [2, 3, 4]}
    assert found["leakage"].rows == {"train": [2, 3, 4]}
    left = pairs(tmp_path, train=rows, validation=odd, test=some(3), folds=3, drop_leaked=True)
    assert left.facts["rows"] == {"train": 60, "validation": 60, "test": 3}


@pytest.mark.parametrize(
    "values",
    [
        {"folds": 1}, {"folds": 11}, {"fold": 1}, {"folds": 3, "fold": 4},
        {"folds": 3, "early_stopping_patience": 2}, {"folds": 3, "max_eval_samples": 50},
        {"folds": 3, "lr_scheduler_type": "reduce_lr_on_plateau"},
    ],
)  # fmt: skip
def test_folds_that_mean_nothing_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="fold"):
        RunConfig(**values)  # type: ignore[arg-type]
