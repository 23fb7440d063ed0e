"""The workflow for GitHub Actions in the documentation runs, as far as it does without GitHub."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from finetune.data.sources import LABELS
from tests.support import toys
from tests.support.hub import LoopbackHub
from tests.support.judging import write_csv

ROOT = Path(__file__).resolve().parent.parent.parent


def workflow() -> dict[Any, Any]:
    text = (ROOT / "finetune" / "evaluation" / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    read: dict[Any, Any] = yaml.safe_load(block)
    return read


def test_the_workflow_is_one_that_github_takes() -> None:
    read = workflow()
    assert read[True] == "pull_request"  # YAML 1.1 reads "on" as true
    assert read["permissions"] == {"contents": "read", "pull-requests": "write"}
    steps = read["jobs"]["gate"]["steps"]
    assert all(("uses" in step) != ("run" in step) for step in steps)
    used = [step["uses"] for step in steps if "uses" in step]
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", name) for name in used)
    assert steps[-1]["if"].startswith("always()")  # also after a failed check
    # Values of an event stand in variables, never in a command that they could change.
    assert not any("${{" in step.get("run", "") for step in steps)


@pytest.mark.long
@pytest.mark.timeout(900)  # it trains the default model
def test_its_commands_train_check_and_leave_the_comment(
    hub: LoopbackHub, toy_checkpoint: Path, tmp_path: Path
) -> None:
    read = workflow()
    steps = {step["name"]: step for step in read["jobs"]["gate"]["steps"] if "run" in step}
    assert [*steps] == ["Install", "Train", "Check", "Comment"]
    files = {path.name: path.read_bytes() for path in toy_checkpoint.iterdir()}
    hub.add_repo(read["env"]["RELEASED"], files=files)
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
    variables["PATH"] = f"{tools}:{variables['PATH']}"
    statuses = {
        name: subprocess.run(["bash", "-e", "-c", steps[name]["run"]], cwd=tmp_path, env=variables)
        for name in ("Train", "Check", "Comment")
    }
    assert statuses["Train"].returncode == statuses["Comment"].returncode == 0
    assert statuses["Check"].returncode in (0, 1, 2)
    assert (tmp_path / "told.txt").read_text() == "pr comment 7 --body-file gate.md\n"
    assert "by 40 rows of" in (tmp_path / "gate.md").read_text()
    assert '"status": ' in (tmp_path / "gate.json").read_text()
