"""What a run will cost, against what it did."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from finetune.config import RunConfig
from finetune.data import checks, splits
from finetune.data.check_report import CheckReport, SplitSummary, TokenLengths
from finetune.environment import devices
from finetune.jobs import check, cost, memory, pipeline, stop_switch
from finetune.owners import Visitor
from finetune.runs import events
from finetune.runs.store import RunStore
from finetune.training import accelerator, loop
from finetune.ui import cost_view

PAIRS = RunConfig(dataset="somebody/pairs")


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "list_accelerators", lambda: ())


@pytest.fixture
def toy(store: RunStore, toy_config: RunConfig, toy_pairs_folder: Path) -> RunConfig:
    """The toy's configuration on an upload of the toy's pairs."""
    files = {path.stem: path for path in toy_pairs_folder.glob("*.csv")}
    return toy_config.changed(dataset=store.uploads.add(files))


def write_report(store: RunStore, config: RunConfig, report: CheckReport) -> None:
    """A check of a configuration's pairs as it lies on disk."""
    job = check.check_folder(store, config)
    job.folder.mkdir(parents=True)
    job.describe_job("check", "", config.to_dict())
    (job.folder / "report.json").write_text(report.to_json())


def checked(
    store: RunStore, config: RunConfig, rows: int, held_out: int = 0, **lengths: Any
) -> None:
    splits = [SplitSummary("train", "train", rows, [rows])]
    splits += [SplitSummary("validation", "validation", held_out, [held_out])] * bool(held_out)
    lengths = {"rows": rows, "of": rows, "max_length": 128} | lengths if lengths else {}
    report = CheckReport("x", labels=["a"], splits=splits, lengths=TokenLengths(**lengths))
    write_report(store, config, report)


def timed(store: RunStore, config: RunConfig, rate: float = 50.0, device: str = "CPU") -> None:
    """A run of a configuration on 100 pairs that was timed."""
    run, steps = store.create(config), cost.count_steps(config, 100)
    run.append(events.Started(device=device))
    run.append(
        events.Prepared(
            train_examples=steps.pairs, validation_examples=20, steps_per_epoch=steps.per_epoch,
            total_steps=steps.total, labels=["a", "b"], parameters=1234, precision="no",
        )
    )  # fmt: skip
    for step in (1, 2):
        run.append(
            events.Stepped(
                step=step, epoch=0.1, loss=1, learning_rate=1e-5, samples_per_second=rate
            )
        )
    run.append(events.Evaluated(step=5, epoch=1, metrics={}, seconds=2.0, best=True))


@pytest.mark.parametrize(
    "values",
    [
        {"per_device_train_batch_size": 7},
        {"per_device_train_batch_size": 5, "gradient_accumulation_steps": 4},
        {"max_steps": 5, "num_train_epochs": 9},
        {"max_train_samples": 13},
        {"max_train_samples": 1000},
        {"swap_augmentation": True, "per_device_train_batch_size": 10},
        {"per_device_train_batch_size": 500, "gradient_accumulation_steps": 3},
    ],
    ids=str,
)
def test_the_steps_are_those_the_run_takes(
    values: dict[str, Any], store: RunStore, toy: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "_set_environment", lambda config: None)
    monkeypatch.setattr(accelerator, "keep_freed_memory", lambda: None)
    config = toy.changed(**values)
    checked(store, toy, rows=64)
    run = store.create(config)
    stream = pipeline.train_events(run, stop_switch.StopSwitch(run))
    prepared = next(event for event in stream if isinstance(event, events.Prepared))
    stream.close()
    steps = cost.estimate_cost(store, config).steps
    assert steps is not None
    assert (steps.per_epoch, steps.total) == (prepared.steps_per_epoch, prepared.total_steps)
    assert (steps.pairs, steps.about) == (prepared.train_examples, False)


