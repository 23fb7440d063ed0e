"""What a run will cost, against what it did."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from finetune.config import RunConfig
from finetune.data import checks, splits
from finetune.data.check_report import CheckReport, SplitSummary, TokenLengths
from finetune.environment import devices
from finetune.jobs import check, cost, memory, pipeline, steps, stop_switch
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.training import accelerator, loop
from finetune.ui import cost_view


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "list_accelerators", lambda: ())


@pytest.fixture
def toy(store: RunStore, toy_config: RunConfig, toy_pairs_folder: Path) -> RunConfig:
    """The toy's configuration on an upload of the toy's pairs."""
    files = {path.stem: path for path in toy_pairs_folder.glob("*.csv")}
    return toy_config.changed(dataset=store.uploads.add(files))


def examined(
    store: RunStore,
    chosen: RunConfig,
    rows: int,
    lengths: TokenLengths | None = None,
    held_out: int = 0,
) -> None:
    """An examination of a configuration's pairs as it lies on disk."""
    job = check.check_folder(store, chosen)
    folder = job.folder
    folder.mkdir(parents=True)
    job.describe_job("check", "", chosen.to_dict())
    splits = [SplitSummary("train", "train", rows, [rows])]
    splits += [SplitSummary("validation", "validation", held_out, [held_out])] * bool(held_out)
    made = CheckReport("x", labels=["a"], splits=splits, lengths=lengths or TokenLengths())
    (folder / "report.json").write_text(made.to_json())


def measured(store: RunStore, chosen: RunConfig, rate: float = 50.0, **changed: Any) -> Run:
    """A run of a configuration that was timed."""
    run = store.create(chosen)
    found = steps.count_steps(chosen, 100)
    run.append(events.Started(device=changed.pop("device", "CPU (2 threads)")))
    run.append(
        events.Prepared(
            train_examples=found.pairs, validation_examples=20, steps_per_epoch=found.per_epoch,
            total_steps=found.total, labels=["a", "b"], parameters=1234, precision="no",
        )
    )  # fmt: skip
    for step in range(1, 6):
        run.append(
            events.Stepped(
                step=step, epoch=0.1, loss=1, learning_rate=1e-5, samples_per_second=rate
            )
        )
    run.append(events.Evaluated(step=5, epoch=1, metrics={}, seconds=2.0, best=True))
    return run


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "a last batch that is smaller": {"per_device_train_batch_size": 7},
    "accumulation": {"per_device_train_batch_size": 5, "gradient_accumulation_steps": 4},
    "max_steps": {"max_steps": 5, "num_train_epochs": 9},
    "a part of the rows": {"max_train_samples": 13},
    "more than there are": {"max_train_samples": 1000},
    "both orders": {"swap_augmentation": True, "per_device_train_batch_size": 10},
    "by length": {"group_by_length": True, "per_device_train_batch_size": 6},
    "a batch above all": {"per_device_train_batch_size": 500, "gradient_accumulation_steps": 3},
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_steps_are_those_the_run_takes(
    name: str, store: RunStore, toy: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "_set_environment", lambda config: None)
    monkeypatch.setattr(accelerator, "keep_freed_memory", lambda: None)
    chosen = toy.changed(**CONFIGURATIONS[name])
    examined(store, toy, rows=64)
    run = store.create(chosen)
    stream = pipeline.train_events(run, stop_switch.StopSwitch(run))
    prepared = next(one for one in stream if isinstance(one, events.Prepared))
    stream.close()
    found = cost.estimate_cost(store, chosen).steps
    assert found is not None
    assert (found.per_epoch, found.total) == (prepared.steps_per_epoch, prepared.total_steps)
    assert found.pairs == prepared.train_examples
    assert not found.about


def test_evaluations_are_counted_as_the_loop_makes_them(
    toy_config: RunConfig, toy_pairs: splits.Pairs
) -> None:
    from tests.support.training import evaluations, fit

    for values in ({}, {"eval_steps": 3}, {"eval_steps": 5, "max_steps": 11}):
        chosen = toy_config.changed(**values)  # type: ignore[arg-type]
        stream, _ = fit(chosen, toy_pairs)
        assert steps.count_steps(chosen, 64).evaluations == len(evaluations(stream))


