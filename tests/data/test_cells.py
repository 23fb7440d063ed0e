"""What a cell of a label column says, in the notations of tools, programs and people: one table of
cells and of what a check reports. Another file with the same cells is read alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from finetune.config import RunConfig
from finetune.data import check_report, checks, splits
from finetune.inference import files
from finetune.inference.file_request import PredictionRequest
from finetune.tasks.base import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from tests.support.tables import write_labelled
from tests.support.uploads import upload_file

ROWS = 48
SEVERAL, SINGLE = {"task": MULTI_LABEL}, {"task": SINGLE_LABEL}


class Case(NamedTuple):
    """The cells of label columns, which are repeated, and what is read of them."""

    cells: Sequence[Any]  # tuples for several columns
    labels: Mapping[str, int] = {}  # label or class -> rows
    ending: str = "csv"
    columns: str = "label"  # their names, with blanks between them
    values: Mapping[str, str] = {}  # of the configuration
    task: str = MULTI_LABEL
    scores: tuple[float, ...] = ()  # the different ones
    asked: Sequence[Mapping[str, str]] = ()  # the choices of a question that blocks
    kinds: str = ""  # of findings, among others
    rows: int = ROWS  # that are trained on or validated with


THREE = {"cold side": 24, "hot": 24, "mild": 24}
MARKED = {"cold": 16, "hot": 32, "mild": 16}
CLASSES = {"hot": 16, "mild": 16, "none": 16}
CHOICE = [SEVERAL, SINGLE]
WAYS = [{"decimal_mark": "."}, {"decimal_mark": ","}]
NAMED = "cold hot mild"
JOINED = {"label_column": "cold | hot | mild"}
CASES = {
    # Lists
    "JSON": Case(['["hot", "mild"]', '["mild"]', '["cold side", "hot"]', '["cold side"]'], THREE),
    "Python": Case(["['hot', 'mild']", "['mild']", "('cold side', 'hot')", "['cold side']"], THREE,
                   "tsv"),
    "NumPy": Case(["['hot' 'mild']", "['mild']", "['cold side' 'hot']", "['cold side']"], THREE),
    "PostgreSQL": Case(["{hot,mild}", "{mild}", '{"cold side",hot}', '{"cold side"}'], THREE),
    "R": Case(['c("hot", "mild")', "mild", 'c("cold side", "hot")', "cold side"], THREE),
    "missing ones": Case(["['hot', 'mild']", "nan", "['mild']", ""], {"hot": 12, "mild": 24},
                         columns="moods", kinds="no-labels"),
    "no quotes": Case(["[hot, mild]", "[mild]", "[cold side, hot]", "[cold side]"], THREE, "xlsx"),
    "typed": Case([["hot", "mild"], ["mild"], ["cold side", "hot"], ["cold side"]], THREE, "json"),
    "Parquet": Case([["hot", "mild"], ["mild"], ["cold side", "hot"], ["cold side"]], THREE,
                    "parquet", "tags"),
    "numbers": Case([[1, 2], [2], [3, 1], [3]], {"1": 24, "2": 24, "3": 24}, "jsonl"),
    "empty ones": Case(["[]", '["hot"]', '["hot", "mild"]'], {"hot": 32, "mild": 16},
                       kinds="no-labels"),
    "a broken one": Case(["['hot', 'mild']", "['mild']", "['hot', 'mi"], {"hot": 16, "mild": 32},
                         rows=32, kinds="unreadable-labels"),
    "nested": Case(['[["hot"], ["mild"]]', "hot", "mild"], {"hot": 16, "mild": 16}, rows=32,
                   task=SINGLE_LABEL, kinds="unreadable-labels"),
    # Lists of one
    "one each": Case([["hot"], ["mild"], ["none"]], CLASSES, "jsonl", task=SINGLE_LABEL),
    "one each, as texts": Case(["['hot']", '["mild"]', "[none]"], CLASSES, task=SINGLE_LABEL),
    "one each at first": Case([["hot"]] * 23 + [["mild"]] * 24 + [["hot", "mild"]],
                              {"hot": 24, "mild": 25}, "json"),
    "one or none": Case([["hot"], ["mild"], []], {"hot": 16, "mild": 16}, "parquet", rows=32,
                        task=SINGLE_LABEL, kinds="unlabelled"),
    # A place a label
    "places": Case(["[1, 0, 1]", "[0, 1, 0]", "[0, 1, 1]"], {"1": 16, "2": 32, "3": 32},
                   kinds="label-names"),
    "places, as NumPy": Case(["[1 0 1]", "[0 1 0]", "[0. 1. 1.]"], {"1": 16, "2": 32, "3": 32},
                             "tsv", "targets"),
    "places of booleans": Case([[True, False], [False, True], [True, True]], {"1": 32, "2": 32},
                               "parquet"),
    "places with names": Case(["[1, 0, 1]", "[0, 1, 0]", "[0, 1, 1]"], MARKED | {"cold": 16,
                              "hot": 32, "mild": 32}, values={"label_map": "1=cold 2=hot 3=mild"}),
    "one place each": Case(["[1, 0, 0]", "[0, 1, 0]", "[0, 0, 1]"], {"1": 16, "2": 16, "3": 16},
                           task=SINGLE_LABEL),
    "never and always": Case(["[1, 0, 1]", "[1, 0, 0]"], {"1": 48, "2": 0, "3": 24},
                             kinds="label-of-none label-of-all"),
    "always the same": Case(["[1, 1]"], {"1": 48, "2": 48}, kinds="label-of-all constant"),
    # Objects
    "spaCy": Case([{"hot": 1.0, "mild": 0.0}, {"hot": 0, "mild": 1}, {"hot": 1, "mild": 1}],
                  {"hot": 32, "mild": 32}, "jsonl", "cats"),
    "spaCy in Parquet": Case([{"hot": 1, "mild": 0}, {"hot": 0, "mild": 1}, {"hot": 1, "mild": 1}],
                             {"hot": 32, "mild": 32}, "parquet", "cats"),
    "spaCy as text": Case(["{'hot': True, 'mild': False}", '{"hot": false, "mild": true}',
                           '{"hot": 1, "mild": 1}'], {"hot": 32, "mild": 32}, "tsv"),
    "one class": Case([{"hot": 1, "mild": 0}, {"hot": 0, "mild": 1}], {"hot": 24, "mild": 24},
                      "json", "cats", task=SINGLE_LABEL),
    "shares": Case([{"hot": 0.9, "mild": 0.2}, {"hot": 0.1, "mild": 0.7}, {"hot": 0.5, "mild": 1}],
                   {"hot": 32, "mild": 32}, "jsonl", "cats", kinds="shares"),
    "choices": Case(['{"choices": ["hot", "mild"]}', "mild", '{"choices": ["hot"]}'],
                    {"hot": 32, "mild": 32}, columns="mood"),
    "typed choices": Case([{"choices": ["hot", "mild"]}, "mild", "hot"], {"hot": 32, "mild": 32},
                          "json", "mood"),
    "choices in lists": Case(['[{"from": 1, "choices": ["hot"]}, {"from": 2, "choices": ["mild"]}]',
                              '[{"from": 1, "choices": ["hot"]}]'], {"hot": 48, "mild": 24}),
    "choices deeper": Case([[{"value": {"choices": ["hot"]}, "type": "choices"}],
                            [{"value": {"choices": ["mild"]}, "type": "choices"}]],
                           {"hot": 24, "mild": 24}, "json", "result", task=SINGLE_LABEL),
    "named objects": Case([[{"id": 4, "name": "hot", "color": "d7"}, {"id": 7, "name": "mild"}],
                           [{"id": 4, "name": "hot", "color": "d7"}]], {"hot": 48, "mild": 24},
                          "json", "labels"),
    "other objects": Case(['{"mood": "hot", "side": "left"}', "hot", "mild"],
                          {"hot": 16, "mild": 16}, rows=32, task=SINGLE_LABEL,
                          kinds="unreadable-labels"),
    # Texts with separators
    "semicolons": Case(["hot;mild", "mild", "cold side; hot", "cold side"], THREE),
    "double bars": Case(["hot || mild", "mild", "cold side || hot", "cold side"], THREE),
    **{f"between: {mark!r}": Case([f"hot{mark}mild", "mild", f"cold{mark}hot", "cold"],
                                  {"cold": 12, f"cold{mark}hot".strip(): 12}, ending, task="",
                                  asked=CHOICE)
       for mark, ending in {"#": "csv", "\n": "csv", " ": "tsv", "\t": "csv", " / ": "jsonl",
                            "+": "parquet", "、": "csv", " - ": "csv"}.items()},
    "lines that are split": Case(["hot\nmild", "mild", "cold side\nhot", "cold side"], THREE,
                                 values=SEVERAL),
    "blanks that are split": Case(["hot mild", "mild", "cold_side hot", "cold_side"],
                                  {"cold_side": 24, "hot": 24, "mild": 24}, "tsv", values=SEVERAL),
    "one that is given": Case(["hot~mild", "mild", "cold~hot", "cold"],
                              {"cold": 24, "hot": 24, "mild": 24},
                              values=SEVERAL | {"label_separator": "~"}),
    "combinations": Case(["hot#mild", "hot", "mild"], {"hot": 16, "hot#mild": 16, "mild": 16},
                         values=SINGLE, task=SINGLE_LABEL, kinds="several-labels"),
    "plain classes": Case(["very good", "good", "not_good", "semi-good"],
                          {"good": 12, "not_good": 12, "semi-good": 12, "very good": 12},
                          task=SINGLE_LABEL),
    # Several columns
    "one name": Case([("hot", "mild"), ("mild", ""), ("cold", "")], columns="tags tags",
                     asked=[{"label_column": "tags | tags (3)"}, {"label_column": "tags"},
                            {"label_column": "tags (3)"}], task=SINGLE_LABEL),
    "one name, joined": Case([("hot", "mild"), ("mild", ""), ("cold", "")], columns="tags tags",
                             values={"label_column": "tags | tags (3)"},
                             labels={"cold": 16, "hot": 16, "mild": 32}),
    "copies": Case([("hot", "hot"), ("mild", "mild")], {"hot": 24, "mild": 24},
                   columns="label label", task=SINGLE_LABEL),
    "numbered": Case([("hot", "mild", ""), ("mild", "", ""), ("cold", "hot", "mild")],
                     columns="label1 label2 label3", ending="parquet", task=SINGLE_LABEL,
                     asked=[{"label_column": "label1 | label2 | label3"},
                            *({"label_column": f"label{n}"} for n in (1, 2, 3))]),
    "annotators": Case([("hot", "mild"), ("mild", "mild"), ("hot", "hot")], columns="ann_1 ann_2",
                       values={"label_column": "ann_1 | ann_2"}, labels={"hot": 32, "mild": 32}),
    "x": Case([("", "x", ""), ("x", "x", ""), ("", "", "X")], columns=NAMED, task=SINGLE_LABEL,
              asked=[JOINED, *({"label_column": name} for name in NAMED.split())]),
    **{f"marks: {yes}": Case([(no, yes, no), (yes, yes, no), (no, no, yes)], MARKED, ending,
                             NAMED, JOINED)
       for yes, no, ending in (("x", "", "xlsx"), ("✓", "", "csv"), ("✔️", "", "csv"),
                               ("☑", "☐", "tsv"), ("ja", "nein", "csv"), (True, False, "parquet"),
                               (1, 0, "json"))},
    "a word among marks": Case([(0, 1, 0), (1, 1, 0), (0, 0, 1), (0, "maybe", 1)],
                               {"cold": 12, "hot": 24, "mild": 12}, "csv", NAMED, JOINED, rows=36,
                               kinds="unreadable-labels"),
    "a mark or nothing": Case(["x", "", ""], {"(empty)": 32, "x": 16}, task=SINGLE_LABEL,
                              kinds="empty-cells"),
    # -1
    "-1": Case([-1, 0, 1], asked=[{"label_map": "-1="}, {"label_map": "-1=-1"}], task=SINGLE_LABEL,
               labels={"-1": 16, "0": 16, "1": 16}),
    "-1 of four": Case([-1, 0, 1, 2], {"0": 12, "1": 12, "2": 12}, "parquet", rows=36,
                       values={"label_map": "-1="}, task=SINGLE_LABEL),
    "-1 that is a class": Case([-1, 0, 1], {"-1": 16, "0": 16, "1": 16}, "jsonl",
                               values={"label_map": "-1=-1"}, task=SINGLE_LABEL),
    "-1 or 1": Case([-1, 1], {"-1": 24, "1": 24}, task=SINGLE_LABEL),
    "-1 in columns": Case([(0, 1, 0), (-1, -1, -1), (1, 1, 1)], columns=NAMED, values=JOINED,
                          asked=[{"label_map": "-1="}, {"label_map": "-1=0"}]),
    "-1 that is left out": Case([(0, 1, 0), (-1, -1, -1), (1, 1, 1)],
                                {"cold": 16, "hot": 32, "mild": 16}, "csv", NAMED,
                                JOINED | {"label_map": "-1="}, rows=32),
    # Numbers
    "thousands": Case(["250", "981", "1,022", "12,400"], scores=(250, 981, 1022, 12400)),
    "thousands of Germany": Case(["250", "981", "1.022", "12.400"], scores=(250, 981, 1022, 12400)),
    "thousands of India": Case(["2,50,000", "9,810", "12,40,000"], scores=(9810, 250000, 1240000)),
    "dollars": Case(["$1,022.50", "$981", "$12", "$8,504"], ending="tsv",
                    scores=(12, 981, 1022.5, 8504)),
    "euros": Case(["1.022,50 €", "981 €", "12 €", "8.504 €"], ending="tsv",
                  scores=(12, 981, 1022.5, 8504)),
    "francs": Case(["CHF 1'022", "CHF 981", "CHF 12'400"], scores=(981, 1022, 12400)),
    "per cent": Case(["12 %", "45%", "7,5 %"], scores=(7.5, 12, 45)),
    "decimals with a comma": Case(["0,125", "1,250", "3,875"], scores=(0.125, 1.25, 3.875)),
    "decimals with a point": Case(["1.125", "1.250", "3.875"], scores=(1.125, 1.25, 3.875)),
    "both": Case(["1.5", "1,022", "981.25", "12,400"], scores=(1.5, 981.25, 1022, 12400)),
    "in doubt": Case(["1,125", "1,250", "3,875"], asked=WAYS),
    "in doubt, by a comma": Case(["1,125", "1,250", "3"], values=WAYS[1], scores=(1.125, 1.25, 3),
                                 kinds="decimals"),
    "in doubt, by a point": Case(["1,125", "1,250", "3"], values=WAYS[0], scores=(3, 1125, 1250),
                                 kinds="decimals"),
    "other currencies": Case(["$5", "€7", "$9", "€12"], scores=(5, 7, 9, 12), kinds="units"),
    "typed fractions": Case([1.125, 1.25, 3.875], ending="parquet", scores=(1.125, 1.25, 3.875)),
}  # fmt: skip
for name, case in CASES.items():
    if case.scores or case.asked == WAYS:
        CASES[name] = case._replace(task=REGRESSION)


def check(folder: Path, case: Case) -> tuple[Path, RunConfig, check_report.CheckReport]:
    several = " " in case.columns
    path = folder / f"a.{case.ending}"
    cells = case.cells if several else [[cell] for cell in case.cells]
    write_labelled(path, case.columns.split(), cells, ROWS)
    config = upload_file(folder, path.name, path.read_bytes()).changed(**case.values)
    return path, config, checks.check_pairs(config, folder)


@pytest.mark.parametrize("name", CASES)
def test_a_cell_says_what_its_writer_meant(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    path, config, report = check(tmp_path, case)
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