def test_evaluations_are_counted_as_the_loop_makes_them(
    toy_config: RunConfig, toy_pairs: splits.Pairs
) -> None:
    from tests.support.training import evaluations, fit

    for config in (toy_config, toy_config.changed(eval_steps=5, max_steps=11)):
        stream, _ = fit(config, toy_pairs)
        assert cost.count_steps(config, 64).evaluations == len(evaluations(stream))


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_processes_share_the_batches_as_in_the_worker(processes: int) -> None:
    config = RunConfig(num_processes=processes, gradient_accumulation_steps=3)
    for pairs in (1, 63, 64, 65, 1746):
        steps = cost.count_steps(config, pairs)
        shared = -(-pairs // config.per_device_train_batch_size) / processes
        assert (steps.per_epoch, steps.total) == loop.count_steps(config, -int(-shared // 1))


def test_pairs_are_known_from_the_catalogue_or_an_earlier_run(store: RunStore) -> None:
    def count(config: RunConfig) -> tuple[int, int, bool] | None:
        steps = cost.estimate_cost(store, config).steps
        return (steps.pairs, steps.total, steps.about) if steps else None

    assert count(RunConfig(num_train_epochs=3, per_device_train_batch_size=8)) == (1746, 657, False)
    assert count(RunConfig(dataset="glue/mrpc")) == (3668, 1377, True)  # as the course prints
    assert count(PAIRS) is None
    timed(store, PAIRS.changed(swap_augmentation=True))
    assert (count(PAIRS) or [0])[0] == 100
    assert count(PAIRS.changed(label_column="other")) is None


def test_the_time_is_from_the_run_most_like_it(store: RunStore) -> None:
    assert cost.estimate_cost(store, PAIRS).time is None
    timed(store, PAIRS.changed(dataset="glue/mrpc", name="other pairs"), rate=10.0)
    checked(store, PAIRS, rows=200, held_out=40)
    other = cost.estimate_cost(store, PAIRS).time
    assert other is not None
    # Three epochs of 200 pairs at 10 a second, and three evaluations of twice as many pairs.
    assert (other.seconds, other.run, other.same_pairs) == (60 + 3 * 4, "other pairs", False)
    timed(store, PAIRS.changed(name="same pairs"), rate=50.0)
    same = cost.estimate_cost(store, PAIRS).time
    assert same is not None
    assert (same.seconds, same.run, same.same_pairs) == (600 / 50 + 3 * 2, "same pairs", True)


@pytest.mark.parametrize(
    ("values", "device"),
    [
        ({"checkpoint": "roberta-base"}, "CPU"),
        ({"mixed_precision": "no"}, "CPU"),
        ({"use_lora": True}, "CPU"),
        ({"per_device_train_batch_size": 32}, "CPU"),
        ({"max_length": 32}, "CPU"),
        ({"padding": "max_length", "max_length": 64}, "CPU"),
        ({}, "NVIDIA H100"),
    ],
)
def test_a_run_that_is_not_comparable_tells_no_time(
    store: RunStore, values: dict[str, Any], device: str
) -> None:
    config = RunConfig(max_length=128)
    timed(store, config, device=device)
    bins = [(0, 40, 100)]
    checked(store, config, 100, bins=bins, longest=39)
    assert (cost.estimate_cost(store, config).time is None) == (device != "CPU")
    assert cost.estimate_cost(store, config.changed(**values)).time is None
    longer = cost.estimate_cost(store, config.changed(max_length=64)).time  # than all pairs are
    assert (longer is None) == (device != "CPU")


def test_what_is_cut_is_read_off_the_lengths(store: RunStore) -> None:
    bins = [(0, 10, 50), (10, 20, 30), (20, 41, 20)]
    checked(store, RunConfig(max_length=128), 100, bins=bins, longest=40)
    for length, share, about in ((128, 0.0, False), (40, 0.0, False), (19, 0.2, True),
                                 (9, 0.5, True)):  # fmt: skip
        cut = cost.estimate_cost(store, RunConfig(max_length=length)).cut
        assert cut is not None
        assert cut.share == pytest.approx(share)
        assert (cut.longest, cut.about) == (40, about)
    # Another checkpoint has other tokens.
    assert cost.estimate_cost(store, RunConfig(checkpoint="roberta-base")).cut is None


def test_another_visitors_files_and_places_are_not_looked_at(
    store: RunStore, toy: RunConfig
) -> None:
    checked(store, toy, rows=64)
    timed(store, RunConfig())
    other = store.for_visitor(Visitor(("somebody",)))
    assert cost.estimate_cost(store, toy).steps is not None
    assert cost.estimate_cost(other, toy) == cost.Estimate()
    assert cost.estimate_cost(other, RunConfig()).time is None
    assert cost.estimate_cost(other, RunConfig(checkpoint="/etc")) == cost.Estimate()


def test_parameters_are_counted_from_the_header_alone(
    toy_checkpoint: Path, toy_config: RunConfig, toy_pairs: splits.Pairs
) -> None:
    from finetune.training import model

    shape = memory.read_shape(str(toy_checkpoint))
    assert shape is not None
    assert (shape.layers, shape.hidden, shape.wide, shape.heads) == (2, 32, 64, 2)
    for values in ({}, {"freeze_embeddings": True}, {"frozen_layers": 2}):
        config = toy_config.changed(**values)  # type: ignore[arg-type]
        _, classifier = model.load_classifier(str(toy_checkpoint), toy_pairs.labels, 32)
        assert shape.parameters == classifier.num_parameters()
        adapted = model.apply_config(classifier, config)
        trained = sum(tensor.numel() for tensor in adapted.parameters() if tensor.requires_grad)
        assert memory.trained_parameters(config, shape) == pytest.approx(trained, rel=0.02), values


def test_more_is_estimated_for_more() -> None:
    shape = memory.read_shape(RunConfig().checkpoint)
    assert shape is not None

    def total(**values: Any) -> int:
        estimate = memory.estimate_memory(RunConfig(mixed_precision="bf16", **values), shape)
        assert estimate is not None
        return estimate.total

    assert total(per_device_train_batch_size=64) > 2 * total()
    assert total(gradient_checkpointing=True) < total()
    assert total(freeze_embeddings=False) > total() > total(optim="adafactor")
    assert total(dropout=0.1) > total()


@pytest.mark.parametrize("spoil", [lambda path: path.write_bytes(b"\xff" * 8), Path.unlink])
def test_a_damaged_checkpoint_is_unknown(
    tmp_path: Path, spoil: Callable[[Path], object], store: RunStore
) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    spoil(tmp_path / "model.safetensors")
    estimate = cost.estimate_cost(store, RunConfig(checkpoint=str(tmp_path)))
    assert (estimate.memory, estimate.parameters) == (None, None)


def test_another_checkpoints_lengths_are_measured_from_a_part_of_the_pairs(
    store: RunStore, toy: RunConfig, toy_checkpoint: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(toy_checkpoint, other)
    report = checks.check_pairs(toy, store.root)
    write_report(store, toy, report)
    assert not cost.measure_token_lengths(store, toy)  # the check has
    config = toy.changed(checkpoint=str(other), max_length=report.lengths.longest - 1)

    def unknown(config: RunConfig) -> str:
        estimate = cost.estimate_cost(store, config)
        assert (estimate.cut is None) == bool(estimate.uncut)
        return estimate.uncut

    assert unknown(config) == "asked"
    assert cost.measure_token_lengths(store, config)
    assert not cost.measure_token_lengths(store, config)
    cut = cost.estimate_cost(store, config).cut
    assert cut is not None
    assert (cut.about, cut.longest, cut.share > 0) == (True, report.lengths.longest, True)
    (other / "tokenizer.json").write_text('{"model": 7}')
    os.utime(other / "tokenizer.json", ns=(1, 1))
    assert cost.measure_token_lengths(store, config)
    assert unknown(config) == "tokenizer"
    (other / "tokenizer.json").unlink()
    assert not cost.measure_token_lengths(store, config)
    assert unknown(config) == "tokenizer"
    assert unknown(config.changed(checkpoint="somebody/model")) == "checkpoint"
    assert unknown(config.changed(label_column="x")) == "pairs"


def shown(store: RunStore, config: RunConfig, **values: Any) -> str:
    return cost_view.costs(cost.estimate_cost(store, config), config, **values)


def test_the_page_says_what_is_unknown(store: RunStore) -> None:
    text = shown(store, RunConfig(dataset="somebody/pairs", checkpoint="somebody/model"))
    assert text.count("unknown") == 4
    assert "until the pairs are counted" in text
    assert "under Data" in text
    assert "until the first steps" in shown(store, RunConfig())
    timed(store, RunConfig(dataset="somebody/pairs"), rate=50.0)
    checked(store, RunConfig(dataset="somebody/others"), 200)
    text = shown(store, RunConfig(dataset="somebody/others"))
    assert "roughly 10 s" in text
    assert "on other pairs, perhaps longer or shorter ones" in text
    for reason, words in (
        ("pairs", "Examine the pairs under Data"),
        ("checkpoint", "&lt;b&gt;/model is not on this disk: press Examine"),
        ("tokenizer", "&lt;b&gt;/model is not quick to use: press Examine"),
        ("asked", "measured now"),
    ):
        estimate = cost.Estimate(uncut=reason)  # type: ignore[arg-type]
        assert words in cost_view.costs(estimate, RunConfig(checkpoint="<b>/model"))


def test_the_page_says_what_is_known(store: RunStore) -> None:
    bins = [(0, 41, 1746)]
    checked(store, RunConfig(max_length=16), 1746, bins=bins, longest=40, max_length=16, cut=0.031)
    timed(store, RunConfig(name="<b>first", max_length=16), rate=87.3)
    config = RunConfig(max_length=16, num_train_epochs=2)
    text = shown(store, config)
    assert "<b>438</b>" in text
    assert "1,746 pairs, 219 steps an epoch, 2 epochs" in text
    assert "max_length 16 cuts 3% of the pairs" in text
    assert "parameters" in text
    assert "<b>first" not in text
    assert "ft-warn" not in text
    several = shown(store, config, grid=cost_view.GridCost(4, 480.0))
    assert "87 samples/s of &lt;b&gt;first, on the same pairs" in several
    assert "all 4 runs 8 min 00 s" in several
    rare = shown(store, RunConfig(learning_rate=0.5))
    assert "learning_rate is 0.5; 1e-06 to 0.001 is usual." in rare
