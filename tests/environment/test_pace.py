"""How fast this machine trains, measured for estimates before the first run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from finetune.environment import devices, pace
from finetune.environment.pace import Pace


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(devices, "list_accelerators", lambda: ())
    return tmp_path


def test_the_best_measurement_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine measures too little."""
    assert pace.known_pace() is None
    measured = iter([Pace(0.02, 3e9, 9e9), Pace(0.5, 1e9, 10e9), Pace(0.01, 2e9, 1e9)])
    monkeypatch.setattr(pace, "_measure", lambda kind: next(measured))
    for expected in (Pace(0.02, 3e9, 9e9), Pace(0.02, 3e9, 10e9), Pace(0.01, 3e9, 10e9)):
        pace.measure_pace()
        assert pace.known_pace() == expected
    monkeypatch.setattr(devices, "_processor", lambda: ("another", set()))
    assert pace.known_pace() is None


def test_what_another_version_has_written_is_no_measurement() -> None:
    file = devices.measurements_file()
    file.parent.mkdir(parents=True)
    for value in ([1], {"seconds": 1}, 7):
        file.write_text(json.dumps({pace._key(): value}))
        assert pace.known_pace() is None


def test_a_layer_is_timed_on_this_processor() -> None:
    pace.measure_pace()
    known = pace.known_pace()
    assert known is not None
    assert 0 < known.overhead < 60
    assert 1e6 < known.full < 1e15
    assert 1e6 < known.half < 1e15
    assert 1e5 < known.updates < 1e12
