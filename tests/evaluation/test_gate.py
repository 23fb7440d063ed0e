"""The release check: its rule, what it says of rows that were trained on, its Markdown, and its
workflow for GitHub Actions as far as it runs without GitHub."""

import html
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from statsmodels.stats.proportion import proportion_confint

import finetune
from finetune import text_hashes
from finetune.__main__ import main
from finetune.data.sources import LABELS
from finetune.errors import ConfigError, DataError
from finetune.evaluation import gate
from finetune.evaluation.gate import Judgement, Limits, Rows
from finetune.runs import pair_index
from finetune.runs.store import RunStore
from finetune.tasks.base import MULTI_LABEL, REGRESSION, Target
from finetune.tasks.registry import task_of
from finetune.uploads import contents_hash
from tests.support import toys
from tests.support.made_runs import evaluated
from tests.support.uploads import write_csv

CLASSES = Target(("no", "yes"))


def judged(truth, new, old, target=CLASSES, metric="", **limits):
    task = task_of(target)
    name = metric or task.headline.name
    empty = Judgement("not judged", [], "new", "old", "rows", Limits(**limits), name, [])
    truth, new, old = map(np.asarray, (truth, new, old))
    texts = [[f"{side} {row}" for row in range(len(truth))] for side in ("text", "other")]
    rows = Rows(target, truth, np.arange(1, len(truth) + 1), texts)
    return gate.judge(empty, rows, new, old, task.metrics)


def wrong_on(truth, *rows):
    answers = truth.copy()
    answers[list(rows)] = 1 - answers[list(rows)]
    return answers


def test_one_lost_answer_fails_although_the_score_rises():
    truth = np.arange(100) % 2
    new, old = wrong_on(truth, 7), wrong_on(truth, *range(20, 40))
    found = judged(truth, new, old)
    assert (found.verdict, found.lost, found.gained, found.status) == ("failed", 1, 20, 1)
    assert [row.row for row in found.lost_rows] == [8]
    assert found.lost_rows[0] == gate.ChangedAnswer(8, "text 7", "other 7", "yes", "yes", "no")
    assert found.gain.low > 0
    assert found.lost_at_most == pytest.approx(proportion_confint(1, 100, method="beta")[1])
    allowed = judged(truth, new, old, max_lost=1)
    assert (allowed.verdict, allowed.status) == ("passed", 0)


def test_the_whole_interval_decides():
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
    ("target", "label"),
    [(CLASSES, 0), (Target((), task=REGRESSION, low=0, high=5), 3.0),
     (Target(("a", "b"), task=MULTI_LABEL), [0, 0])],
)  # fmt: skip
def test_rows_of_which_the_metric_tells_nothing_are_not_judged(target, label):
    truth = np.array([label] * 60)
    found = judged(truth, 1 - truth, truth, target, max_lost=60)
    assert (found.verdict, found.status) == ("not judged", 2)
    assert "labels are all alike" in found.reasons[0]


def test_a_kind_of_row_that_got_worse_is_named():
    truth = np.arange(400) % 2
    old = wrong_on(truth, *range(1, 80, 2))
    new = wrong_on(truth, *range(0, 80, 2))  # the other class suffers
    found = {str(part.value): part for part in judged(truth, new, old).slices}
    assert (found["no"].worse, found["yes"].worse) == (True, False)
    assert (found["no"].lost, found["no"].gained, found["no"].count) == (40, 0, 200)


def test_markdown_of_any_text_makes_no_markup_and_fits_a_comment():
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
def pair(toy_checkpoint, tmp_path_factory):
    """Two runs of one toy, the second with better saved answers."""
    store = RunStore(tmp_path_factory.mktemp("gate") / "runs")
    return tuple(
        evaluated(store, toy_checkpoint, seed, skill) for seed, skill in ((1, 1.5), (2, 3.0))
    )


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    rows = [(first, second, str(label)) for first, second, label in toys.rows(40, seed=9)]
    rows = [("sentence1", "sentence2", "label"), *rows, ("a cat", "a dog", "?"), ("", "a dog", "1")]
    return write_csv(tmp_path_factory.mktemp("golden") / "golden.csv", rows)


def test_other_rows_are_not_judged(pair, store, toy_checkpoint):
    other = evaluated(store, toy_checkpoint, 3, 2.0)
    (other.predictions / "validation.parquet").unlink()
    for step in (8, 16):
        path = other.predictions / f"step-{step:06d}.npz"
        arrays = dict(np.load(path))
        np.savez(path, **arrays | {"labels": 1 - arrays["labels"]})
    found = finetune.gate(pair[1], other)
    assert (found.verdict, found.gain) == ("not judged", None)
    assert "different rows" in found.reasons[0]
    assert "could not be judged" in gate.as_markdown(found)


