"""Splits of rows from any source: labels, omitted rows, the validation cut, folds; and what a check
finds in them."""

import csv
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from datasets import ClassLabel
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune import text_hashes
from finetune.config import RunConfig
from finetune.data import checks, sources, splits
from finetune.data.dataset_cache import RowHashes
from finetune.data.splits import cut_folds, cut_validation
from finetune.errors import DataError
from finetune.findings import Remedy
from finetune.uploads import Uploads
from tests.support.uploads import pairs, some, texts, upload


def test_the_bundled_pairs_have_one_shape_and_come_from_the_cache(tmp_path, monkeypatch):
    bundled = splits.load_pairs(RunConfig(), tmp_path)
    assert set(bundled.splits) == {"train", "validation", "test"}
    for split in bundled.splits.values():
        assert split.column_names == ["sentence1", "sentence2", "label"]
        assert isinstance(split.features["label"], ClassLabel)
    assert (
        [*bundled.target.names] == sources.LABELS == bundled.splits["train"].features["label"].names
    )
    assert bundled.counts["train"] == np.bincount(bundled.splits["train"]["label"][:]).tolist()
    assert bundled.facts["left_out"] == {"train": {}, "validation": {}, "test": {}}
    with monkeypatch.context() as patch:
        patch.setattr(sources, "open_source", None)
        assert splits.load_pairs(RunConfig(), tmp_path).fingerprint == bundled.fingerprint


def test_the_fingerprint_is_of_the_rows(tmp_path):
    *rows, row = some(30)

    def fingerprint(last, **values):
        return pairs(tmp_path, train=[*rows, last], validation=some(4), **values).fingerprint

    first = fingerprint(row)
    assert fingerprint(row) == first
    others = [
        fingerprint(("left 29", "right 29.", 1)), fingerprint(("left 29", "right 29", 0)),
        fingerprint(row, max_train_samples=29), fingerprint(row, positive_label="0"),
    ]  # fmt: skip
    assert len({first, *others}) == 5


def test_what_is_incomplete_doubled_or_leaked_is_left_out(tmp_path):
    rows = [*some(20), ("LEFT 3 ", "right 3.", 1), ("right 4", "left 4", 0)]
    held = [("left 1", "right 1", 1), ("Left 2!", "right  2", 0), ("right 3", "left 3", 1)]
    incomplete = [("", "b", 1), ("a", " ", 0), ("a", "b", "")]

    def left_out(**values):
        loaded = pairs(tmp_path, **values)
        assert "test" not in loaded.splits  # one without labels is none
        return texts(loaded.splits["train"]), loaded.facts["left_out"]["train"]

    files = {"train": [*rows, *incomplete], "validation": held, "test": incomplete[2:]}
    missing = {"a sentence is missing": 2, "the label is missing": 1}
    every = [row[:2] for row in rows]
    assert left_out(**files) == (every, missing)
    # Of swapped pairs only leakage is counted.
    once = [*every[:20], every[21]]
    assert left_out(**files, drop_duplicates=True) == (once, missing | {"duplicates": 1})
    apart = [pair for n, pair in enumerate(every) if n not in {1, 2, 3, 20}]
    assert left_out(**files, drop_leaked=True) == (apart, missing | {"leaked": 4})
    dataset = upload(tmp_path, "sentence1,sentence2,label", files["train"], held, ())
    report = checks.check_pairs(RunConfig(dataset=dataset, checkpoint=str(tmp_path)), tmp_path)
    leakage = next(finding for finding in report.findings if finding.kind == "leakage")
    assert leakage.remedies == [Remedy("drop_leaked", True, "Leave out 4 leaked rows")]


def test_the_maximum_draws_at_random_and_the_same_each_time(tmp_path):
    def drawn(seed):
        values = {"max_train_samples": 30, "max_eval_samples": 5, "data_seed": seed}
        loaded = pairs(tmp_path, train=some(200), validation=some(50), **values)
        assert len(loaded.splits["validation"]) == 5
        return texts(loaded.splits["train"])

    assert len(drawn(1)) == 30
    assert drawn(1) == drawn(1) != drawn(2)
    assert drawn(1) != [row[:2] for row in some(30)]


