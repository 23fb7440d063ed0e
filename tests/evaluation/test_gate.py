"""The release check: its rule, what it says of rows that were trained on, and its Markdown."""

from __future__ import annotations

import html
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from statsmodels.stats.proportion import proportion_confint

import finetune
from finetune.__main__ import main
from finetune.errors import DataError, FinetuneError
from finetune.evaluation import gate, release
from finetune.evaluation.gate import Judgement, Limits, Rows
from finetune.metrics import catalog
from finetune.runs import events, pair_index
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.tasks.base import MULTI_LABEL, REGRESSION, Target
from finetune.tasks.registry import task_of
from finetune.uploads import contents_hash
from tests.support import toys
from tests.support.evaluated_runs import evaluated
from tests.support.hub import LoopbackHub
from tests.support.judging import write_csv

CLASSES = Target(("no", "yes"))


def judged(
    truth: Any, new: Any, old: Any, target: Target = CLASSES, metric: str = "", **limits: Any
) -> Judgement:
    task = task_of(target)
    name = metric or task.headline.name
    empty = Judgement("not judged", [], "new", "old", "rows", Limits(**limits), name, [])
    truth, new, old = map(np.asarray, (truth, new, old))
    texts = [[f"{side} {row}" for row in range(len(truth))] for side in ("text", "other")]
    rows = Rows(target, truth, np.arange(1, len(truth) + 1), texts)
    return gate.judge(empty, rows, new, old, task.metrics)


def wrong_on(truth: np.ndarray, *rows: int) -> np.ndarray:
    answers = truth.copy()
    answers[list(rows)] = 1 - answers[list(rows)]
    return answers


def test_one_lost_answer_fails_although_the_score_rises() -> None:
    truth = np.arange(100) % 2
    new, old = wrong_on(truth, 7), wrong_on(truth, *range(20, 40))
    found = judged(truth, new, old)
    assert (found.verdict, found.lost, found.gained, found.status) == ("failed", 1, 20, 1)
    assert [row.row for row in found.lost_rows] == [8]
    assert found.lost_rows[0] == gate.ChangedAnswer(8, "text 7", "other 7", "yes", "yes", "no")
    assert found.gain is not None
    assert found.gain.low > 0
    assert found.lost_at_most == pytest.approx(proportion_confint(1, 100, method="beta")[1])
    allowed = judged(truth, new, old, max_lost=1)
    assert (allowed.verdict, allowed.status) == ("passed", 0)
    assert found.scores == allowed.scores


def test_the_whole_interval_decides() -> None:
    """Below the least gain it fails, above it passes, and across it nobody can tell."""
    truth, draw = np.arange(400) % 2, np.random.default_rng(0)
    rows = draw.permutation(400)
    old = wrong_on(truth, *rows[:40])
    worse, alike = wrong_on(truth, *rows[:100]), wrong_on(truth, *rows[20:60])
    assert judged(truth, worse, old, max_lost=400).verdict == "failed"
    assert judged(truth, old, worse).verdict == "passed"
    unclear = judged(truth, alike, old, max_lost=400)
    assert (unclear.verdict, unclear.status) == ("not judged", 2)
    assert "too few to tell" in unclear.reasons[0]
    assert "would tell" in unclear.reasons[2]
    assert judged(truth, alike, old, max_lost=400, min_gain=-0.1).verdict == "passed"
    assert judged(truth, alike, old, max_lost=400, min_gain=0.1).verdict == "failed"
    few = judged(truth[:29], truth[:29], truth[:29], min_gain=-0.5)
    assert (few.verdict, few.reasons[2]) == ("not judged", "About 30 rows like these would tell.")
    assert judged(truth[:29], wrong_on(truth[:29], 3), truth[:29]).verdict == "failed"