def test_a_golden_file_is_answered_by_both_and_kept_from_training(pair, golden):
    poor, good = pair
    uploads = RunStore(good.folder.parent).uploads
    uploads.forget_golden(contents_hash(golden, golden.name))
    words = ["gate", f"--new={good.id}", f"--old={poor.id}", f"--runs={good.folder.parent}"]
    assert main([*words, f"--golden={golden}", "--label_column=sentence1"]) == 2
    uploads.add({"train": golden})  # an error makes no file golden
    with pytest.raises(ConfigError, match="another option names"):
        finetune.predict(good, golden, golden)
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
    for files in ({"train": golden}, {"train": Path(__file__), "validation": golden}):
        with pytest.raises(DataError, match="golden file: release checks rely on"):
            uploads.add(files, {"train": "rows.csv"})


def test_rows_that_a_run_was_trained_on_are_named(pair, golden):
    rows = toys.rows(40, seed=9)
    first, second = ([row[at] for row in rows] for at in (1, 0))  # in the other order
    hashes = pair_index.pair_hashes(first, second)
    pair_index.write_pair_index(pair[0], {"train": hashes[4:6], "validation": hashes[:1]})
    uploads = RunStore(pair[0].folder.parent).uploads
    uploads.forget_golden(contents_hash(golden, golden.name))
    found = finetune.gate(pair[1], pair[0], golden)
    assert found.verdict == "not judged"
    assert "trained on 2 of these rows: line 6, 7." in found.reasons[0]  # with the header's
    uploads.add({"train": golden})  # it is no golden file, then
    assert uploads.keep_golden(golden)
    finetune.gate(pair[1], pair[0], golden)  # stays one, as it was before
    with pytest.raises(DataError, match="golden file: release checks rely on"):
        uploads.add({"train": golden})
    assert any("chose its best model by" in remark for remark in found.remarks)


def test_rows_that_share_a_sentence_with_training_are_told_with_the_others_score(pair, golden):
    rows = toys.rows(40, seed=9)
    hashes = text_hashes.row_hashes([row[0] for row in rows[:3]])[0]
    none = np.zeros(0, np.int64)
    pair_index.write_pair_index(pair[1], {"train": none, "validation": none, "sentences": hashes})
    found = finetune.gate(pair[1], pair[0], golden)
    (told,) = [remark for remark in found.remarks if "share a sentence with training" in remark]
    count, others = map(int, re.findall(r"(\d+) (?:of these|others)", told))
    assert count >= 3
    assert count + others == found.examples


ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.long
def test_github_takes_the_workflow_and_its_commands_leave_a_comment(hub, toy_checkpoint, tmp_path):
    text = (ROOT / "finetune" / "evaluation" / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    read = yaml.safe_load(block)
    assert read[True] == "pull_request"  # YAML 1.1 reads "on" as true
    assert read["permissions"] == {"contents": "read", "pull-requests": "write"}
    parts = read["jobs"]["gate"]["steps"]
    used = [step["uses"] for step in parts if "run" not in step]
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", name) for name in used)
    assert parts[-1]["if"].startswith("always()")  # also after a failed check
    # Values of an event stand in variables, never in a command that they could change.
    assert not any("${{" in step.get("run", "") for step in parts)
    steps = {step["name"]: step for step in parts if "run" in step}
    assert [*steps] == ["Install", "Train", "Check", "Comment"]
    hub.add_repo(read["env"]["RELEASED"], files=toy_checkpoint)
    for name, count, seed in (("ROWS", 80, 1), ("GOLDEN", 40, 11)):
        path = tmp_path / read["env"][name]
        path.parent.mkdir(exist_ok=True)
        named = [(*texts, LABELS[label]) for *texts, label in toys.rows(count, seed)]
        write_csv(path, [("sentence1", "sentence2", "label"), *named])
    runs = {"FINETUNE_RUNS": str(tmp_path / "runs"), "PYTHONPATH": str(ROOT)}
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "gh").write_text('#!/bin/sh\necho "$@" > told.txt\n')  # in place of GitHub's own
    (tools / "gh").chmod(0o755)
    variables = {**os.environ, **read["env"], **runs, "NUMBER": "7"}
    variables["PATH"] = f"{tools}:{Path(sys.executable).parent}:{variables['PATH']}"
    statuses = {
        name: subprocess.run(["bash", "-e", "-c", steps[name]["run"]], cwd=tmp_path, env=variables)
        for name in ("Train", "Check", "Comment")
    }
    assert statuses["Train"].returncode == statuses["Comment"].returncode == 0
    assert statuses["Check"].returncode in (0, 1, 2)
    assert (tmp_path / "told.txt").read_text() == "pr comment 7 --body-file gate.md\n"
    assert "by 40 rows of" in (tmp_path / "gate.md").read_text()
    assert '"status": ' in (tmp_path / "gate.json").read_text()
