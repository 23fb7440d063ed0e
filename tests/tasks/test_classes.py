"""Spellings of labels become classes; doubtful classes are asked about."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from finetune.config import RunConfig
from finetune.data import checks, splits
from finetune.data.check_report import CheckReport
from finetune.errors import ConfigError, DataError
from finetune.findings import Finding
from finetune.tasks.base import LEFT_OUT
from finetune.tasks.cells import find_separator, suggest_separator
from finetune.tasks.classes import (
    LabelEncoder,
    is_positive_plain,
    make_classes,
    positive_class,
    similar_class,
)
from tests.support.uploads import upload

COMPOSED, DECOMPOSED = "gef\u00e4llt", "gefa\u0308llt"


def classify(
    cells: Sequence[object], changes: dict[str, str] | None = None
) -> tuple[list[str], list[int]]:
    """Return the classes of a label column's cells, and the class of each cell."""
    encoder = LabelEncoder("label")
    codes = np.array([encoder.code(cell) for cell in cells])
    rows = np.bincount(codes[codes >= 0], minlength=len(encoder.spellings))
    classes = make_classes(encoder.spellings, rows, changes=changes)
    return classes.names, np.append(classes.codes, -1)[codes].tolist()


@pytest.mark.parametrize(
    ("cells", "names", "numbers"),
    [
        ([0, 1, 1.0, "1", " 0 "], ["0", "1"], [0, 1, 1, 1, 0]),
        (["10", "9", "-1"], ["-1", "9", "10"], [2, 1, 0]),
        (["yes", "No", "YES", "no"], ["No", "yes"], [1, 0, 1, 0]),
        ([True, False, "TRUE", "false"], ["false", "true"], [1, 0, 1, 0]),
        (["not_duplicate", "duplicate"], ["not_duplicate", "duplicate"], [0, 1]),
        (["positive", "negative"], ["negative", "positive"], [1, 0]),
        (["paraphrase", "other"], ["other", "paraphrase"], [1, 0]),
        (["b", "c", "a"], ["a", "b", "c"], [1, 2, 0]),
        ([1, None, float("nan"), "", "NULL", 0], ["0", "1"], [1, -1, -1, -1, -1, 0]),
        (["\u200b", "a", "b\u00a0c"], ["a", "b c"], [-1, 0, 1]),
        ([COMPOSED, DECOMPOSED, "x"], [COMPOSED, "x"], [0, 0, 1]),
        (["spam", "sp\u200bam\u2060", "\u202espam\u202c", "\ufeffham"], ["ham", "spam"],
         [1, 1, 1, 0]),
        (["not equal", "not\u00a0equal", "equal"], ["not equal", "equal"], [0, 0, 1]),
        (["1", "\uff11", "0"], ["0", "1"], [1, 1, 0]),
        (["Spam", "spam", "spam", "ham"], ["ham", "spam"], [1, 1, 1, 0]),
        (["b", "-", "a", "c"], ["a", "b", "c"], [1, LEFT_OUT, 0, 2]),
        (["+", "-"], ["+", "-"], [0, 1]),
        ([0, 1, 2, -1], ["-1", "0", "1", "2"], [1, 2, 3, 0]),
        ([["a"], '["b"]', "[a]", []], ["a", "b"], [0, 1, 0, -1]),
        ([-1, 0, 1], ["-1", "0", "1"], [0, 1, 2]),
        ([-1, 1], ["-1", "1"], [0, 1]),
    ],
)  # fmt: skip
def test_labels_become_classes(cells: list[object], names: list[str], numbers: list[int]) -> None:
    assert classify(cells) == (names, numbers)


@pytest.mark.parametrize(
    ("changes", "names", "numbers"),
    [
        ({"Spam": "Spam"}, ["ham", "spam", "Spam", "spamm"], [1, 2, 3, 0]),
        ({"spamm": "spam"}, ["ham", "spam"], [1, 1, 1, 0]),
        ({"spamm": ""}, ["ham", "spam"], [1, 1, LEFT_OUT, 0]),
        ({"spamm": "Spam", "Spam": "Spam"}, ["ham", "spam", "Spam"], [1, 2, 2, 0]),
        ({"ham": "good", "spamm": "spam"}, ["good", "spam"], [1, 1, 1, 0]),
    ],
)
def test_labels_are_changed(changes: dict[str, str], names: list[str], numbers: list[int]) -> None:
    assert classify(["spam", "Spam", "spamm", "ham"], changes) == (names, numbers)


def test_changes_of_labels_are_written_as_words() -> None:
    config = RunConfig(label_map="spamm=spam 'very bad=bad' n/a= a=b=c")
    assert config.changed_labels == {"spamm": "spam", "very bad": "bad", "n/a": "", "a=b": "c"}
    for wrong in ("spam", "=a", "'a=b"):
        with pytest.raises(ConfigError, match="label_map must be changes such as old=new"):
            RunConfig(label_map=wrong)