@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("pairs", [1, 63, 64, 65, 1746])
def test_processes_share_the_batches_as_in_the_worker(processes: int, pairs: int) -> None:
    chosen = RunConfig(num_processes=processes, gradient_accumulation_steps=3)
    shared = -(-pairs // chosen.per_device_train_batch_size) / processes
    found = steps.count_steps(chosen, pairs)
    assert (found.per_epoch, found.total) == loop.count_steps(chosen, -int(-shared // 1))


def test_the_bundled_pairs_are_known_without_an_examination(
    store: RunStore, tmp_path: Path
) -> None:
    found = cost.estimate_cost(store, RunConfig()).steps
    assert found is not None
    assert found.pairs == sum(splits.load_pairs(RunConfig(), tmp_path).counts["train"])
    assert not found.about
    hub = cost.estimate_cost(store, RunConfig(dataset="glue/mrpc")).steps
    assert hub is not None
    assert (hub.pairs, hub.total, hub.about) == (3668, 1377, True)  # as the course prints
    assert cost.estimate_cost(store, RunConfig(dataset="somebody/pairs")).steps is None


def test_an_earlier_run_knows_the_pairs(store: RunStore) -> None:
    chosen = RunConfig(dataset="somebody/pairs", swap_augmentation=True)
    measured(store, chosen)
    found = cost.estimate_cost(store, chosen.changed(swap_augmentation=False)).steps
    assert found is not None
    assert found.pairs == 100
    assert cost.estimate_cost(store, chosen.changed(label_column="other")).steps is None


def test_the_time_is_from_the_run_most_like_it(store: RunStore) -> None:
    chosen = RunConfig(dataset="somebody/pairs")
    assert cost.estimate_cost(store, chosen).time is None
    measured(store, chosen.changed(dataset="glue/mrpc", name="other pairs"), rate=10.0)
    examined(store, chosen, rows=200)
    other = cost.estimate_cost(store, chosen).time
    assert other is not None
    assert (other.seconds, other.run, other.same_pairs) == (60.0, "other pairs", False)
    measured(store, chosen.changed(name="same pairs"), rate=50.0)
    same = cost.estimate_cost(store, chosen).time
    assert same is not None
    # Three epochs of 200 pairs at 50 a second, and three evaluations of two seconds.
    assert (same.seconds, same.run) == (600 / 50 + 3 * 2, "same pairs")


@pytest.mark.parametrize(
    "changed",
    [
        {"checkpoint": "roberta-base"},
        {"mixed_precision": "no"},
        {"use_lora": True},
        {"per_device_train_batch_size": 32},
        {"max_length": 64},
        {"padding": "max_length"},
    ],
)
def test_a_run_that_is_not_comparable_tells_no_time(
    store: RunStore, changed: dict[str, Any]
) -> None:
    measured(store, RunConfig())
    assert cost.estimate_cost(store, RunConfig()).time is not None
    assert cost.estimate_cost(store, RunConfig(**changed)).time is None


def test_a_run_of_another_device_tells_no_time(store: RunStore) -> None:
    measured(store, RunConfig(), device="NVIDIA H100")
    assert cost.estimate_cost(store, RunConfig()).time is None


def test_max_length_beyond_the_longest_changes_no_time(store: RunStore) -> None:
    measured(store, RunConfig())
    lengths = TokenLengths([(0, 40, 100)], rows=100, of=100, longest=39, max_length=128)
    examined(store, RunConfig(), 100, lengths)
    assert cost.estimate_cost(store, RunConfig(max_length=64)).time is not None
    cut = cost.estimate_cost(store, RunConfig(max_length=32)).time
    assert cut is not None
    assert not cut.same_pairs


def test_what_is_cut_is_read_off_the_lengths(store: RunStore) -> None:
    bins = [(0, 10, 50), (10, 20, 30), (20, 41, 20)]
    lengths = TokenLengths(bins, rows=100, of=100, longest=40, max_length=128)
    examined(store, RunConfig(), 100, lengths)
    for length, share, about in ((128, 0.0, False), (40, 0.0, False), (19, 0.2, True),
                                 (9, 0.5, True)):  # fmt: skip
        found = cost.estimate_cost(store, RunConfig(max_length=length)).cut
        assert found is not None
        assert found.share == pytest.approx(share)
        assert (found.longest, found.about) == (40, about)
    # Another checkpoint has other tokens.
    assert cost.estimate_cost(store, RunConfig(checkpoint="roberta-base")).cut is None


def test_another_visitors_files_and_places_are_not_looked_at(
    store: RunStore, toy: RunConfig
) -> None:
    from finetune.owners import Visitor

    examined(store, toy, rows=64)
    measured(store, RunConfig())
    other = store.for_visitor(Visitor(("somebody",)))
    assert cost.estimate_cost(store, toy).steps is not None
    assert cost.estimate_cost(other, toy) == cost.Estimate()
    assert cost.estimate_cost(other, RunConfig()).time is None
    assert cost.estimate_cost(other, RunConfig(checkpoint="/etc")) == cost.Estimate()


def test_parameters_are_counted_from_the_header_alone(
    toy_checkpoint: Path, toy_config: RunConfig, toy_pairs: splits.Pairs
) -> None:
    from finetune.training import model

    _, classifier = model.load_classifier(str(toy_checkpoint), toy_pairs.labels, 32)
    found = memory.read_shape(str(toy_checkpoint))
    assert found is not None
    assert found.parameters == classifier.num_parameters()
    assert found.embeddings == classifier.get_input_embeddings().weight.numel()
    assert (found.layers, found.hidden, found.wide, found.heads) == (2, 32, 64, 2)
    for values in ({"freeze_embeddings": True}, {"frozen_layers": 2}, {}):
        chosen = toy_config.changed(**values)  # type: ignore[arg-type]
        _, fresh = model.load_classifier(str(toy_checkpoint), toy_pairs.labels, 32)
        adapted = model.apply_config(fresh, chosen)
        trained = sum(one.numel() for one in adapted.parameters() if one.requires_grad)
        assert memory.trained_parameters(chosen, found) == pytest.approx(trained, rel=0.02), values


def test_more_is_estimated_for_more() -> None:
    shape = memory.read_shape(RunConfig().checkpoint)
    assert shape is not None

    def total(**values: Any) -> int:
        found = memory.estimate_memory(RunConfig(**values), shape, half=True)
        assert found is not None
        return found.total

    assert total(per_device_train_batch_size=64) > 2 * total()
    assert total(gradient_checkpointing=True) < total()
    assert total(freeze_embeddings=False) > total() > total(optim="adafactor")
    assert total(dropout=0.1) > total()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b"\xff" * 8),
        lambda path: path.write_bytes(struct.pack("<Q", 4) + b"null"),
        lambda path: path.write_bytes(b""),
        lambda path: path.unlink(),
    ],
)
def test_a_damaged_checkpoint_is_unknown(
    tmp_path: Path, spoil: Callable[[Path], object], store: RunStore
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 8}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    spoil(tmp_path / "model.safetensors")
    found = cost.estimate_cost(store, RunConfig(checkpoint=str(tmp_path)))
    assert (found.memory, found.parameters) == (None, None)


