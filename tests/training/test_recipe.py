"""Batch size and learning rate by the model, the device and the pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from finetune.config import PRESETS, RunConfig
from finetune.jobs import memory, pipeline
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.training import accelerator, recipe
from tests.support import families
from tests.support.training import work_in_this_process

TOY, MINILM, BASE, LARGE = 4_000, 10_600_000, 86_000_000, 303_000_000
MRPC, SOME, MANY = 3668, 11_004, 400_000  # pairs
CPU, OLD, LAPTOP, H100 = 0, 16_000_000_000, 8_000_000_000, 85_000_000_000  # bytes of a GPU


def chosen(
    parameters: int, pairs: int, memory: int, processes: int = 1, **values: Any
) -> tuple[int, float]:
    config = recipe.resolve(RunConfig(**values), parameters, pairs, memory, processes)
    return config.per_device_train_batch_size, config.learning_rate


@pytest.mark.parametrize(
    ("parameters", "pairs", "memory", "batch", "rate"),
    [
        (TOY, 64, CPU, 16, 7e-5), (MINILM, MRPC, CPU, 16, 7e-5), (MINILM, MANY, CPU, 16, 7e-5),
        (BASE, MRPC, CPU, 16, 3e-5), (LARGE, MRPC, CPU, 16, 1e-5),
        (MINILM, 1000, H100, 16, 7e-5), (MINILM, MRPC, H100, 16, 7e-5),
        (MINILM, SOME, H100, 32, 9.9e-5),
        (MINILM, MANY, H100, 64, 1.4e-4), (MINILM, MANY, LAPTOP, 16, 7e-5),
        (BASE, SOME, OLD, 32, 4.2e-5), (BASE, MANY, H100, 32, 4.2e-5),
        (LARGE, MANY, H100, 16, 1e-5), (MINILM, 0, H100, 16, 7e-5),
    ],
)  # fmt: skip
def test_small_models_learn_faster_and_in_larger_batches_on_a_gpu(
    parameters: int, pairs: int, memory: int, batch: int, rate: float
) -> None:
    assert chosen(parameters, pairs, memory) == (batch, rate)


@pytest.mark.parametrize(
    ("family", "parameters", "rate"),
    [
        ("deberta-v2", BASE, 2e-5), ("deberta-v2", LARGE, 6e-6), ("modernbert", BASE, 5.6e-5),
        ("modernbert", LARGE, 1e-5), ("modernbert", MINILM, 7e-5), ("roberta", BASE, 3e-5),
        ("mpnet", BASE, 3e-5), ("", LARGE, 1e-5),
    ],
)  # fmt: skip
def test_a_family_has_its_authors_rate(family: str, parameters: int, rate: float) -> None:
    config = recipe.resolve(RunConfig(), parameters, MRPC, CPU, 1, family)
    assert config.learning_rate == rate
    assert recipe.resolve(RunConfig(use_lora=True), parameters, 1, CPU, 1, family) == (
        recipe.resolve(RunConfig(use_lora=True), parameters, 1, CPU, 1)
    )


@pytest.mark.parametrize(
    ("values", "batch", "rate"),
    [
        ({"per_device_train_batch_size": 64}, 64, 1.4e-4),
        ({"per_device_train_batch_size": 4}, 4, 3.5e-5),
        ({"per_device_train_batch_size": 4096}, 4096, 1.4e-4),
        ({"gradient_accumulation_steps": 4}, 16, 1.4e-4),
        ({"processes": 2}, 16, 9.9e-5),
        ({"learning_rate": 5e-4}, 16, 5e-4),
        ({"learning_rate": 5e-4, "per_device_train_batch_size": 8}, 8, 5e-4),
        ({"use_lora": True}, 16, 3e-4),
    ],
    ids=str,
)
def test_a_number_that_is_given_stays_and_the_rate_follows_the_pairs_of_a_step(
    values: dict[str, Any], batch: int, rate: float
) -> None:
    assert chosen(MINILM, MRPC, CPU, **values) == (batch, rate)


@pytest.mark.parametrize(
    "values",
    [
        {"max_length": 1024}, {"max_steps": 1000}, {"num_train_epochs": 1},
        {"gradient_accumulation_steps": 2}, {"processes": 2},
    ],
    ids=str,
)  # fmt: skip
def test_a_batch_stays_small_if_a_larger_one_leaves_few_steps_or_takes_much_memory(
    values: dict[str, Any],
) -> None:
    assert chosen(MINILM, SOME, H100)[0] == 32
    assert chosen(MINILM, SOME, H100, **values)[0] == 16


def test_the_bundled_checkpoint_is_a_small_model() -> None:
    shape = memory.read_shape(RunConfig().checkpoint)
    assert shape is not None
    assert shape.layer_parameters == pytest.approx(MINILM, rel=0.1)
    assert chosen(shape.layer_parameters, MRPC, CPU) == (16, 7e-5)


def test_the_course_stays_the_course() -> None:
    course = RunConfig(**PRESETS["As the course"])
    assert recipe.resolve(course, MINILM, MANY, H100, 1) == course


def test_a_run_records_what_it_takes_and_keeps_it_when_it_is_resumed_elsewhere(
    store: RunStore,
    toy_checkpoint: Path,
    toy_pairs_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work_in_this_process(monkeypatch)
    files = {path.stem: path for path in toy_pairs_folder.glob("*.csv")}
    config = RunConfig(
        checkpoint=str(toy_checkpoint), dataset=store.uploads.add(files), max_length=32,
        mixed_precision="no",
    )  # fmt: skip

    def prepared(run: Run) -> tuple[int, float, int]:
        stream = pipeline.train_events(run, pipeline.StopSwitch(run))
        event = next(event for event in stream if isinstance(event, events.Prepared))
        stream.close()
        run.append(event)
        return event.per_device_train_batch_size, event.learning_rate, event.steps_per_epoch

    run, explicit = store.create(config), store.create(config.changed(learning_rate=1e-3))
    assert prepared(run) == (16, 7e-5, 4)
    assert run.state().resolved(config).learning_rate == 7e-5
    assert prepared(explicit) == (16, 1e-3, 4)
    run.begin_checkpoint()
    run.end_checkpoint(1, keep=1)
    monkeypatch.setattr(accelerator, "gpu_memory", lambda device: H100)
    monkeypatch.setattr(recipe, "LEAST_STEPS", 10)
    assert prepared(run) == (16, 7e-5, 4)
    assert prepared(store.create(config)) == (64, 1.4e-4, 1)
    assert config == run.config()


def test_what_is_told_before_is_of_the_family_on_the_disk(store: RunStore, tmp_path: Path) -> None:
    """A toy of a family is small; the rate told is the one a run takes."""
    for family in ("DebertaV2", "ModernBert"):
        folder = families.write(tmp_path / family, family)
        shape = memory.read_shape(str(folder))
        assert shape is not None
        assert shape.family in recipe._FAMILIES
