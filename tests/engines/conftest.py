"""What several tests of engines need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.ray_nodes import Nodes, running_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """A cluster of two nodes with a processor each."""
    with running_cluster(tmp_path_factory.mktemp("home")) as nodes:
        for _ in range(2):
            nodes.add()
        yield nodes
