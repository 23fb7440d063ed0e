"""A run records hashes of its pairs, and recognises them in a file."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from finetune.config import RunConfig
from finetune.inference import files
from finetune.runs import pair_index
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from tests.support import toys
from tests.support.judging import judged, write_csv

TRAINED = [(f"the cat sees dog {n} .", f"a cat sees the dog {n} .") for n in range(40)]
VALIDATED = [(f"the owl likes bee {n} .", f"a owl likes the bee {n} .") for n in range(10)]
HEAD = ("sentence1", "sentence2", "label")


@pytest.fixture
def run(store: RunStore, toy_checkpoint: Path) -> Run:
    run = store.create(RunConfig(max_length=32))
    toys.copy_model(toy_checkpoint, run.best)
    pair_index.write_pair_index(run, {"train": hashes(TRAINED), "validation": hashes(VALIDATED)})
    return run


def hashes(pairs: list[tuple[Any, Any]]) -> Any:
    return pair_index.pair_hashes(*(list(side) for side in zip(*pairs, strict=True)))


def contained(run: Run, split: str, numbers: Any) -> list[bool]:
    index = pair_index.read_pair_index(run)
    assert index is not None
    return index.among(split, numbers).tolist()  # type: ignore[no-any-return]


def labelled(pairs: list[tuple[str, str]]) -> list[tuple[str, ...]]:
    return [(*pair, str(n % 2)) for n, pair in enumerate(pairs)]


def test_a_pair_is_known_in_either_order_and_as_leaks_are_compared(run: Run) -> None:
    pairs: list[tuple[Any, Any]] = [
        ("a cat sees the dog 3 .", "the cat sees dog 3 ."),
        ("The CAT  sees dog 3", "a cat sees\tthe dog 3!"),
        ("the cat sees dog 3 .", "a cat sees the dog 4 ."),
        ("the cat sees dog 3 .", ""),
        (None, 7),
    ]
    assert contained(run, "train", hashes(pairs)) == [True, True, False, False, False]
    sentences = pair_index.pair_hashes(["the cat", "a dog"], None)
    pair_index.write_pair_index(run, {"train": sentences[:1], "validation": sentences[:0]})
    assert contained(run, "train", sentences) == [True, False]
    assert contained(run, "validation", sentences) == [False, False]


def test_rows_that_were_trained_on_are_marked_and_scored_apart(run: Run, tmp_path: Path) -> None:
    new = [(f"the bee has {n} .", f"a bee has {n} .") for n in range(30)]
    swapped = [pair[::-1] for pair in TRAINED[:5]]
    rows = [*labelled(TRAINED[5:]), *labelled(new), *labelled(swapped), *labelled(VALIDATED)]
    path = write_csv(tmp_path / "pairs.csv", [HEAD, *rows, ("", "a", "1")])
    report = judged(run, path, tmp_path / "out.csv")
    assert (report["rows"], report["errors"]) == (81, 1)
    assert (report["trained_on"], report["validated_on"], report["labelled"]) == (40, 10, 80)
    expected = ["true"] * 35 + ["false"] * 30 + ["true"] * 5 + ["false"] * 10 + [""]
    with (tmp_path / "out.csv").open(encoding="utf-8") as file:
        assert [line["trained_on"] for line in csv.DictReader(file)] == expected

    apart = report["not_trained_on"]
    others = write_csv(tmp_path / "new.csv", [HEAD, *labelled(new), *labelled(VALIDATED)])
    alone = judged(run, others, tmp_path / "new-out.csv")
    assert alone["trained_on"] == 0
    assert "not_trained_on" not in alone
    assert apart == {name: alone[name] for name in ("labelled", "scores", "confusion")}
    assert apart["scores"] != report["scores"]
    few = [HEAD, *labelled(TRAINED), *labelled(new[: files.ENOUGH - 1])]
    report = judged(run, write_csv(tmp_path / "few.csv", few), tmp_path / "few-out.csv")
    assert report["not_trained_on"] == {"labelled": files.ENOUGH - 1}
    (run.folder / "seen" / "train").unlink()
    report = judged(run, path, tmp_path / "out.csv")
    assert not {"trained_on", "not_trained_on"} & report.keys()
    assert "trained_on" not in (tmp_path / "out.csv").read_text().splitlines()[0]
