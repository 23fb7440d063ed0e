"""What several tests of engines need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from finetune.engines import registry
from tests.support import other_engine
from tests.support.ray_nodes import Nodes, running_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """A cluster of two nodes with a processor each."""
    with running_cluster(tmp_path_factory.mktemp("home")) as nodes:
        for _ in range(2):
            nodes.add()
        yield nodes


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A fourth engine, of which no module of the project knows."""
    other_engine.install(tmp_path / "installed", monkeypatch)
    yield
    registry.engines.cache_clear()
