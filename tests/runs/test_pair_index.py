"""What a run has seen is known by numbers, and is said of a file that has it in it."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from finetune.config import RunConfig
from finetune.data import splits
from finetune.inference import file_request, files
from finetune.inference.file_request import PredictionRequest
from finetune.runs import pair_index
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from tests.inference.test_files import judged, write_csv
from tests.support import toys

TRAINED = [(f"the cat sees dog {n} .", f"a cat sees the dog {n} .") for n in range(40)]
VALIDATED = [(f"the owl likes bee {n} .", f"a owl likes the bee {n} .") for n in range(10)]
HEAD = ("sentence1", "sentence2", "label")


@pytest.fixture
def run(store: RunStore, toy_checkpoint: Path) -> Run:
    made = store.create(RunConfig(max_length=32))
    toys.copy_model(toy_checkpoint, made.best)
    pair_index.write_pair_index(made, {"train": numbers(TRAINED), "validation": numbers(VALIDATED)})
    return made


def numbers(pairs: list[tuple[str, str]]) -> Any:
    return pair_index.pair_hashes([one for one, _ in pairs], [two for _, two in pairs])


def labelled(pairs: list[tuple[str, str]]) -> list[tuple[str, ...]]:
    return [(*pair, str(n % 2)) for n, pair in enumerate(pairs)]


def marks(out: Path) -> list[str]:
    with out.open(encoding="utf-8") as file:
        return [line["trained_on"] for line in csv.DictReader(file)]


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("the cat sees dog 3 .", "a cat sees the dog 3 .", True),
        ("a cat sees the dog 3 .", "the cat sees dog 3 .", True),
        ("The CAT  sees dog 3", "a cat sees\tthe dog 3!", True),
        ("the cat sees dog 3 .", "a cat sees the dog 4 .", False),
        ("the cat sees dog 3 .", "", False),
        (None, 7, False),
    ],
)
def test_a_pair_is_known_in_either_order_and_as_leaks_are_compared(
    run: Run, first: Any, second: Any, same: bool
) -> None:
    known = pair_index.read_pair_index(run)
    assert known is not None
    assert known.among("train", pair_index.pair_hashes([first], [second])).tolist() == [same]


def test_what_a_run_has_seen_are_the_rows_it_uses(store: RunStore, tmp_path: Path) -> None:
    """The numbers of the pairs that are loaded are those of the file's rows, whichever are used."""
    folder = toys.write_pairs(tmp_path / "pairs")
    pairs = toys.load(folder, max_train_samples=20)
    run = store.create(RunConfig())
    pair_index.write_pair_index(run, pairs.numbers)
    known = pair_index.read_pair_index(run)
    assert known is not None
    for split in pair_index.SPLITS:
        with (folder / f"{split}.csv").open(encoding="utf-8") as file:
            rows = [(line["sentence1"], line["sentence2"]) for line in csv.DictReader(file)]
        used = list(zip(*(pairs.splits[split][:][name] for name in HEAD[:2]), strict=True))
        swapped = {pair[::-1] for pair in used}
        found = known.among(split, numbers(rows))
        assert found.tolist() == [row in used or row in swapped for row in rows]
        assert found.sum() >= len(set(used))
        assert split != "train" or not found.all()


def test_single_sentences_are_known_too(store: RunStore) -> None:
    run = store.create(RunConfig())
    one = pair_index.pair_hashes(["The cat."], None)
    pair_index.write_pair_index(run, {"train": one, "validation": one[:0]})
    known = pair_index.read_pair_index(run)
    assert known is not None
    assert known.among("train", pair_index.pair_hashes(["the cat", "a dog"], None)).tolist() == [
        True,
        False,
    ]
    assert not known.among("validation", one).any()


def test_the_file_is_read_past_in_blocks(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_index, "_BLOCK", 7)
    draw = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 1000)
    pair_index.write_pair_index(run, {"train": draw[:500], "validation": draw[:0]})
    known = pair_index.read_pair_index(run)
    assert known is not None
    assert known.among("train", draw).tolist() == [True] * 500 + [False] * 500
    assert (run.folder / "seen" / "train").stat().st_size == 8 * 500


