"""What is measured of a device: its precision, its pace before the first run, and its use."""

import json
import shutil

import pytest
import torch

from finetune.config import PRESETS, RunConfig
from finetune.environment import devices, pace
from finetune.environment.pace import Pace
from finetune.training import accelerator


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(devices, "_processor", lambda: ("a processor", {"avx2", "avx512_bf16"}))
    return tmp_path


@pytest.mark.parametrize(("gain", "prefers"), [(0.6, False), (1.1, False), (3.0, True)])
def test_precision_is_measured_once_for_a_processor(gain, prefers, cache, monkeypatch):
    gains = iter([gain])
    assert devices.processor_prefers_bf16()  # by its flags, while nothing was measured
    assert devices.processor_prefers_bf16(lambda: next(gains)) == prefers
    assert devices.processor_prefers_bf16(lambda: next(gains)) == prefers
    assert devices.processor_prefers_bf16() == prefers
    shutil.rmtree(cache / "finetune")
    (cache / "finetune").write_text("no folder")  # where nothing can be kept it is measured again
    for other in (2.0, 0.5):
        assert devices.processor_prefers_bf16(lambda other=other: other) == (other > 1)
    monkeypatch.setattr(devices, "_processor", lambda: ("an older one", {"avx2"}))
    assert not devices.processor_prefers_bf16(lambda: 1 / 0)


@pytest.mark.parametrize(
    ("capability", "precision"),
    [((6, 1), "no"), ((7, 5), "fp16"), ((8, 0), "bf16"), ((9, 0), "bf16"), (None, "no")],
)
def test_a_device_trains_in_what_its_generation_is_fastest_in(monkeypatch, capability, precision):
    gpu = torch.device("cuda:0") if capability else None
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: gpu)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    # As torch decides: emulation on older generations does not count.
    supported = (capability or (0, 0)) >= (8, 0)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: supported)
    monkeypatch.setattr(devices, "processor_prefers_bf16", lambda measure=None: False)
    assert devices.trains_in() == precision
    assert accelerator.choose_precision("auto") == precision
    assert accelerator.choose_precision("no") == "no"


def test_products_in_fp32_are_exact_only_if_the_courses_loop_is_asked_for_exactly():
    course = RunConfig(**PRESETS["As the course"])
    assert accelerator.choose_tf32(course.changed(seed=1, max_length=64)) == "highest"
    assert accelerator.choose_tf32(course.changed(per_device_train_batch_size=32)) == "high"
    assert accelerator.choose_tf32(RunConfig(mixed_precision="no")) == "high"


def test_the_best_pace_is_kept(monkeypatch):
    """A busy machine measures too little."""
    monkeypatch.setattr(devices, "list_accelerators", lambda: ())
    assert pace.known_pace() is None
    pace.measure_pace()  # of this machine
    known = pace.known_pace()
    assert 0 < known.overhead < 60
    assert all(1e5 < rate < 1e15 for rate in (known.full, known.half, known.updates))
    file = devices.measurements_file()
    for value in ([1], {"seconds": 1}, 7):  # as of another version
        file.write_text(json.dumps({pace._key(): value}))
        assert pace.known_pace() is None
    measured = iter([Pace(0.02, 3e9, 9e9), Pace(0.5, 1e9, 10e9), Pace(0.01, 2e9, 1e9)])
    monkeypatch.setattr(pace, "_measure", lambda kind: next(measured))
    for expected in (Pace(0.02, 3e9, 9e9), Pace(0.02, 3e9, 10e9), Pace(0.01, 3e9, 10e9)):
        pace.measure_pace()
        assert pace.known_pace() == expected
    monkeypatch.setattr(devices, "_processor", lambda: ("another", set()))
    assert pace.known_pace() is None