def long(tokens: int, rows: int = 100) -> TokenLengths:
    """Rows that all have so many tokens."""
    bins = [(tokens, tokens + 1, rows)]
    return TokenLengths(bins, rows=rows, of=rows, longest=tokens, max_length=128)


def test_the_time_of_other_pairs_is_scaled_by_their_lengths(store: RunStore) -> None:
    there = RunConfig(dataset="somebody/short", name="short ones")
    here = RunConfig(dataset="somebody/long", num_train_epochs=1)
    measured(store, there, rate=50.0)
    examined(store, there, 100, long(16))
    examined(store, here, 100, long(80))
    found = cost.estimate_cost(store, here).time
    assert found is not None
    assert found.tokens == (16, 80)
    # 200 tokens a step are the optimizer's: 25 an example in batches of 8.
    assert found.seconds == pytest.approx(100 / 50 * (25 + 80) / (25 + 16))
    said = cost_view.costs(cost.estimate_cost(store, here), here)
    assert "roughly 5 s" in said
    assert "50 samples/s of short ones, whose examples had about 16 tokens where these have 80" in (
        said
    )
    shorter = cost.estimate_cost(store, here.changed(max_length=40)).time  # the ends are cut off
    assert shorter is not None
    assert shorter.seconds < found.seconds
    larger = cost.estimate_cost(store, here.changed(per_device_train_batch_size=16)).time
    assert larger is not None
    assert larger.seconds < found.seconds


def test_without_lengths_the_time_of_other_pairs_is_said_to_be_rough(store: RunStore) -> None:
    measured(store, RunConfig(dataset="somebody/pairs"), rate=50.0)
    chosen = RunConfig(dataset="somebody/others")
    examined(store, chosen, 200)
    said = cost_view.costs(cost.estimate_cost(store, chosen), chosen)
    assert "roughly 10 s" in said
    assert "on other pairs, perhaps longer or shorter ones" in said


def test_the_evaluations_of_other_pairs_are_timed_by_their_number(store: RunStore) -> None:
    measured(store, RunConfig(dataset="somebody/pairs"), rate=50.0)  # 20 pairs in 2 seconds
    chosen = RunConfig(dataset="somebody/others", num_train_epochs=1)
    examined(store, chosen, 100, held_out=40)
    found = cost.estimate_cost(store, chosen).time
    assert found is not None
    assert found.seconds == pytest.approx(100 / 50 + 4)


