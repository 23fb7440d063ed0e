"""The bundled pairs agree with the README beside them."""

import re
import runpy
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from tests.benchmarks import machine

PAIRS = Path(__file__).resolve().parent.parent / "assets" / "pairs"


@pytest.fixture(scope="module")
def splits():
    return {
        name: list(pd.read_csv(PAIRS / f"{name}.csv").itertuples(index=False, name=None))
        for name in ("train", "validation", "test")
    }


def test_the_files_are_what_the_generator_makes_and_as_written(splits):
    build = SimpleNamespace(**runpy.run_path(str(PAIRS / "build.py")))
    groups = build.groups()
    assert build.split(groups) == splits
    kinds = Counter(group["kind"] for group in groups)
    assert max(kinds.values()) < 0.25 * len(groups)
    text = (PAIRS / "README.md").read_text(encoding="utf-8")
    for name, (accuracy, f1) in build.baselines(splits, "validation").items():
        assert f"| {name} | {accuracy:.3f} | {f1:.3f} |" in text, name


def test_nothing_of_the_real_corpus_is_among_them(splits):
    """None of MRPC's sentences, where its files lie beside the project."""
    if not (files := [*machine.MRPC.glob("*.parquet")]):
        pytest.skip("MRPC is not beside the project")
    ours = {plain(s) for rows in splits.values() for row in rows for s in row[:2]}
    for path in files:
        table = pd.read_parquet(path, columns=["sentence1", "sentence2"])
        assert not ours & {plain(s) for column in table for s in table[column]}


def plain(text):
    return " ".join(re.findall(r"\w+", text.lower()))
