"""The examples of the READMEs and the notebook run as they are written, from top to bottom."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from finetune.runs.store import RunStore
from tests.support import toys
from tests.support.browser import ROOT
from tests.support.hub import TOKEN


@pytest.fixture
def signed_in(hub):
    """As after `hf auth login`."""
    token = Path(os.environ["HF_HOME"], "token")
    token.write_text(TOKEN)
    yield hub
    token.unlink()


def run_example(readme, replaced, folder):
    """What the Python of a README prints, with some of its words replaced."""
    text = (ROOT / readme).read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    for old, new in replaced.items():
        assert old in code
        code = code.replace(old, new)
    return run_code(code, folder)


def run_code(code, folder):
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "FINETUNE_RUNS": str(folder / "runs"), "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.long
def test_the_api_example(app, signed_in, tmp_path):
    toys.write_pairs(tmp_path)
    (tmp_path / "test.csv").rename(tmp_path / "tickets.csv")
    replaced = {"http://127.0.0.1:7860": app.url, '"num_train_epochs": 1': '"max_steps": 8'}
    printed = run_example("finetune/ui/README.md", replaced, tmp_path)
    assert "equivalent" in printed
    repo = signed_in.repos["model", "ada/my-paraphrase-model"]
    assert len(repo.commits) == 1  # the second push changes nothing


@pytest.mark.long
def test_the_python_example(signed_in, tmp_path):
    printed = run_example("README.md", {"user/name": "ada/name"}, tmp_path)
    assert "equivalent" in printed
    assert signed_in.repos["model", "ada/name"].private
    ended = RunStore(tmp_path / "runs").runs()[0].state()
    assert ended.best.metrics["accuracy"] > ended.prepared.majority["accuracy"] + 0.1


@pytest.mark.long
def test_the_notebook_trains_evaluates_and_predicts(hub, tmp_path):
    notebook = json.loads((ROOT / "assets" / "finetune.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    shell, python = cells[:2], cells[2:]
    assert [cell["metadata"]["tags"] for cell in shell] == [["install"], ["share"]]
    assert "python app.py --share" in "".join(shell[1]["source"])
    assert all(cell["outputs"] == [] for cell in cells)
    printed = run_code("\n".join("".join(cell["source"]) for cell in python), tmp_path)
    assert re.search(r"^f1: 0\.\d{3} \(0\.\d{3} to [01]\.\d{3}\)$", printed, re.MULTILINE)
    assert "equivalent" in printed
    (run,) = RunStore(tmp_path / "runs").runs()
    assert run.state().step == 2
