"""The precision of a device: measured for a processor, by the generation of a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from finetune.config import PRESETS, RunConfig
from finetune.environment import devices
from finetune.training import accelerator

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


@pytest.mark.parametrize(
    ("capability", "precision"),
    [((6, 1), "no"), ((7, 0), "fp16"), ((7, 5), "fp16"), ((8, 0), "bf16"), ((9, 0), "bf16")],
)
def test_a_gpu_trains_in_what_its_generation_is_fastest_in(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], precision: str
) -> None:
    gpu = torch.device("cuda:0")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: gpu)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    # As torch decides: emulation on older generations does not count.
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation: capability >= (8, 0)
    )
    assert devices.trains_in() == precision
    assert accelerator.choose_precision("auto") == precision
    assert accelerator.choose_precision("no") == "no"


def test_a_processor_never_trains_in_fp16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
    monkeypatch.setattr(devices, "processor_prefers_bf16", lambda measure=None: False)
    assert devices.trains_in() == "no"


def test_products_in_fp32_are_exact_only_if_the_courses_loop_is_asked_for_exactly() -> None:
    course = RunConfig(**PRESETS["As the course"])
    assert accelerator.choose_tf32(course.changed(seed=1, max_length=64)) == "highest"
    assert accelerator.choose_tf32(course.changed(per_device_train_batch_size=32)) == "high"
    assert accelerator.choose_tf32(RunConfig(mixed_precision="no")) == "high"


@pytest.mark.parametrize(("gpus", "parallel"), [("0", "true"), ("", "false")])
def test_tokenizers_use_all_cores_beside_a_gpu(
    monkeypatch: pytest.MonkeyPatch, gpus: str, parallel: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    monkeypatch.delenv("TOKENIZERS_PARALLELISM")
    devices.choose_tokenizer_threads()
    assert os.environ["TOKENIZERS_PARALLELISM"] == parallel
