"""The short code of a run: it is what the run did, and it runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from finetune.config import RunConfig
from finetune.hub.short_code import short_code
from finetune.runs import events
from finetune.runs.store import RunStore
from finetune.ui import live_updates
from tests.support import toys


def prepared(**changes: object) -> events.Prepared:
    """What a run on own files says before it trains."""
    facts = {
        "columns": {"sentence1": "a text", "sentence2": "other", "label": "same?"},
        "splits": {"train": "train"},
    }
    event = events.Prepared(
        train_examples=54, validation_examples=6, steps_per_epoch=7, total_steps=14,
        labels=["no", "yes"], parameters=1, precision="no", per_device_train_batch_size=8,
        gradient_accumulation_steps=1, data=facts,
    )  # fmt: skip
    return event.model_copy(update=changes)


@pytest.mark.long
def test_the_code_runs_and_has_the_runs_values(
    store: RunStore, toy_checkpoint: Path, tmp_path: Path
) -> None:
    lines = [f'"{a}","{b}",{("no", "yes")[label]}' for a, b, label in toys.rows(60)]
    file = tmp_path / "pairs.csv"
    file.write_text("\n".join(["a text,other,same?", *lines]) + "\n")
    dataset = store.uploads.add({"train": file})
    run = store.create(
        RunConfig(
            dataset=dataset, checkpoint=str(toy_checkpoint), learning_rate=3e-4, max_length=48
        )
    )
    run.append(events.Started(device="CPU"))
    assert not live_updates.code(store, run, run.state())
    run.append(prepared())
    code = short_code(run, store, run.state())
    assert "lr=0.0003" in code
    assert "for epoch in range(2):" in code
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout
    assert "&#39;a text&#39;" in live_updates.code(store, run, run.state())


@pytest.mark.parametrize(
    ("values", "loading"),
    [
        ({}, "load_dataset(\"csv\", data_files={'train': 'assets/pairs/train.csv'"),
        ({"dataset": "glue/mrpc"}, "load_dataset('nyu-mll/glue', 'mrpc')"),
        ({"dataset": "owner/pairs"}, "load_dataset('owner/pairs')"),
    ],
)
def test_the_pairs_are_loaded_from_where_they_are(
    store: RunStore, values: dict[str, str], loading: str
) -> None:
    run = store.create(RunConfig().changed(**values))
    run.append(prepared())
    code = short_code(run, store, run.state())
    compile(code, "short", "exec")
    assert loading in code
    assert "names.index" not in code
