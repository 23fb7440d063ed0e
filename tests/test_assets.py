"""The bundled pairs: what the README beside them says is so."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

PAIRS = Path(__file__).resolve().parent.parent / "assets" / "pairs"
SPLITS = ("train", "validation", "test")
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
    read: dict[str, list[Row]] = {}
    for name in SPLITS:
        with (PAIRS / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            read[name] = [(r["sentence1"], r["sentence2"], int(r["label"])) for r in rows]
    return read


def normal(sentence: str) -> str:
    return re.sub(r"\W+", " ", sentence.lower()).strip()


def test_there_are_enough_and_they_are_balanced_as_mrpc(splits: dict[str, list[Row]]) -> None:
    assert sum(map(len, splits.values())) >= 1200
    for name, rows in splits.items():
        share = sum(label for *_, label in rows) / len(rows)
        assert 0.60 <= share <= 0.68, name


def test_no_sentence_stands_in_two_splits(splits: dict[str, list[Row]]) -> None:
    seen = {name: {normal(s) for row in rows for s in row[:2]} for name, rows in splits.items()}
    assert not seen["train"] & seen["validation"]
    assert not seen["train"] & seen["test"]
    assert not seen["validation"] & seen["test"]


def test_no_pair_twice_and_none_with_itself(splits: dict[str, list[Row]]) -> None:
    pairs = [frozenset(map(normal, row[:2])) for rows in splits.values() for row in rows]
    assert len(set(pairs)) == len(pairs)
    assert all(len(pair) == 2 for pair in pairs)


def test_every_sentence_reads_like_one(splits: dict[str, list[Row]]) -> None:
    for rows in splits.values():
        for sentence in (s for row in rows for s in row[:2]):
            assert 4 <= len(sentence.split()) <= 40, sentence
            assert sentence == sentence.strip()
            assert sentence[-1] in ".?!\"'", sentence
            assert sentence.isprintable()


def test_the_files_are_what_the_generator_makes(
    build: ModuleType, splits: dict[str, list[Row]]
) -> None:
    assert build.split(build.groups()) == splits


def test_topics_and_kinds_are_varied(build: ModuleType) -> None:
    groups = build.groups()
    topics = Counter(group["topic"] for group in groups)
    kinds = Counter(group["kind"] for group in groups)
    assert len(topics) >= 8
    assert {"roles", "negation", "number", "date", "name", "unit", "narrowed", "widened"} <= set(
        kinds
    )
    assert max(kinds.values()) < 0.25 * len(groups)


def test_the_baselines_are_as_written(build: ModuleType, splits: dict[str, list[Row]]) -> None:
    text = (PAIRS / "README.md").read_text(encoding="utf-8")
    for name, (accuracy, f1) in build.baselines(splits, "validation").items():
        assert f"| {name} | {accuracy:.3f} | {f1:.3f} |" in text, name


def test_nothing_of_the_real_corpus_is_among_them(glue: Path, splits: dict[str, list[Row]]) -> None:
    import pyarrow.parquet as pq

    ours = {normal(s) for rows in splits.values() for row in rows for s in row[:2]}
    for path in (glue / "mrpc").glob("*.parquet"):
        table = pq.read_table(path, columns=["sentence1", "sentence2"])
        theirs = {normal(s) for column in table.columns for s in column.to_pylist()}
        assert not ours & theirs


def test_groups_are_whole(build: ModuleType) -> None:
    for group in build.groups():
        assert set(group) == {"topic", "kind", "a1", "a2", "a3", "b1", "b2"}, json.dumps(group)