def test_a_file_whose_label_column_has_another_name_is_not_ignored(tmp_path):
    uploads = Uploads(tmp_path / "uploads")
    for name, head in (("train", "label"), ("other", "gold")):
        with (tmp_path / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([["sentence1", "sentence2", head], *some(40)])
    train, other = tmp_path / "train.csv", tmp_path / "other.csv"
    config = RunConfig(dataset=uploads.add({"train": train, "validation": other}))
    with pytest.raises(DataError, match=r"other.csv has no column 'label'; it has .*gold"):
        splits.load_pairs(config, tmp_path)
    config = RunConfig(dataset=uploads.add({"train": train, "test": other}))
    assert "test" not in splits.load_pairs(config, tmp_path).splits
    report = checks.check_pairs(config, tmp_path)
    unlabelled = next(finding for finding in report.findings if finding.kind == "unlabelled")
    assert (unlabelled.count, unlabelled.examples[0].split) == (40, "test")


def test_what_counts_as_the_same_sentence():
    for first, second, equal in (
        ("caf\u00e9", "cafe\u0301", True), ("a\u200bcat", "acat", True),
        ("\u201cYes\u201d", "yes", True), ("1.5 metres", "15 metres", False),
        ("C# is good", "C++ is good", False),
    ):  # fmt: skip
        assert (text_hashes.normalize(first) == text_hashes.normalize(second)) == equal, first


def hashes(rows):
    """Make hashes from rows of first sentence, second sentence and class, each a number."""
    first, second, label = np.array(rows, np.int64).reshape(-1, 3).T
    return RowHashes(label, np.arange(len(rows)), first * 1000 + second, first + 1, second + 10**6)


def test_rows_of_one_sentence_in_many_pairs_are_cut_by_class_and_it_is_said(tmp_path):
    """Six sentences are in many pairs of the common class each; every tenth pair is alone."""
    rows = [(f"hub {n % 6}", f"spoke {n}", "no") for n in range(540)]
    rows += [(f"alone {n}", f"alone too {n}", "yes") for n in range(60)]
    loaded = pairs(tmp_path, train=rows)
    assert loaded.counts["validation"] == [54, 6]
    train, validation = (set(texts(loaded.splits[name])) for name in ("train", "validation"))
    assert not train & validation
    name = upload(tmp_path, "sentence1,sentence2,label", rows, (), ())
    report = checks.check_pairs(RunConfig(dataset=name, checkpoint=str(tmp_path)), tmp_path)
    assert next(f for f in report.findings if f.kind == "shared").count == 54


@settings(max_examples=200, deadline=None)
@given(
    pairs=st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 200), st.integers(0, 3)),
        min_size=2,
        max_size=400,
    ),
    share=st.sampled_from([0.05, 0.1, 0.2, 0.5]),
    seed=st.integers(0, 9),
)
def test_each_class_has_its_share_within_what_equal_pairs_force(pairs, share, seed):
    keys = hashes(pairs)
    cut = cut_validation(keys, keys.label, share, seed)
    assert (cut == cut_validation(keys, keys.label, share, seed)).all()
    assert 0 < cut.sum() < len(cut)
    sizes = np.bincount(keys.label)
    wanted = np.where(sizes > 1, np.maximum(1, np.round(sizes * share)), 0)
    if not wanted.any():
        return
    shares = wanted / wanted.sum()
    found = np.bincount(keys.label[cut], minlength=len(sizes))
    largest = np.unique(keys.unordered, return_counts=True)[1].max()
    allowed = 1 + (largest - 1) * len(sizes)
    spread = np.sqrt(cut.sum() * shares * (1 - shares)) / 2
    assert (np.abs(found - cut.sum() * shares) <= np.maximum(allowed, spread)).all()
    # Equal pairs are torn apart only where they are as many as a class's share.
    together = not set(keys.unordered[cut]) & set(keys.unordered[~cut])
    assert together or largest > wanted[wanted > 0].min()


LABELS = {
    "classes": [("no", "yes", "no")[n % 3] for n in range(120)],
    "scores": [n % 11 / 2 for n in range(120)],
    "labels": [("red;blue", "blue", "red;green")[n % 3] for n in range(120)],
}


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_every_row_is_held_out_once_and_no_sentence_is_in_two_folds(tmp_path, labels):
    """Those of a validation file too; the test file stays apart. Many share a question."""
    draw = np.random.default_rng(3)
    rows = [
        (f"question {draw.integers(70)}" if n % 3 else f"alone {n}", f"answer {n}", label)
        for n, label in enumerate(labels)
    ]
    sealed = [(f"sealed {n}", f"sealed too {n}", label) for n, label in enumerate(labels[:9])]
    given = {"train": rows[:90], "validation": rows[90:], "test": sealed}
    last = pairs(tmp_path, **given, folds=4)
    held_out = []
    sides = []
    for fold in range(1, 5):
        loaded = pairs(tmp_path, **given, folds=4, fold=fold)
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


def test_classes_are_spread_over_the_folds_as_evenly_as_groups_allow():
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
        (
            [*some(40), *((f"z{n}", f"y{n}", 2) for n in range(3))],
            "2 has 3. Set folds to 3 at most",
        ),
        ([("one question", f"answer {n}", n % 2) for n in range(30)] + some(20), "60% of the rows"),
    ],
)
def test_folds_that_cannot_be_cut_are_refused_before_training(tmp_path, rows, problem):
    values = {"folds": 5, "rare_classes": "keep", "checkpoint": str(tmp_path)}
    with pytest.raises(DataError, match=problem):
        pairs(tmp_path, train=rows, **values)
    config = RunConfig(dataset=upload(tmp_path, "sentence1,sentence2,label", rows, (), ()))
    report = checks.check_pairs(config.changed(**values), tmp_path)
    (finding,) = report.blocked
    assert problem in f"{finding.title} {finding.action}"
    assert [(remedy.field, remedy.value) for remedy in finding.remedies] == [("folds", "")]


def test_the_check_speaks_of_all_rows_and_of_the_files_that_they_are_in(tmp_path):
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


def test_without_a_tokenizer_all_else_is_found(tmp_path, toy_checkpoint, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    broken = Path(shutil.copytree(toy_checkpoint, tmp_path / "checkpoint"))
    (broken / "tokenizer.json").write_text('{"model": 7}')
    dataset = upload(tmp_path, "sentence1,sentence2,label", some(120), some(300), ())
    for checkpoint in ("somebody/nothing", str(broken)):
        config = RunConfig(dataset=dataset, checkpoint=checkpoint)
        report = checks.check_pairs(config, tmp_path)
        assert report.majority
        assert report.lengths.bins == []
        note = report.lengths.note
        assert note.startswith(f"The lengths are missing, because the tokenizer of {checkpoint} ")
