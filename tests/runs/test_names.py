"""Names of runs: short, unique, given once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from finetune.config import RunConfig
from finetune.runs.grids import data_name
from finetune.runs.store import RunStore


@pytest.mark.parametrize(
    ("values", "files", "expected"),
    [
        ({}, "", "bundled"),
        ({"dataset": "glue/mrpc"}, "", "mrpc"),
        ({"dataset": "nyu-mll/glue", "dataset_config_name": "sst2"}, "", "sst2"),
        ({"dataset": "upload/x"}, "Support tickets (2026).xlsx, check.csv", "Support-tickets-2026"),
        ({"dataset": "upload/x"}, "\ubb38\uc758.csv", "\ubb38\uc758"),
        ({"dataset": "upload/x"}, f"{'long' * 30}.csv", "long" * 6),
        ({"dataset": "upload/x"}, "", "own-files"),
        ({"dataset": "upload/x"}, "!.csv", "own-files"),
    ],
)
def test_a_run_is_named_by_its_data(values: dict[str, Any], files: str, expected: str) -> None:
    assert data_name(RunConfig(**values), files) == expected


def test_a_run_of_an_older_version_has_a_name(store: RunStore) -> None:
    run = store.create(RunConfig())
    about = json.loads((run.folder / "about.json").read_text())
    del about["title"]
    (run.folder / "about.json").write_text(json.dumps(about | {"number": 2}))
    assert run.title() == f"bundled-{run.id[:15]}"
    assert store.create(RunConfig()).title() == "bundled-1"
