"""Several labels: splits are cut, answers have thresholds, other files are read."""

from __future__ import annotations

from pathlib import Path

import datasets
import numpy as np
import pytest

from finetune.config import RunConfig
from finetune.data import splits
from finetune.tasks.base import MULTI_LABEL, DecisionRule, PredictOptions, Target
from finetune.tasks.multi_label import MultiLabel
from tests.support import uploads
from tests.support.graded import LABELS, labelled_rows
from tests.support.hub import LoopbackHub

HEAD = "text,labels"
TARGET = Target(("a", "b"), task=MULTI_LABEL)


def test_a_cut_split_keeps_each_labels_share(tmp_path: Path) -> None:
    draw, names = np.random.default_rng(0), np.array(["w", "x", "y", "z"])
    marked = draw.random((1000, 4)) < [0.5, 0.3, 0.1, 0.02]
    rows = [(f"text {n}", ";".join(names[marks])) for n, marks in enumerate(marked)]
    cut = uploads.pairs(tmp_path, HEAD, train=rows, task=MULTI_LABEL)
    counts = np.array([cut.counts["train"], cut.counts["validation"]])
    assert 90 <= len(cut.splits["validation"]) <= 110
    expected = counts.sum(axis=0) / 10
    assert np.abs(counts[1] - expected).max() <= 3
    assert counts[1][3] >= 1


def test_each_label_has_its_threshold() -> None:
    task, logits = MultiLabel(), np.array([[2.0, -1.0], [-2.0, -3.0]], np.float32)
    plain = task.answers(logits, TARGET)
    assert plain.values.tolist() == [[1, 0], [0, 0]]
    assert task.spell(plain.values, TARGET) == ["a", ""]
    rule = DecisionRule(thresholds=(("b", 0.2),))
    kept = task.answers(logits, TARGET, rule)
    assert kept.values.tolist() == [[1, 1], [0, 0]]
    without = task.answers(logits, TARGET, rule, PredictOptions(threshold=False))
    assert without.values.tolist() == plain.values.tolist()
    both = task.answers(logits, TARGET, swapped=-logits)
    assert both.probabilities == pytest.approx(np.full((2, 2), 0.5))
    chance = plain.probability_of(plain.values)
    assert chance == pytest.approx(
        [0.8808 * 0.7311, 0.8808 * 0.9526], abs=1e-4
    )  # of both labels, given and not given


def test_cells_of_another_file_may_have_other_marks() -> None:
    names = ("a", "b", "c, d")
    cells = ["a|b", "b;c, d", '["a", "c, d"]', "['b']", "c, d", "a, b", "a;x", "[]"]
    targets, known = MultiLabel().parse(cells, Target(names, task=MULTI_LABEL))
    assert known.tolist() == [True] * 6 + [False, True]
    assert targets[known].tolist() == [
        [1, 1, 0], [0, 1, 1], [1, 0, 1], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 0, 0],
    ]  # fmt: skip


def test_lists_of_a_hub_dataset_are_labels(tmp_path: Path, hub: LoopbackHub) -> None:
    kinds = datasets.List(datasets.ClassLabel(names=LABELS))
    features = datasets.Features({"text": datasets.Value("string"), "labels": kinds})
    rows = [{"text": text, "labels": [*filter(None, labels.split(";"))]} for text, labels in
            labelled_rows(60)]  # fmt: skip
    datasets.Dataset.from_list(rows, features=features).to_parquet(tmp_path / "train.parquet")
    files = {"train.parquet": (tmp_path / "train.parquet").read_bytes()}
    hub.add_repo("ada/stories", "dataset", files)
    loaded = splits.load_pairs(RunConfig(dataset="ada/stories"), tmp_path)
    assert loaded.target.task == MULTI_LABEL
    assert list(loaded.target.names) == LABELS
