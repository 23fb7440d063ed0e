"""Spellings of labels become classes; doubtful classes are asked about."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from finetune.config import RunConfig
from finetune.data import checks, splits
from finetune.data.check_report import CheckReport
from finetune.errors import ConfigError, DataError
from finetune.tasks.classes import is_positive_plain, positive_class
from tests.support.uploads import upload


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
    for unclear in ("1 2", "dup other", "female male", "f m", "duplicate same"):
        assert not is_positive_plain(unclear.split())


def check(
    folder: Path, labels: Sequence[str], validation: Sequence[str] = (), **values: object
) -> CheckReport:
    """Check texts with these labels."""
    rows = [(f"text {n}", label) for n, label in enumerate(labels)]
    held = [(f"held {n}", label) for n, label in enumerate(validation)]
    name = upload(folder, "text,label", rows, held, ())
    config = RunConfig(dataset=name, checkpoint=str(folder / "none")).changed(**values)
    return checks.check_pairs(config, folder)


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