def test_of_an_old_run_or_half_a_file_nothing_is_said(run: Run, tmp_path: Path) -> None:
    path = write_csv(tmp_path / "pairs.csv", [HEAD, *labelled(TRAINED)])
    (run.folder / "seen" / "train").write_bytes(b"123")
    assert pair_index.read_pair_index(run) is None
    (run.folder / "seen" / "train").unlink()
    assert pair_index.read_pair_index(run) is None
    report = judged(run, path, tmp_path / "out.csv")
    assert "trained_on" not in report
    assert "not_trained_on" not in report
    assert "trained_on" not in (tmp_path / "out.csv").read_text().splitlines()[0]


def test_rows_that_were_trained_on_are_told_apart_and_scored_apart(
    run: Run, tmp_path: Path
) -> None:
    new = [(f"the bee has {n} .", f"a bee has {n} .") for n in range(30)]
    swapped = [pair[::-1] for pair in TRAINED[:5]]
    rows = [*labelled(TRAINED[5:]), *labelled(new), *labelled(swapped), *labelled(VALIDATED)]
    path = write_csv(tmp_path / "pairs.csv", [HEAD, *rows, ("", "a", "1")])
    report = judged(run, path, tmp_path / "out.csv")
    assert (report["rows"], report["errors"]) == (81, 1)
    assert (report["trained_on"], report["validated_on"], report["labelled"]) == (40, 10, 80)
    expected = ["true"] * 35 + ["false"] * 30 + ["true"] * 5 + ["false"] * 10
    assert marks(tmp_path / "out.csv") == [*expected, ""]

    apart = report["not_trained_on"]
    others = write_csv(tmp_path / "new.csv", [HEAD, *labelled(new), *labelled(VALIDATED)])
    alone = judged(run, others, tmp_path / "new-out.csv")
    assert alone["trained_on"] == 0
    assert "not_trained_on" not in alone
    assert apart == {name: alone[name] for name in ("labelled", "scores", "confusion")}
    assert apart["scores"] != report["scores"]


def test_too_few_new_rows_are_not_scored_apart(run: Run, tmp_path: Path) -> None:
    new = [(f"the bee has {n} .", f"a bee has {n} .") for n in range(files.ENOUGH - 1)]
    path = write_csv(tmp_path / "pairs.csv", [HEAD, *labelled(TRAINED), *labelled(new)])
    assert judged(run, path, tmp_path / "out.csv")["not_trained_on"] == {"labelled": len(new)}


def test_every_kind_of_result_says_which_rows_were_trained_on(run: Run, tmp_path: Path) -> None:
    rows = [TRAINED[0], ("the bee", "a bee")]
    named = [dict(zip(HEAD, pair, strict=False)) for pair in rows]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in named))
    judged(run, tmp_path / "a.jsonl", tmp_path / "out.jsonl")
    lines = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert [one["trained_on"] for one in lines] == [True, False]
    # A column of that name, of another type, makes room; so does one called prediction.
    table = pa.table(
        {name: [one[name] for one in named] for name in HEAD[:2]}
        | {"trained_on": [3, 4], "prediction": [0, 1], "n": [1, 2]}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    judged(run, tmp_path / "a.parquet", tmp_path / "out.parquet")
    found = pq.read_table(tmp_path / "out.parquet")
    assert found.column("trained_on").to_pylist() == [True, False]
    assert found.column("n").to_pylist() == [1, 2]


def test_what_was_trained_on_is_known_while_the_file_is_judged(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "WINDOW", 10)
    path = write_csv(tmp_path / "pairs.csv", [HEAD, *labelled(TRAINED)])
    totals = files.RunningTotals()
    told: list[dict[str, int]] = []
    asked = file_request.check_columns(PredictionRequest(run.id, path.name, ""), path)
    files.predict_file(
        run,
        asked,
        path,
        tmp_path / "out.csv",
        lambda *_: told.append(dict(totals.overlap)),
        totals=totals,
    )
    assert [one["trained_on"] for one in told] == [10, 20, 30, 40]


def test_loaded_pairs_have_the_numbers_of_what_is_compared(toy_pairs: splits.Pairs) -> None:
    for split in pair_index.SPLITS:
        texts = toy_pairs.splits[split][:]
        assert np.array_equal(
            toy_pairs.numbers[split], pair_index.pair_hashes(texts["sentence1"], texts["sentence2"])
        )
