"""Batch size and learning rate by the model, the device and the pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from finetune.config import PRESETS, RunConfig
from finetune.jobs import pipeline
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.training import accelerator, recipe
from tests.support.training import work_in_this_process

TOY, MINILM, BASE, LARGE = 4_000, 10_600_000, 86_000_000, 303_000_000
MRPC, SOME, MANY = 3668, 11_004, 400_000  # pairs
CPU, OLD, LAPTOP, H100 = 0, 16_000_000_000, 8_000_000_000, 85_000_000_000  # bytes of a GPU


def chosen(
    parameters: int, pairs: int, memory: int = CPU, processes: int = 1, family: str = "",
    **values: Any,
) -> tuple[int, float]:  # fmt: skip
    config = recipe.resolve(RunConfig(**values), parameters, pairs, memory, processes, family)
    return config.per_device_train_batch_size, config.learning_rate


@pytest.mark.parametrize(
    ("parameters", "pairs", "memory", "values", "expected"),
    [
        # Small models learn faster, and in larger batches on a GPU.
        (TOY, 64, CPU, {}, (16, 7e-5)), (MINILM, MRPC, CPU, {}, (16, 7e-5)),
        (MINILM, MANY, CPU, {}, (16, 7e-5)), (BASE, MRPC, CPU, {}, (16, 3e-5)),
        (LARGE, MRPC, CPU, {}, (16, 1e-5)), (MINILM, 1000, H100, {}, (16, 7e-5)),
        (MINILM, MRPC, H100, {}, (16, 7e-5)), (MINILM, SOME, H100, {}, (32, 9.9e-5)),
        (MINILM, MANY, H100, {}, (64, 1.4e-4)), (MINILM, MANY, LAPTOP, {}, (16, 7e-5)),
        (BASE, SOME, OLD, {}, (32, 4.2e-5)), (BASE, MANY, H100, {}, (32, 4.2e-5)),
        (LARGE, MANY, H100, {}, (16, 1e-5)), (MINILM, 0, H100, {}, (16, 7e-5)),
        # A family has its authors' rate, but not for LoRA.
        (BASE, MRPC, CPU, {"family": "deberta-v2"}, (16, 2e-5)),
        (LARGE, MRPC, CPU, {"family": "deberta-v2"}, (16, 6e-6)),
        (BASE, MRPC, CPU, {"family": "modernbert"}, (16, 5.6e-5)),
        (LARGE, MRPC, CPU, {"family": "modernbert"}, (16, 1e-5)),
        (MINILM, MRPC, CPU, {"family": "modernbert"}, (16, 7e-5)),
        (BASE, MRPC, CPU, {"family": "roberta"}, (16, 3e-5)),
        (BASE, MRPC, CPU, {"family": "deberta-v2", "use_lora": True}, (16, 3e-4)),
        # A number that is given stays, and the rate follows the pairs of a step.
        (MINILM, MRPC, CPU, {"per_device_train_batch_size": 64}, (64, 1.4e-4)),
        (MINILM, MRPC, CPU, {"per_device_train_batch_size": 4}, (4, 3.5e-5)),
        (MINILM, MRPC, CPU, {"per_device_train_batch_size": 4096}, (4096, 1.4e-4)),
        (MINILM, MRPC, CPU, {"gradient_accumulation_steps": 4}, (16, 1.4e-4)),
        (MINILM, MRPC, CPU, {"processes": 2}, (16, 9.9e-5)),
        (MINILM, MRPC, CPU, {"learning_rate": 5e-4}, (16, 5e-4)),
        (MINILM, MRPC, CPU, {"learning_rate": 5e-4, "per_device_train_batch_size": 8}, (8, 5e-4)),
        # A batch stays small if a larger one leaves few steps or takes much memory.
        (MINILM, SOME, H100, {"max_length": 1024}, (16, 7e-5)),
        (MINILM, SOME, H100, {"max_steps": 1000}, (16, 7e-5)),
        (MINILM, SOME, H100, {"num_train_epochs": 1}, (16, 7e-5)),
        (MINILM, SOME, H100, {"gradient_accumulation_steps": 2}, (16, 9.9e-5)),
        (MINILM, SOME, H100, {"processes": 2}, (16, 9.9e-5)),
    ],
    ids=str,
)  # fmt: skip
def test_batch_size_and_learning_rate(
    parameters: int, pairs: int, memory: int, values: dict[str, Any], expected: tuple[int, float]
) -> None:
    assert chosen(parameters, pairs, memory, **values) == expected
    course = RunConfig(**PRESETS["As the course"])  # stays the course
    assert recipe.resolve(course, parameters, pairs, memory, 1) == course


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
