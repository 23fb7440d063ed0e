"""Files as tools, surveys and people write them: what is read of each, told and asked about it.

`files/expected.json` has a line for each file: the columns, the rows of each class in all splits,
the number of rows of each finding, and the options that answer a question. `options` are given to
the command, too. `same` names a file of the same rows, `has` texts among them. A file is `refused`
with a message.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import finetune
from finetune.cli.prepare import check
from finetune.config import RunConfig
from finetune.data import splits
from finetune.errors import DataError
from finetune.uploads import Uploads

FILES = Path(__file__).parent / "files"
EXPECTED: dict[str, dict[str, Any]] = json.loads((FILES / "expected.json").read_text("utf-8"))
READ = [name for name, expected in EXPECTED.items() if "refused" not in expected]
# Findings about how many rows there are and what they say, not about how they are read.
OTHERS = {"few", "few-validation", "shared", "duplicates", "balance", "single", "positive"}


def given(name: str) -> list[str]:
    words = shlex.split(EXPECTED[name].get("options", "--checkpoint none"))
    return [str(FILES / word) if (FILES / word).is_file() else word for word in words]


@cache
def report(root: Path, name: str, *options: str) -> dict[str, Any]:
    """The report of `check --json` on a file."""
    words = ["--train_file", str(FILES / name), "--runs", str(root), *given(name), *options]
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.print", lambda *texts, **_: lines.append(" ".join(texts)))
        for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
            patch.setenv(variable, "1")
        check(["--json", *words])
    found: dict[str, Any] = json.loads("\n".join(lines))
    return found


@cache
def rows(root: Path, name: str) -> list[tuple[str, ...]]:
    """The texts and answers of all rows that are trained on or validated with."""
    words = given(name)
    options = {word[2:]: value for word, value in zip(words[::2], words[1::2], strict=True)}
    dataset = Uploads(root / "uploads").add({"train": FILES / name})
    pairs = splits.load_pairs(RunConfig(dataset=dataset).changed(**options), root)
    names = pairs.target.names
    return sorted(
        (*(row[text] for text in ("sentence1", "sentence2") if text in row), names[row["label"]])
        for split in pairs.splits.values()
        for row in split
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def seen(found: dict[str, Any]) -> dict[str, Any]:
    """What is compared of a report."""
    findings = [f for f in found["findings"] if f["kind"] not in OTHERS]
    classes = sum((Counter(split["classes"]) for split in found["splits"].values()), Counter())
    return {
        "columns": [name for name in found["columns"].values() if name],
        "classes": dict(sorted(classes.items())),
        "told": {f["kind"]: f["rows"] for f in findings if f["severity"] != "blocks"},
        "asked": {
            f["kind"]: [choice["option"] for choice in f["choices"]]
            for f in findings
            if f["severity"] == "blocks"
        },
    }


@pytest.mark.parametrize("name", READ)
def test_a_file_is_read_told_or_asked_about(name: str, root: Path) -> None:
    expected = dict(EXPECTED[name])
    expected.pop("options", "")
    if other := expected.pop("same", ""):
        assert rows(root, name) == rows(root, other)
    for text in expected.pop("has", []):
        assert any(text in row for row in rows(root, name)), text
    assert seen(report(root, name)) == {"classes": {}, "told": {}, "asked": {}} | expected


@pytest.mark.parametrize("name", sorted(EXPECTED.keys() - {*READ}))
def test_a_file_that_cannot_be_trained_on_is_refused(name: str, root: Path) -> None:
    with pytest.raises(DataError, match=re.escape(EXPECTED[name]["refused"])) as caught:
        rows(root, name)
    assert caught.value.remedy


def test_every_answer_to_a_finding_works_when_it_is_pasted(root: Path) -> None:
    """Each answer to a question, and one of each kind of others."""
    pasted: set[tuple[str, str]] = set()
    for name in READ:
        before = report(root, name)
        for finding in before["findings"]:
            for choice in finding["choices"]:
                kind, option = (finding["kind"], choice["field"]), choice["option"]
                if kind not in pasted or finding["severity"] == "blocks":
                    pasted.add(kind)
                    after = report(root, name, *shlex.split(option))
                    assert (finding["title"], finding["choices"]) not in questions(after), option
                    for undo in undone(after):
                        assert seen(report(root, name, *shlex.split(undo))) == seen(before)
    offered = {field for _kind, field in pasted}
    assert fields_of_remedies() <= offered  # a file belongs here for each field


def questions(found: dict[str, Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    return [(f["title"], f["choices"]) for f in found["findings"] if not f["done"]]


def undone(found: dict[str, Any]) -> list[str]:
    """The options that take back what was chosen."""
    done = [finding for finding in found["findings"] if finding["done"]]
    return [choice["option"] for finding in done for choice in finding["choices"]]


def fields_of_remedies() -> set[str]:
    """The fields in the code that makes remedies of findings, and answers to remarks."""
    calls = re.compile(r"""\b(?:Remedy|Answer)\(\s*"(\w+)\"""")
    sources = (path.read_text("utf-8") for path in Path(finetune.__file__).parent.rglob("*.py"))
    return {field for text in sources for field in calls.findall(text)}
