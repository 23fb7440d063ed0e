"""What the checks find in pairs, and what a report says of it."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from finetune.config import NO_COLUMN, RunConfig
from finetune.data import checks
from finetune.data.check_report import CheckReport, Finding
from tests.data.test_splits import Row, some, upload

HEAD = "sentence1,sentence2,label"


def look(folder: Path, train: list[Row], validation: list[Row], **values: object) -> CheckReport:
    name = upload(folder, HEAD, train, validation, ())
    config = RunConfig(dataset=name, checkpoint=str(folder / "none")).changed(**values)
    return checks.check_pairs(config, folder)


def kinds(report: CheckReport) -> dict[str, Finding]:
    return {one.kind: one for one in report.findings}


def held(rows: int = 20) -> list[Row]:
    return [(f"held {n}", f"out {n}", n % 2) for n in range(rows)]


def test_clean_pairs_have_no_finding(tmp_path: Path, toy_checkpoint: Path) -> None:
    report = look(tmp_path, some(120), held(300))
    assert report.findings == []
    assert report.blocked == []
    assert [(split.name, split.rows, split.classes) for split in report.splits] == [
        ("train", 120, [60, 60]),
        ("validation", 300, [150, 150]),
    ]
    assert report.majority == {"accuracy": 0.5, "f1": 0.0}
    assert len(report.fingerprint) == 64
    faulty = look(tmp_path, [*some(99), ("", "b", 1)], held(), checkpoint=str(toy_checkpoint))
    assert CheckReport.from_dict(json.loads(faulty.to_json())) == faulty


def test_one_of_two_sentence_columns_is_said_to_be_alone(tmp_path: Path) -> None:
    rows: list[Any] = [(f"left {n}", f"right {n}", n % 2, f"x {n}") for n in range(300)]
    name = upload(tmp_path, "p,q,w,r", rows, rows[:280], ())
    config = RunConfig(dataset=name, checkpoint=str(tmp_path / "none")).changed(
        sentence1_column="p", label_column="w"
    )
    alone = kinds(checks.check_pairs(config, tmp_path))["single"]
    assert (alone.severity, alone.title) == ("notes", "Single sentences: only 'p' is read.")
    assert alone.action.startswith("Not read: q, r. Where one of these is the other sentence")
    for chosen in (NO_COLUMN, "q"):
        found = checks.check_pairs(config.changed(sentence2_column=chosen), tmp_path)
        assert "single" not in kinds(found)


def test_leakage_is_told_apart(tmp_path: Path) -> None:
    train = [
        *some(120),
        ("held 1", "out 1", 1),
        ("Held 2.", "OUT  2", 0),
        ("HELD 3", "out 3!", 1),
        ("out 5", "held 5", 1),
    ]
    found = kinds(look(tmp_path, train, held()))
    assert found["leakage-exact"].count == 1
    assert found["leakage-normalised"].count == 2
    assert found["leakage-swapped"].count == 1
    shown = found["leakage-swapped"].examples[0]
    assert (shown.split, shown.line, shown.sentence1, shown.label) == ("train", 125, "out 5", "1")
    assert "flatter" in found["leakage-exact"].action
    dropped = look(tmp_path, train, held(), drop_leaked=True)
    assert "left out of train" in kinds(dropped)["leakage-exact"].action
    assert dropped.splits[0].rows == 120
    assert dropped.splits[0].left_out == {"leaked": 4}


def test_duplicates_conflicts_and_identical_pairs(tmp_path: Path) -> None:
    train = [
        *some(120),
        ("left 7", "right 7", 1),
        ("Left 7", "right 7", 1),
        ("left 8", "right 8", 1),  # it was 0
        ("same", "Same.", 1),
    ]
    found = kinds(look(tmp_path, train, held()))
    assert found["duplicates"].count == 3
    assert found["conflicts"].count == 2
    assert [row.sentence1 for row in found["conflicts"].examples] == ["left 8", "left 8"]
    assert {row.label for row in found["conflicts"].examples} == {"0", "1"}
    assert found["identical"].count == 1


def test_a_conflict_between_splits_is_found(tmp_path: Path) -> None:
    conflicts = kinds(look(tmp_path, [*some(120), ("held 4", "out 4", 1)], held()))["conflicts"]
    assert conflicts.count == 2
    assert {row.split for row in conflicts.examples} == {"train", "validation"}


def test_classes_that_are_rare_or_absent_and_few_rows_are_said(tmp_path: Path) -> None:
    train = [*some(90), *((f"r {n}", f"s {n}", "odd") for n in range(3))]
    findings = kinds(look(tmp_path, train, held()))
    assert findings["rare"].count == 3
    assert "odd (3)" in findings["rare"].title
    assert "odd" in findings["absent-validation"].title
    assert findings["few"].count == 93


@pytest.mark.parametrize(
    ("rows", "severity", "points"),
    [(20, "warns", "20"), (40, "warns", "15"), (92, "warns", "10"), (100, "notes", "10"),
     (262, "notes", "6"), (264, "", ""), (372, "", "")],
)  # fmt: skip
def test_a_validation_split_too_small_to_tell_anything_is_said(
    tmp_path: Path, rows: int, severity: str, points: str
) -> None:
    found = kinds(look(tmp_path, some(120), held(rows))).get("few-validation")
    assert (found.severity if found else "") == severity
    if found is not None:
        assert f"Only {rows} validation rows" in found.title
        assert f"\u00b1{points} points" in found.title


def uneven(rows: int, *counts: int) -> list[Row]:
    """Rows whose classes are as frequent as asked, out of a hundred."""
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    return [(f"u {rows} {n}", f"v {n}", labels[n % 100]) for n in range(rows)]


@pytest.mark.parametrize(
    ("counts", "severity"),
    [((50, 50), ""), ((40, 60), ""), ((32, 68), "notes"), ((5, 95), "warns"), ((95, 5), "warns"),
     ((33, 33, 34), ""), ((20, 20, 60), "notes"), ((4, 4, 92), "warns")],
)  # fmt: skip
def test_classes_out_of_balance_are_said_with_what_a_constant_answer_scores(
    tmp_path: Path, counts: tuple[int, ...], severity: str
) -> None:
    report = look(tmp_path, uneven(300, *counts), uneven(400, *counts))
    found = kinds(report).get("balance")
    assert (found.severity if found else "") == severity
    if found is not None:
        share = max(counts)
        assert f"{share:.1f}% of the training rows are '{counts.index(share)}'" in found.title
        assert found.count == 3 * share
        assert f"accuracy {report.majority['accuracy']:.3f}" in found.action
        assert f"F1 {report.majority['f1']:.3f} and MCC 0" in found.action
        assert ("class_weights" in found.action) == (severity == "warns")


def test_the_f1_of_the_commonest_class_is_not_praised(tmp_path: Path) -> None:
    def action(**values: object) -> str:
        report = look(tmp_path, uneven(300, 32, 68), uneven(400, 32, 68), **values)
        return kinds(report)["balance"].action

    assert "F1 0.810 and MCC 0" in action()
    assert "MCC tells more than accuracy and this F1" in action()
    assert "F1 of '0' and MCC tell more than accuracy." in action(positive_label="0")


def test_what_blocks_stands_first(tmp_path: Path) -> None:
    report = look(tmp_path, [("a", "b", 1), ("c", "d", 1), ("", "e", 1)], held())
    assert report.findings[0].severity == "blocks"
    assert "one class, '1'" in report.blocked[0].title
    assert report.fingerprint == ""


def test_columns_that_are_unclear_are_listed_to_choose_from(tmp_path: Path) -> None:
    name = upload(tmp_path, "p,q,r,s", [("a", "b", "c", 1)] * 30, (), ())
    report = checks.check_pairs(RunConfig(dataset=name), tmp_path)
    assert list(report.choices) == ["p", "q", "r", "s"]
    assert report.blocked[0].kind == "columns"


def test_lengths_are_those_of_the_tokenizer(tmp_path: Path, toy_checkpoint: Path) -> None:
    train: list[Row] = [("the cat sees a dog .", "a cat sees the dog .", n % 2) for n in range(60)]
    train += [("the " * 20, "a " * 20, n % 2) for n in range(20)]
    report = look(tmp_path, train, held(), checkpoint=str(toy_checkpoint), max_length=32)
    assert report.lengths.longest == 43
    assert report.lengths.cut == 0.25
    assert sum(count for _, _, count in report.lengths.bins) == 80
    at = [(low, high) for low, high, count in report.lengths.bins if count]
    assert at[0][0] <= 15 < at[0][1]
    assert kinds(report)["cut"].count == 20


@pytest.mark.parametrize("what", ["nowhere", "broken"])
def test_without_a_tokenizer_all_else_is_found(
    tmp_path: Path, toy_checkpoint: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    checkpoint = "somebody/nothing" if what == "nowhere" else str(tmp_path / "checkpoint")
    if what != "nowhere":
        shutil.copytree(toy_checkpoint, checkpoint)
        (Path(checkpoint) / "tokenizer.json").write_text('{"model": 7}')
    report = look(tmp_path, some(120), held(300), checkpoint=checkpoint)
    assert report.splits[0].rows == 120
    assert report.majority
    assert report.fingerprint
    assert report.lengths.bins == []
    note = report.lengths.note
    assert note.startswith(f"The lengths are missing, for the tokenizer of {checkpoint} ")
    assert "choose another checkpoint under Train" in note
    assert "press Examine again" in note


def test_the_sheet_of_findings_holds_no_formula(tmp_path: Path) -> None:
    rows: list[Row] = [("=cmd|' /C calc'!A0", "<b>+1</b>", 1), ("@x", " -2 &amp;", 0)]
    report = look(tmp_path, [*some(120), *rows, rows[0]], held())
    text = report.as_csv()
    assert "'=cmd|' /C calc'!A0" in text
    cells = [cell for line in csv.reader(text.splitlines()) for cell in line]
    assert len(cells) > 20
    assert not [cell for cell in cells if cell.lstrip(" ").startswith(("=", "+", "-", "@"))]
