"""The benchmarks' own parts; the figures themselves are taken by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from finetune import files
from tests.benchmarks import memory


def test_the_made_file_has_the_rows_it_says(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    memory.write(path, 500)
    table = files.open_table(path)
    assert len(list(table.rows(table.columns, lambda line, why: pytest.fail(why)))) == 500


def test_a_worker_is_measured_and_its_failure_said() -> None:
    found = memory.measure(["finetune.examine", "--help"])
    assert found.peak > 5
    assert found.seconds > 0
    with pytest.raises(RuntimeError, match="no_such_option"):
        memory.measure(["finetune.examine", "--no_such_option"])