@pytest.mark.parametrize(
    ("labels", "requested", "index"),
    [("0 1", "", 1), ("0 1", "0", 0), ("entailment not_entailment", "", 0), ("no yes", "YES", 1),
     ("ja nein", "", 0), ("\u5426 \u662f", "", 1), ("\uc544\ub2c8\uc624 \uc608", "", 1)],
)  # fmt: skip
def test_the_positive_class(labels: str, requested: str, index: int) -> None:
    assert positive_class(labels.split(), requested) == index
    assert is_positive_plain(labels.split())


@pytest.mark.parametrize("labels", ["1 2", "dup other", "female male", "f m", "duplicate same"])
def test_a_positive_class_that_is_not_plain(labels: str) -> None:
    assert not is_positive_plain(labels.split())


@pytest.mark.parametrize(
    ("texts", "mark"),
    [
        ("a;b a b b;c", ";"), ("x|y|z x|y z", "|"), ("praise,_late praise late", ","),
        ("Korea,_South Korea,_North Chad", ""), ("Home,_Garden Health,_Beauty Sports", ""),
        ("[CLS] other", ""), ("1 0", ""), ("a#b b a#c", ""),
    ],
)  # fmt: skip
def test_marks_between_labels_are_plain(texts: str, mark: str) -> None:
    assert find_separator([text.replace("_", " ") for text in texts.split()]) == mark


@pytest.mark.parametrize(
    ("texts", "mark"),
    [
        ("a#b b a#c c", "#"), ("a/b b a", "/"), ("a-b a b", "-"), ("a_b a b", "_"),
        ("a&b b&c a c", "&"), ("very_good good very_bad bad", ""),
        ("not_duplicate duplicate", ""), ("B-PER I-PER B-LOC I-LOC O", ""), ("C C# C++", ""),
        ("0-10 10-20 20-30", ""), ("1/5 2/5 5/5", ""), ("sci-fi drama action", ""),
        ("News/Sports News/Politics Home/Garden", ""), ("Final Semi-Final", ""), ("R&D Q&A", ""),
    ],
)  # fmt: skip
def test_what_may_separate_labels_is_asked_about(texts: str, mark: str) -> None:
    assert suggest_separator(texts.split()) == mark


def test_a_typing_error_is_like_a_class() -> None:
    others = ["entailment", "neutral", "0", "1"]
    assert [similar_class(name, others) for name in ("entailement", "Neutral.", "2", "other")] == [
        "entailment", "neutral", "", "",
    ]  # fmt: skip


def check(
    folder: Path, labels: Sequence[str], validation: Sequence[str] = (), **values: object
) -> CheckReport:
    """Check texts with these labels."""
    rows = [(f"text {n}", label) for n, label in enumerate(labels)]
    held = [(f"held {n}", label) for n, label in enumerate(validation)]
    name = upload(folder, "text,label", rows, held, ())
    config = RunConfig(dataset=name, checkpoint=str(folder / "none")).changed(**values)
    return checks.check_pairs(config, folder)


def found(report: CheckReport, kind: str) -> Finding:
    return next(finding for finding in report.findings if finding.kind == kind)


SPAM = ["spam", "ham"] * 60


def test_a_rare_class_holds_training_back_until_it_is_answered(tmp_path: Path) -> None:
    report = check(tmp_path, [*SPAM, "spamm", "eggs", "eggs"], validation=SPAM)
    rare = report.blocked[0]
    assert (rare.kind, rare.count, rare.rows) == ("rare-classes", 3, {"train": [122, 123, 124]})
    assert "'eggs' (2), 'spamm' (1)" in rare.title
    merge, leave_out, keep = rare.remedies
    assert (merge.field, merge.value) == ("label_map", "spamm=spam")
    assert [(remedy.field, remedy.value) for remedy in (leave_out, keep)] == [
        ("rare_classes", "leave_out"), ("rare_classes", "keep"),
    ]  # fmt: skip
    config = RunConfig(dataset=upload(tmp_path, "text,label", [
        (f"text {n}", label) for n, label in enumerate([*SPAM, "spamm"])], (), ()))  # fmt: skip
    with pytest.raises(DataError, match=r"'spamm' \(1\).*label_map.*rare_classes"):
        splits.load_pairs(config, tmp_path)
    for answer, labels, rows in (
        ({"rare_classes": "keep"}, ["ham", "spam", "spamm"], 121),
        ({"rare_classes": "leave_out"}, ["ham", "spam"], 120),
        ({"label_map": "spamm=spam"}, ["ham", "spam"], 121),
        ({"label_map": "spamm="}, ["ham", "spam"], 120),
    ):
        pairs = splits.load_pairs(config.changed(**answer), tmp_path)
        assert [*pairs.target.names] == labels
        assert sum(len(split) for split in pairs.splits.values()) == rows


def test_a_class_of_validation_only_is_asked_about(tmp_path: Path) -> None:
    report = check(tmp_path, SPAM, validation=[*SPAM, "eggs"])
    assert "'eggs' (0)" in report.blocked[0].title
    assert report.blocked[0].rows == {"validation": [122]}
    report = check(tmp_path, SPAM, validation=[*SPAM, "eggs"], rare_classes="leave_out")
    assert [split.rows for split in report.splits] == [120, 120]
