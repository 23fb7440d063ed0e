"""Files as tools, surveys and people write them: what is read of each, told and asked about it.

`files/expected.json` has a line for each file: the columns, the rows of each class in all splits,
the number of rows of each finding, and the options that answer a question. `options` are given to
the command, too. `same` names a file of the same rows, `has` texts among them. A file is `refused`
with a message. `cells.json` is a table of what a cell of a label column says, in the notations of
tools, programs and people, and of what a check reports.
"""

import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import finetune
from finetune.api.verb import VERBS
from finetune.cli.verbs import carry_out
from finetune.config import RunConfig
from finetune.data import check_report, checks, splits
from finetune.errors import DataError
from finetune.inference import files
from finetune.inference.file_request import PredictionRequest
from finetune.tasks.base import MULTI_LABEL, SINGLE_LABEL
from finetune.uploads import Uploads
from tests.support import toys
from tests.support.uploads import upload_file

FILES = Path(__file__).parent / "files"
EXPECTED = json.loads((FILES / "expected.json").read_text("utf-8"))
READ = [name for name, expected in EXPECTED.items() if "refused" not in expected]
# Findings about how many rows there are and what they say, not about how they are read.
OTHERS = {"few", "few-validation", "shared", "duplicates", "balance", "single", "positive"}


def given(name):
    words = shlex.split(EXPECTED[name].get("options", "--checkpoint none"))
    return [str(FILES / word) if (FILES / word).is_file() else word for word in words]


@cache
def report(root, name, *options):
    """The report of `check --json` on a file."""
    words = ["--train_file", str(FILES / name), "--runs", str(root), *given(name), *options]
    lines = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.print", lambda *texts, **_: lines.append(" ".join(texts)))
        for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
            patch.setenv(variable, "1")
        carry_out(VERBS["check"], ["--json", *words])
    found = json.loads("\n".join(lines))
    return found


@cache
def rows(root, name):
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
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


def seen(found):
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
def test_a_file_is_read_told_or_asked_about(name, root):
    expected = dict(EXPECTED[name])
    expected.pop("options", "")
    if other := expected.pop("same", ""):
        assert rows(root, name) == rows(root, other)
    for text in expected.pop("has", []):
        assert any(text in row for row in rows(root, name)), text
    assert seen(report(root, name)) == {"classes": {}, "told": {}, "asked": {}} | expected


@pytest.mark.parametrize("name", sorted(EXPECTED.keys() - {*READ}))
def test_a_file_that_cannot_be_trained_on_is_refused(name, root):
    with pytest.raises(DataError, match=re.escape(EXPECTED[name]["refused"])) as caught:
        rows(root, name)
    assert caught.value.remedy


def test_every_answer_to_a_finding_works_when_it_is_pasted(root):
    """Each answer to a question, and one of each kind of others."""
    pasted = set()
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


def questions(found):
    return [(f["title"], f["choices"]) for f in found["findings"] if not f["done"]]


def undone(found):
    """The options that take back what was chosen."""
    done = [finding for finding in found["findings"] if finding["done"]]
    return [choice["option"] for finding in done for choice in finding["choices"]]


def fields_of_remedies():
    """The fields in the code that makes remedies of findings, and answers to remarks."""
    calls = re.compile(r"""\b(?:Remedy|Answer)\(\s*"(\w+)\"""")
    sources = (path.read_text("utf-8") for path in Path(finetune.__file__).parent.rglob("*.py"))
    return {field for text in sources for field in calls.findall(text)}


REPEATED = 48


class Case(NamedTuple):
    """The cells of label columns, which are repeated, and what is read of them."""

    cells: Sequence[Any]  # lists for several columns
    labels: Mapping[str, int] = {}  # label or class -> rows
    ending: str = "csv"
    columns: str = "label"  # their names, with blanks between them
    values: Mapping[str, str] = {}  # of the configuration
    task: str = MULTI_LABEL
    scores: tuple[float, ...] = ()  # the different ones
    asked: Sequence[Mapping[str, str]] = ()  # the choices of a question that blocks
    kinds: str = ""  # of findings, among others
    rows: int = REPEATED  # that are trained on or validated with
    alone: bool = False  # the labels that are changed are not known in another file


CASES = {
    name: Case(**case)
    for name, case in json.loads(Path(__file__).with_name("cells.json").read_text("utf-8")).items()
}


def write_labelled(path, case):
    """Write texts beside the cells of a case, by the path's ending."""
    names = ["text", *case.columns.split()]
    cells = case.cells if len(names) > 2 else [[cell] for cell in case.cells]
    texts = [f"{one} {n} and {two}" for n, (one, two, _) in enumerate(toys.rows(REPEATED))]
    rows = [[text, *own] for text, own in zip(texts, cycle(cells), strict=False)]
    records = [dict(zip(names, row, strict=True)) for row in rows]
    frame = pd.DataFrame(rows, columns=names, dtype=object)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    elif path.suffix == ".xlsx":
        frame.to_excel(path, index=False)
    elif path.suffix == ".json":
        path.write_text(json.dumps(records))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    else:
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")


@pytest.mark.parametrize("name", CASES)
def test_a_cell_says_what_its_writer_meant(tmp_path, name):
    case = CASES[name]
    path = tmp_path / f"a.{case.ending}"
    write_labelled(path, case)
    config = upload_file(tmp_path, path.name, path.read_bytes()).changed(**case.values)
    report = checks.check_pairs(config, tmp_path)
    found = check_report.summarise(report)
    findings = {finding["kind"]: finding for finding in found["findings"]}
    assert set(case.kinds.split()) <= set(findings)
    if case.asked:
        choices = next(one for one in found["findings"] if one["severity"] == "blocks")["choices"]
        assert [{one["field"]: one["value"]} for one in choices] == [*case.asked]
        return
    assert found["blocks"] == []
    assert report.task == case.task
    assert sum(split["rows"] for split in found["splits"].values()) == case.rows
    counts = [split["classes"] for split in found["splits"].values()]
    labels = {label: sum(count[label] for count in counts) for label in counts[0]}
    assert labels == dict(case.labels)
    if case.task == SINGLE_LABEL:
        assert [*labels] == [*case.labels]  # the order of the classes
    if case.alone:
        return
    # The same cells in a file to predict
    target = splits.load_pairs(config, tmp_path).target
    asked = PredictionRequest("", path.name, "text", label=report.columns["label"])
    read = files.read_labelled(path, asked, target)
    if case.scores:
        assert np.unique(read.truth) == pytest.approx(np.array(case.scores))
    elif case.task == SINGLE_LABEL:
        assert np.bincount(read.truth).tolist() == [*labels.values()]
    else:
        assert read.truth.sum(axis=0).tolist() == [*labels.values()]
    assert len(read.truth) == case.rows
