"""The benchmarks' own parts; the figures themselves are taken by hand."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from finetune.config import RunConfig
from finetune.data import tables
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.ui import app
from tests.benchmarks import analysis, load, machine, memory, prediction
from tests.benchmarks import page as pages
from tests.support import toys
from tests.support.toys import story


def test_the_made_file_has_the_rows_it_says(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    memory.write(path, 500)
    table = tables.open_table(path)
    assert len(list(table.rows(lambda line, why: pytest.fail(why)))) == 500


def test_a_worker_is_measured_and_its_failure_said() -> None:
    found = memory.measure(["finetune", "check", "--help"])
    assert found.peak > 5
    assert found.seconds > 0
    with pytest.raises(RuntimeError, match="no_such_option"):
        memory.measure(["finetune", "check", "--no_such_option"])


@pytest.mark.parametrize("classes", [2, 12])
def test_an_evaluation_is_measured_whole(store: RunStore, classes: int) -> None:
    for seed in (0, 1):
        analysis.make(store, 300, classes, seed)
    found = analysis.measure(store)
    assert all(value > 0 for value in found.values())


def test_prediction_is_measured_on_the_same_pairs(
    toy_checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = prediction.Sides(toy_checkpoint, [(one, two) for one, two, _ in toys.rows(400)])
    assert prediction._batch(sides, 1) > 0
    prediction._alone(sides, 3)
    prediction._crowd(sides, 1, 0.1)
    prediction._same(sides, 50)
    said = capsys.readouterr().out
    assert "400 pairs" in said
    assert "one pair: pipeline" in said
    assert "50 clients: pipeline one by one" in said
    exact = next(line for line in said.splitlines() if line.startswith("fp32: "))
    assert "labels equal on 100.00% of 50 pairs" in exact
    assert float(exact.rsplit(" ", 1)[1]) < 1e-4


def test_a_halt_counts_as_long_as_it_lasts() -> None:
    """Steps a second apart, but for five that nothing was done in."""
    steps = [(float(at), at) for at in range(10)] + [(float(at + 5), at) for at in range(10, 20)]
    assert load._taken(steps, 2.5, 7.5) == 5
    assert load._taken(steps, 8, 18) == 5
    assert load._taken(steps, 9.0, 15.0) == 1  # and here it was the halt itself


@pytest.mark.parametrize("clients", [10, pytest.param(50, marks=pytest.mark.long)])
def test_visitors_watch_and_ask_without_an_error(
    store: RunStore, toy_checkpoint: Path, adopt: Callable[[Run], None], clients: int
) -> None:
    """The load benchmark's crowd, for some seconds, while a run writes ten events a second."""
    assert machine.described().startswith("processor: ")
    run = store.create(RunConfig(checkpoint=str(toy_checkpoint), max_length=32))
    for event in story()[:2]:
        run.append(event)
    toys.copy_model(toy_checkpoint, run.best)
    adopt(run)
    made = app.build(store)
    _, url, _ = app.launch(made, store, prevent_thread_lock=True, quiet=True)
    crowd = load.Crowd(url, run.id, run.id, clients=clients, asking=1.5)
    try:
        with crowd.there():
            for step in range(1, 41):
                run.append(
                    events.Stepped(
                        step=step, epoch=0.1, loss=1.0, learning_rate=1e-5,
                        samples_per_second=1.0,
                    )
                )  # fmt: skip
                time.sleep(0.1)
    finally:
        made.close()
    assert crowd.failures == []
    assert len(crowd.polls) > 2 * clients
    assert len(crowd.answers) > clients
    assert all(mine and mine[-1][1] > 20 for mine in crowd.sights)  # all saw the run go on
    assert len(load._delays(run, crowd.sights)) > 10 * clients


@pytest.mark.long
def test_a_page_is_opened_asked_and_watched(store: RunStore, chromium: str) -> None:
    made = app.build(store)
    _, url, _ = app.launch(made, store, prevent_thread_lock=True, quiet=True)
    try:
        with pages.chromium() as browser, pages.watched(store) as run:
            paint, usable, _ = pages.opening(browser, url)
            answered, cost = pages.asking(url, run, psutil.Process(), 3)
            late = pages.watching(browser, url, run, 3)
    finally:
        made.close()
    assert paint > 0
    assert usable > 0
    assert cost >= 0
    assert len(answered) == len(late) == 3
    assert all(seconds > 0 for seconds in (*answered, *late))


@pytest.mark.long
@pytest.mark.parametrize("side", pages.SIDES)
def test_a_start_is_measured_and_leaves_no_process(side: str, tmp_path: Path) -> None:
    before = psutil.Process().children()
    assert pages.starting(side, tmp_path) > 0
    assert psutil.Process().children() == before