def test_padding_is_counted_as_the_batches_have_it() -> None:
    mixed = TokenLengths([(10, 11, 50), (50, 51, 50)], rows=100, of=100, longest=50)
    plain = RunConfig(group_by_length=False, pad_to_multiple_of=0, per_device_train_batch_size=2)
    # Of two draws three in four have a long one.
    assert steps.padded_tokens(mixed, plain) == pytest.approx(0.25 * 10 + 0.75 * 50)
    assert steps.padded_tokens(mixed, plain.changed(group_by_length=True)) == pytest.approx(30)
    assert steps.padded_tokens(mixed, plain.changed(max_length=20)) == pytest.approx(17.5)
    assert steps.padded_tokens(mixed, plain.changed(padding="max_length")) == 128
    eights = plain.changed(pad_to_multiple_of=8)
    assert steps.padded_tokens(mixed, eights) == pytest.approx(0.25 * 16 + 0.75 * 56)
    assert steps.padded_tokens(TokenLengths(), plain) == 0


def test_another_checkpoints_lengths_are_measured_from_a_part_of_the_pairs(
    store: RunStore, toy: RunConfig, toy_checkpoint: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(toy_checkpoint, other)
    report = checks.check_pairs(toy, store.root)
    job = check.check_folder(store, toy)
    folder = job.folder
    folder.mkdir(parents=True)
    job.describe_job("check", "", toy.to_dict())
    (folder / "report.json").write_text(report.to_json())
    assert not cost.measure_token_lengths(store, toy)  # examined
    chosen = toy.changed(checkpoint=str(other), max_length=report.lengths.longest - 1)
    before = cost.estimate_cost(store, chosen)
    assert (before.cut, before.uncut) == (None, "asked")
    assert cost.measure_token_lengths(store, chosen)
    assert not cost.measure_token_lengths(store, chosen)
    cut = cost.estimate_cost(store, chosen).cut
    assert cut is not None
    assert cut.about
    assert cut.longest == report.lengths.longest
    assert cut.share > 0
    (other / "tokenizer.json").write_text('{"model": 7}')
    os.utime(other / "tokenizer.json", ns=(1, 1))
    assert cost.measure_token_lengths(store, chosen)
    broken = cost.estimate_cost(store, chosen)
    assert (broken.cut, broken.uncut) == (None, "tokenizer")
    (other / "tokenizer.json").unlink()
    assert not cost.measure_token_lengths(store, chosen)
    assert cost.estimate_cost(store, chosen).uncut == "tokenizer"
    away = chosen.changed(checkpoint="somebody/model")
    assert not cost.measure_token_lengths(store, away)
    assert cost.estimate_cost(store, away).uncut == "checkpoint"
    assert cost.estimate_cost(store, chosen.changed(label_column="x")).uncut == "pairs"


def test_the_page_says_what_to_press_where_lengths_are_unknown(store: RunStore) -> None:
    chosen = RunConfig(checkpoint="<b>/model")
    for why, said in (
        ("pairs", "Examine the pairs under Data"),
        ("checkpoint", "&lt;b&gt;/model is not on this disk: press Examine"),
        ("tokenizer", "&lt;b&gt;/model is not quick to use: press Examine"),
        ("asked", "measured now"),
    ):
        assert said in cost_view.costs(cost.Estimate(uncut=why), chosen)  # type: ignore[arg-type]


def test_the_page_says_what_is_unknown(store: RunStore) -> None:
    chosen = RunConfig(dataset="somebody/pairs", checkpoint="somebody/model")
    said = cost_view.costs(cost.estimate_cost(store, chosen), chosen)
    assert said.count("unknown") == 4
    assert "until the pairs are counted" in said
    assert "under Data" in said
    first = cost_view.costs(cost.estimate_cost(store, RunConfig()), RunConfig())
    assert "until the first steps" in first


def test_the_page_says_what_is_known(store: RunStore) -> None:
    bins = [(0, 41, 1746)]
    lengths = TokenLengths(bins, rows=1746, of=1746, longest=40, max_length=16, cut=0.031)
    examined(store, RunConfig(max_length=16), 1746, lengths)
    measured(store, RunConfig(name="<b>first", max_length=16), rate=87.3)
    chosen = RunConfig(max_length=16, num_train_epochs=2)
    said = cost_view.costs(cost.estimate_cost(store, chosen), chosen)
    assert "<b>438</b>" in said
    assert "1,746 pairs, 219 steps an epoch, 2 epochs" in said
    assert "max_length 16 cuts 3% of the pairs" in said
    assert "parameters" in said
    assert "<b>first" not in said
    several = cost_view.costs(
        cost.estimate_cost(store, chosen), chosen, cost_view.GridCost(4, 480.0)
    )
    assert "87 samples/s of &lt;b&gt;first, on the same pairs" in said
    assert "all 4 runs 8 min 00 s" in several


def test_values_that_are_seldom_right_are_said() -> None:
    assert "ft-warn" not in cost_view.costs(cost.Estimate(), RunConfig())
    said = cost_view.costs(cost.Estimate(), RunConfig(learning_rate=0.5))
    assert "learning_rate is 0.5; 1e-06 to 0.001 is usual." in said