@pytest.mark.parametrize(
    ("value", "said"),
    [({"max_lost": -1}, "max_lost is -1"), ({"min_gain": float("nan")}, "min_gain is nan")],
)
def test_limits_that_are_none_are_refused(value: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        Limits(**value)


@pytest.mark.long
def test_models_that_lost_too_much_rarely_pass() -> None:
    """At most 2.5% of them pass, with a standard error of 0.5 points: a new model that is exactly
    as much worse as is still allowed, over 1,000 draws of 300 rows."""
    draw, passed = np.random.default_rng(0), 0
    for _ in range(1000):
        truth = draw.integers(0, 2, 300)
        both = draw.random(300)
        old = np.where(both < 0.8, truth, 1 - truth)  # right on 80%, the new one on 75%
        new = np.where((both < 0.7) | ((both > 0.8) & (both < 0.85)), truth, 1 - truth)
        found = judged(truth, new, old, metric=catalog.ACCURACY.name, max_lost=300, min_gain=-0.05)
        passed += found.verdict == "passed"
    assert passed / 1000 <= 0.025 + 2 * 0.005


def test_scores_have_a_gain_and_the_answers_that_moved_most() -> None:
    """An error falls: that is a gain. No answer is right, so none is lost."""
    draw = np.random.default_rng(0)
    truth = draw.uniform(0, 5, 200)
    near, far = (truth + spread * draw.normal(size=200) for spread in (0.1, 1.0))
    target = Target((), task=REGRESSION, high=5.0)
    found = judged(truth, near, far, target, "mae")
    assert found.gain is not None
    assert found.verdict == "passed"
    assert found.gain.value == pytest.approx(
        np.abs(far - truth).mean() - np.abs(near - truth).mean()
    )
    assert judged(truth, far, near, target, "mae").verdict == "failed"
    steps = np.abs(far - truth) - np.abs(near - truth)
    assert found.gained_rows[0].row == steps.argmax() + 1
    assert found.gained == (steps > 0).sum()
    assert "further off" in gate.as_text(found)


@pytest.mark.parametrize(
    ("target", "label"),
    [
        (CLASSES, 0),
        (Target((), task=REGRESSION, low=0, high=5), 3.0),
        (Target(("a", "b"), task=MULTI_LABEL), [0, 0]),
    ],
)
def test_rows_of_which_the_metric_tells_nothing_are_not_judged(target: Target, label: Any) -> None:
    truth = np.array([label] * 60)
    found = judged(truth, 1 - truth, truth, target, max_lost=60)
    assert (found.verdict, found.status) == ("not judged", 2)
    assert "labels are all alike" in found.reasons[0]


def test_a_set_of_labels_is_right_as_a_whole() -> None:
    draw = np.random.default_rng(0)
    truth = draw.integers(0, 2, (100, 3))
    old, new = truth.copy(), truth.copy()
    old[:10, 0] = 1 - old[:10, 0]  # wrong by one label, then by two
    new[:10, :2] = 1 - new[:10, :2]
    new[50, 2] = 1 - new[50, 2]
    found = judged(truth, new, old, Target(("a", "b", "c"), task=MULTI_LABEL), max_lost=100)
    assert (found.lost, found.gained) == (1, 0)
    assert found.lost_rows[0].row == 51


def test_a_kind_of_row_that_got_worse_is_named() -> None:
    truth = np.arange(400) % 2
    old = wrong_on(truth, *range(1, 80, 2))
    new = wrong_on(truth, *range(0, 80, 2))  # the other class suffers
    found = {str(part.value): part for part in judged(truth, new, old).slices}
    assert (found["no"].worse, found["yes"].worse) == (True, False)
    assert (found["no"].lost, found["no"].gained, found["no"].count) == (40, 0, 200)
    assert (found["yes"].old, found["yes"].new) == (0.8, 1.0)


def test_markdown_of_any_text_makes_no_markup_and_fits_a_comment() -> None:
    truth = np.arange(3000) % 2
    found = judged(truth, 1 - truth, truth)
    evil = "a|b <img src=x> `c` @ada #1 GH-2 :x: [x](y) _d_ https://x.y www.x.y \n# head\u202e"
    evil += "\x1b[2J" + "*" * 300
    rows = [replace(row, sentence1=evil) for row in found.lost_rows]
    text = gate.as_markdown(replace(found, lost_rows=rows, new=evil, reasons=[evil]))
    assert len(text) < 65_536
    assert re.search(r"\n2,9\d\d more\n", text)  # the rows for which there is no room
    for mark in ("<img", "`c`", "[x]", "_d_", "\u202e", "\x1b", "***", "\n# head", "a|b"):
        assert mark not in text
    assert "\x1b" not in gate.as_text(replace(found, lost_rows=rows, new=evil))
    shown = html.unescape(text)  # GitHub looks for addresses and names in what it shows
    for mark in ("@ada", "#1", "GH-2", ":x:", "https://", "www."):
        assert mark not in shown
    table = [line for line in text.splitlines() if re.match(r"\| \d+ \|", line)]
    assert {line.count("|") for line in table} == {7}


@pytest.fixture(scope="module")
def pair(toy_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    """Two runs of one toy, the second with better saved answers."""
    store = RunStore(tmp_path_factory.mktemp("gate") / "runs")
    return tuple(
        evaluated(SimpleNamespace(store=store), toy_checkpoint, seed, skill)  # type: ignore[arg-type, return-value]
        for seed, skill in ((1, 1.5), (2, 3.0))
    )


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [(first, second, str(label)) for first, second, label in toys.rows(40, seed=9)]
    path = tmp_path_factory.mktemp("golden") / "golden.csv"
    return write_csv(
        path,
        [("sentence1", "sentence2", "label"), *rows, ("a cat", "a dog", "?"), ("", "a dog", "1")],
    )


def command(new: Run, old: object, *words: str) -> int:
    runs = f"--runs={new.folder.parent}"
    return main(["gate", "--new", new.id, "--old", str(old), runs, *words])


def test_the_command_compares_the_validation_pairs(
    pair: tuple[Run, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    poor, good = pair
    files = ["--json", str(tmp_path / "g.json"), "--markdown", str(tmp_path / "g.md")]
    assert command(good, poor.id, *files) == 0
    assert "passed" in capsys.readouterr().out
    written = json.loads((tmp_path / "g.json").read_text())
    found = finetune.gate(good, poor)
    assert (written["verdict"], written["status"], written["gained"]) == ("passed", 0, found.gained)
    assert (tmp_path / "g.md").read_text().startswith("### Release check passed")
    link, (read, write) = tmp_path / "link.md", os.pipe()
    link.symlink_to(tmp_path / "g.md")
    (tmp_path / "g.md").write_text("")
    assert command(good, poor.id, f"--json=/dev/fd/{write}", f"--markdown={link}") == 0
    os.close(write)
    with os.fdopen(read) as pipe:
        assert json.loads(pipe.read()) == written
    assert link.is_symlink()
    assert (tmp_path / "g.md").read_text().startswith("### Release check passed")
    assert command(poor, good.id) == 1
    assert command(poor, good.id, "--max_lost=99", "--min_gain=-0.9") == 0
    assert command(good, "nobody") == 2
    assert "There is no run 'nobody'. Name a run" in capsys.readouterr().err
    assert command(good, poor.id, "--max_lost=-1") == 2


def test_other_rows_are_not_judged(
    pair: tuple[Run, Run], store: RunStore, toy_checkpoint: Path
) -> None:
    other = evaluated(SimpleNamespace(store=store), toy_checkpoint, 3, 2.0)  # type: ignore[arg-type]
    (other.predictions / "validation.parquet").unlink()
    for step in (8, 16):
        path = other.predictions / f"step-{step:06d}.npz"
        arrays = dict(np.load(path))
        np.savez(path, **arrays | {"labels": 1 - arrays["labels"]})
    found = finetune.gate(pair[1], other)
    assert (found.verdict, found.gain) == ("not judged", None)
    assert "different rows" in found.reasons[0]
    assert "could not be judged" in gate.as_markdown(found)


def test_a_golden_file_is_answered_by_both_and_kept_from_training(
    pair: tuple[Run, Run], golden: Path
) -> None:
    poor, good = pair
    found = finetune.gate(good, poor, golden)  # both are the same toy
    assert (found.verdict, found.examples, found.lost) == ("not judged", 39, 0)
    assert "rows like these would tell" in found.reasons[2]
    assert len(found.golden) == 64
    assert found.remarks[:3] == [
        "Rows without a known label, which are left out: 1.",
        "Rows without a sentence, which are left out: 1.",
        "Rows that repeat another, which count once: 1.",
    ]
    assert any("no record" in remark for remark in found.remarks)
    uploads = RunStore(good.folder.parent).uploads
    for files in ({"train": golden}, {"train": Path(__file__), "validation": golden}):
        with pytest.raises(DataError, match="golden file: release checks rely on"):
            uploads.add(files, {"train": "rows.csv"})
    assert command(good, poor.id, "--golden", str(golden), "--label_column", "sentence1") == 2
    assert command(good, poor.id, "--golden", "absent.csv") == 2


def test_rows_that_a_run_was_trained_on_are_named(pair: tuple[Run, Run], golden: Path) -> None:
    rows = toys.rows(40, seed=9)
    first, second = ([row[at] for row in rows] for at in (1, 0))  # in the other order
    hashes = pair_index.pair_hashes(first, second)
    pair_index.write_pair_index(pair[0], {"train": hashes[4:6], "validation": hashes[:1]})
    uploads = RunStore(pair[0].folder.parent).uploads
    uploads.forget_golden(contents_hash(golden, golden.name))
    found = finetune.gate(pair[1], pair[0], golden)
    assert found.verdict == "not judged"
    assert "was trained on" in found.reasons[0]
    assert "5, 6" in found.reasons[0]
    uploads.add({"train": golden})  # it is no golden file, then
    assert uploads.keep_golden(golden)
    finetune.gate(pair[1], pair[0], golden)  # stays one, as it was before
    with pytest.raises(DataError, match="golden file: release checks rely on"):
        uploads.add({"train": golden})
    assert any("chose its best model by" in remark for remark in found.remarks)


@pytest.mark.long
def test_a_model_on_the_hub_is_the_old_one(
    pair: tuple[Run, Run], golden: Path, hub: LoopbackHub, toy_checkpoint: Path, tmp_path: Path
) -> None:
    good = pair[1]
    files = {path.name: path.read_bytes() for path in toy_checkpoint.iterdir()}
    hub.add_repo("ada/released", files=files)
    found = finetune.gate(good, "ada/released", golden)
    assert (found.verdict, found.old, found.lost) == ("passed", "ada/released", 0)
    assert "not known here" in found.remarks[0]
    validation = finetune.gate(good, "ada/released")  # by the saved answers, better than the toy's
    assert (validation.examples, validation.verdict) == (60, "passed")
    config = json.loads(files["config.json"])
    for name, classes, verdict in (
        ("ada/unnamed", {"0": "LABEL_0", "1": "LABEL_1"}, "passed"),
        ("ada/others", {"0": "sad", "1": "glad"}, "not judged"),
    ):
        changed = json.dumps(config | {"id2label": classes, "label2id": {}}).encode()
        hub.add_repo(name, files=files | {"config.json": changed})
        assert finetune.gate(good, name, golden).verdict == verdict
    with pytest.raises(FinetuneError, match="absent"):
        release.check_release(good, "ada/absent", golden=golden)


def test_a_run_in_training_is_not_judged_yet(
    pair: tuple[Run, Run], store: RunStore, adopt: Any
) -> None:
    run = store.create(finetune.RunConfig())
    run.append(events.Started(device="CPU"))
    assert adopt(run)
    with pytest.raises(FinetuneError, match="still training"):
        finetune.gate(run, pair[0])
