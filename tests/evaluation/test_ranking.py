"""Which of several runs: their ranking, the set that may hold the best, and the cheapest of it."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import finetune
from finetune.__main__ import main
from finetune.config import RunConfig
from finetune.environment import devices
from finetune.errors import StoreError
from finetune.evaluation import ranking, report, saved_predictions
from finetune.evaluation.ranking import RankedRun, Ranking
from finetune.metrics.catalog import F1
from finetune.metrics.intervals import Interval
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.tasks.base import REGRESSION, Target
from tests.support.evaluated_runs import evaluated
from tests.support.picked_runs import picked_run


@pytest.fixture(scope="module")
def runs(toy_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Three runs on the same pairs, the first of which is plainly worse."""
    app: Any = SimpleNamespace(store=RunStore(tmp_path_factory.mktemp("rank") / "runs"))
    skills = ((1, 0.8), (2, 3.0), (5, 2.9))
    return [evaluated(app, toy_checkpoint, seed, skill) for seed, skill in skills]


def test_the_best_stands_first_with_those_that_may_be_as_good(
    runs: list[Run], store: RunStore, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = ranking.rank_runs([*runs, picked_run(store, 1), store.create(RunConfig())])
    assert [run.id for run in found.runs][-1] == runs[0].id
    assert [run.may_be_best for run in found.runs] == [True, True, False]
    assert (found.examples, found.others, found.measured) == (60, 2, False)
    for run in found.runs:  # the same score as an evaluation's
        analysis = finetune.evaluate(Run(runs[0].folder.parent / run.id)).analysis
        expected = analysis.expected.get("f1", analysis.scores["f1"])
        assert run.score == expected
    weights = (runs[0].best / "model.safetensors").stat().st_size
    assert found.runs[0].megabytes == weights / 1e6
    root, table = f"--runs={runs[0].folder.parent}", tmp_path / "rank.csv"
    assert main(["rank", root, "--no-measure", "--csv", str(table)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line[0] for line in printed[1:4]] == ["*", "*", " "]
    assert printed[4].startswith("Of 3 runs on the same 60 pairs, 2 may be the best; the cheapest")
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    assert [row["may_be_best"] for row in rows] == ["true", "true", "false"]
    assert [row["milliseconds"] for row in rows] == ["", "", ""]
    assert main(["rank", root, "nobody"]) == 2
    assert main(["rank", root, runs[0].id]) == 2
    assert "No two of these runs" in capsys.readouterr().err


def test_a_speed_is_measured_once_for_each_model_and_machine(
    runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = finetune.rank(runs)
    assert all(run.milliseconds for run in found.runs)
    assert found.measured
    kept = ranking.read_speed(runs[1])
    assert kept is not None
    assert (kept.pairs, kept.step) == (60, runs[1].best_step())
    monkeypatch.setattr(devices, "processor_name", lambda: "another machine")
    assert ranking.read_speed(runs[1]) is None


@pytest.mark.parametrize(
    ("costs", "cheapest", "said"),
    [
        ([(3.0, 90), (2.0, 400), (0.1, 10)], "run 1", "run 1 (2.0 ms a pair, 400.0 MB)"),
        ([(3.0, 90), (None, 40), (0.1, 10)], "run 1", "run 1 (40.0 MB)"),
        ([(2.0, 90), (2.0, 40), (0.1, 10)], "run 1", "run 1 (2.0 ms a pair, 40.0 MB)"),
    ],
)
def test_the_cheapest_of_those_that_may_be_the_best_is_named(
    costs: list[tuple[float | None, float]], cheapest: str, said: str
) -> None:
    """By its time, if all were measured; never one that is worse."""
    listed = tuple(
        RankedRun(str(n), f"run {n}", Interval(0.9, 0.8, 1.0), n < 2, size, time)
        for n, (time, size) in enumerate(costs)
    )
    found = Ranking(F1, 2, 100, listed, 0)
    assert found.cheapest.name == cheapest
    assert said in found.sentence
    alone = Ranking(F1, 2, 100, listed[1:], 0)
    assert alone.sentence.startswith("Of 2 runs on the same 100 pairs, only run 1 may be the best")


def test_the_range_of_the_training_scores_makes_no_other_pairs() -> None:
    truth = np.arange(4.0)
    wide, narrow = (Target((), task=REGRESSION, low=low, high=5.0) for low in (0.0, 1.0))

    def answered(target: Target, truth: np.ndarray) -> report.KeptAnswers:
        return report.KeptAnswers(Run(Path()), target, truth, None, truth)

    first = answered(wide, truth)
    assert report.same_pairs(first, answered(narrow, truth))
    assert not report.same_pairs(first, answered(narrow, truth + 1))
    assert not report.same_pairs(first, answered(Target(("a", "b")), truth))


def test_damaged_answers_are_left_out(store: RunStore) -> None:
    one, two, three = (picked_run(store, 1, seed) for seed in range(3))
    saved_predictions.save_logits(one, 1, np.zeros((3, 2), np.float32), np.array([0, 1, 5]))
    found = ranking.rank_runs([one, two, three])
    assert {run.id for run in found.runs} == {two.id, three.id}
    with pytest.raises(StoreError, match="finished with a model"):
        ranking.rank_runs([])
