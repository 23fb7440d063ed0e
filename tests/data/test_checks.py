"""The findings of data checks, and the reports about them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from finetune.config import RunConfig
from finetune.data import checks
from finetune.data.check_report import CheckReport
from finetune.findings import Finding, Remedy
from tests.support.uploads import Row, some, upload

HEAD = "sentence1,sentence2,label"


def check(folder: Path, train: list[Row], validation: list[Row], **values: object) -> CheckReport:
    name = upload(folder, HEAD, train, validation, ())
    config = RunConfig(dataset=name, checkpoint=str(folder / "none")).changed(**values)
    return checks.check_pairs(config, folder)


def by_kind(report: CheckReport) -> dict[str, Finding]:
    return {finding.kind: finding for finding in report.findings}


def held_out(rows: int = 20) -> list[Row]:
    return [(f"held {n}", f"out {n}", n % 2) for n in range(rows)]


MIXED = [
    *some(120),
    ("out 5", "held 5", 1),
    ("held 1", "out 1", 1),
    ("Held 4.", "OUT  4", 1),  # 0 in validation
    ("left 7", "right 7", 1),
    ("Left 7", "right 7", 1),
    ("left 8", "right 8", 1),  # it was 0
]


def test_leakage_is_found_in_either_order_with_a_remedy(tmp_path: Path) -> None:
    leakage = by_kind(check(tmp_path, MIXED, held_out()))["leakage"]
    assert leakage.count == 3
    shown = leakage.examples[0]
    assert (shown.split, shown.line, shown.sentence1, shown.label) == ("train", 122, "out 5", "1")
    assert "flatter" in leakage.action
    assert leakage.rows == {"train": [122, 123, 124]}
    assert leakage.remedies == [Remedy("drop_leaked", True, "Leave out 3 leaked rows")]


def test_lengths_are_those_of_the_tokenizer(tmp_path: Path, toy_checkpoint: Path) -> None:
    train: list[Row] = [("the cat sees a dog .", "a cat sees the dog .", n % 2) for n in range(60)]
    train += [("the " * 20, "a " * 20, n % 2) for n in range(20)]
    report = check(tmp_path, train, held_out(), checkpoint=str(toy_checkpoint), max_length=32)
    assert report.lengths.longest == 43
    assert report.lengths.cut == 0.25
    assert sum(count for _, _, count in report.lengths.bins) == 80
    bins = [(low, high) for low, high, count in report.lengths.bins if count]
    assert bins[0][0] <= 15 < bins[0][1]
    assert by_kind(report)["cut"].count == 20


def test_without_a_tokenizer_all_else_is_found(
    tmp_path: Path, toy_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    broken = Path(shutil.copytree(toy_checkpoint, tmp_path / "checkpoint"))
    (broken / "tokenizer.json").write_text('{"model": 7}')
    for checkpoint in ("somebody/nothing", str(broken)):
        report = check(tmp_path, some(120), held_out(300), checkpoint=checkpoint)
        assert report.majority
        assert report.fingerprint
        assert report.lengths.bins == []
        note = report.lengths.note
        assert note.startswith(f"The lengths are missing, because the tokenizer of {checkpoint} ")
        assert "choose another checkpoint under Train, and press Examine again" in note
