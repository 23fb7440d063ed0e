"""The bundled pairs agree with the README beside them."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from pathlib import Path
from types import ModuleType

import pandas as pd
import pyarrow.parquet as pq
import pytest

PAIRS = Path(__file__).resolve().parent.parent / "assets" / "pairs"
Row = tuple[str, str, int]


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_pairs", PAIRS / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def splits() -> dict[str, list[Row]]:
    return {
        name: list(pd.read_csv(PAIRS / f"{name}.csv").itertuples(index=False, name=None))
        for name in ("train", "validation", "test")
    }


def normal(sentence: str) -> str:
    return re.sub(r"\W+", " ", sentence.lower()).strip()


def test_the_files_are_what_the_generator_makes_and_as_written(
    build: ModuleType, splits: dict[str, list[Row]]
) -> None:
    groups = build.groups()
    assert build.split(groups) == splits
    kinds = Counter(group["kind"] for group in groups)
    assert max(kinds.values()) < 0.25 * len(groups)
    text = (PAIRS / "README.md").read_text(encoding="utf-8")
    for name, (accuracy, f1) in build.baselines(splits, "validation").items():
        assert f"| {name} | {accuracy:.3f} | {f1:.3f} |" in text, name


def test_there_are_enough_half_equivalent_and_none_leaks(splits: dict[str, list[Row]]) -> None:
    assert sum(map(len, splits.values())) >= 1200
    for name, rows in splits.items():
        assert sum(label for *_, label in rows) == len(rows) / 2, name
    sentences = [{normal(s) for row in rows for s in row[:2]} for rows in splits.values()]
    assert sum(map(len, sentences)) == len(set.union(*sentences)), "a sentence is in two splits"
    pairs = [frozenset(map(normal, row[:2])) for rows in splits.values() for row in rows]
    assert len(set(pairs)) == len(pairs)
    assert all(len(pair) == 2 for pair in pairs)


def test_nothing_of_the_real_corpus_is_among_them(glue: Path, splits: dict[str, list[Row]]) -> None:
    ours = {normal(s) for rows in splits.values() for row in rows for s in row[:2]}
    for path in (glue / "mrpc").glob("*.parquet"):
        table = pq.read_table(path, columns=["sentence1", "sentence2"])
        assert not ours & {normal(s) for column in table.columns for s in column.to_pylist()}
