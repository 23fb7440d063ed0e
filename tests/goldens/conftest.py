"""Fixtures of the goldens: copies of the toy runs, behind a served page."""

import pytest

from finetune.environment import devices, pace
from tests.support import toy_runs
from tests.support.server import serving


@pytest.fixture(autouse=True)
def same_everywhere(monkeypatch):
    """Widths of texts and precisions are the same on all machines; what a command sets in its
    process is undone."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(devices, "prefers_bf16", lambda device=None: False)


@pytest.fixture(scope="session")
def server_of_goldens(trained, tmp_path_factory):
    pace.measure_pace()  # as an app's first worker has done
    with serving(trained.store(tmp_path_factory.mktemp("goldens") / "runs")) as served:
        yield served


@pytest.fixture
def server(server_of_goldens, hub):
    return server_of_goldens


def words_of(store, trained, **more):
    """Placeholders of what differs from one store of the toy runs to another."""
    ids = {f"RUN-{name}": run.id for name, run in toy_runs.runs_by_name(store).items()}
    words = {"RUNS": store.root, "TOYS": trained.folder, "PROCESSOR": devices.processor_name()}
    return {**ids, **words, **more}
