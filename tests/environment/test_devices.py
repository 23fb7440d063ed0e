"""bf16 is used if it was measured to be faster, not on every processor that has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from finetune.environment import devices

NEW = ("a processor", {"avx2", "avx512_bf16"})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(devices, "_processor", lambda: NEW)
    return tmp_path


@pytest.mark.parametrize(("gain", "prefers"), [(0.6, False), (1.1, False), (3.0, True)])
def test_it_is_measured_once_for_a_processor(gain: float, prefers: bool) -> None:
    gains = iter([gain])
    assert devices.processor_prefers_bf16()  # by its flags, while nothing was measured
    assert devices.processor_prefers_bf16(lambda: next(gains)) == prefers
    assert devices.processor_prefers_bf16(lambda: next(gains)) == prefers
    assert devices.processor_prefers_bf16() == prefers


def test_a_processor_without_it_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_processor", lambda: ("an older one", {"avx2"}))
    assert not devices.processor_prefers_bf16(lambda: 1 / 0)


def test_where_nothing_can_be_kept_it_is_measured_again(cache: Path) -> None:
    (cache / "finetune").write_text("no folder")
    for gain in (2.0, 0.5):
        assert devices.processor_prefers_bf16(lambda gain=gain: gain) == (gain > 1)  # type: ignore[misc]


def test_the_measurement_is_a_ratio_of_this_machine() -> None:
    assert 0.01 < devices._measure_bf16_gain() < 100
    assert devices.processor_name()
