"""A saved model in int8, which ONNX Runtime computes on a processor.

It lies beside the weights it was made of, where transformers.js looks for it, and only where it was
measured to be faster and as good (`finetune.evaluation.quantization`).

Source: https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveFloat

from finetune import disk
from finetune.environment import devices
from finetune.runs.run import saved_step

Inputs = Mapping[str, NDArray[np.int64]]  # name -> values of shape (batch, length)
Kind = Literal["dynamic", "static"]  # how activations are scaled: each anew, or as calibrated
MODEL = "onnx/model_quantized.onnx"  # in a model's folder
_REPORT = "onnx/quantization.json"


@dataclass(frozen=True)
class QuantizationReport:
    """What int8 changes, on the validation pairs and on the machine that measured it."""

    kind: str
    pairs: int  # that were scored
    precision: str  # of the model as it is
    accuracy: tuple[float, float]  # of the model as it is, and in int8
    f1: tuple[float, float]
    p: float  # of McNemar's test that both are right equally often
    pairs_per_second: tuple[PositiveFloat, PositiveFloat]
    processor: str
    step: int | None = None  # that the model had taken
    kept: bool = False  # whether it is used
    bound: float = 0.005  # by which accuracy and F1 may differ
    classes: int = 2  # by which F1 is named
    faster: bool = False  # whether that is plain, over many rounds

    @property
    def as_good(self) -> bool:
        """Whether accuracy and F1 differ by no more than the bound, and by nothing but chance."""
        return self.difference <= self.bound and self.p >= 0.05

    @property
    def difference(self) -> float:
        """The change of accuracy or of F1, whichever is greater."""
        changes = (after - before for before, after in (self.accuracy, self.f1))
        return round(max(map(abs, changes)), 9)  # 0.870 - 0.865 is a little more than 0.005

    @property
    def speedup(self) -> float:
        """How many times as fast int8 is."""
        before, after = self.pairs_per_second
        return after / before


def read_report(folder: Path) -> QuantizationReport | None:
    """What was measured of the model in a folder; None where nothing was, or of a former model."""
    report = disk.read_as(QuantizationReport, folder / _REPORT)
    return report if report is not None and report.step == saved_step(folder) else None


def write_report(folder: Path, report: QuantizationReport) -> None:
    """Keep what was measured of the model in a folder."""
    disk.write_atomically(folder / _REPORT, json.dumps(asdict(report), indent=1) + "\n")


def is_kept(folder: Path) -> bool:
    """Whether int8 of the model in a folder is published, and used where it was measured."""
    report = read_report(folder)
    return report is not None and report.kept and (folder / MODEL).is_file()


def serves(folder: Path, device: str = "") -> bool:
    """Whether the model in a folder answers in int8 on a device: on a processor like the one that
    measured it, and not on a GPU."""
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    report = read_report(folder) if is_kept(folder) else None
    measured = report is not None and report.processor == devices.processor_name()
    return measured and (device or accelerator or "cpu") == "cpu"


def quantize(source: Path, to: Path, kind: Kind, calibration: Sequence[Inputs]) -> None:
    """Write an ONNX model with its products in int8, per channel of the weights; `calibration`:
    inputs from which a static one learns how large activations become."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_dynamic,
        quantize_static,
    )  # fmt: skip

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = iter(calibration)

        def get_next(self) -> Any:
            return next(self.left, None)

    options: dict[str, Any] = {
        "per_channel": True,
        "weight_type": QuantType.QInt8,
        # Without VNNI two products of eight bits do not fit into the sum of 16.
        "reduce_range": not devices.has_vnni(),
    }
    logging.getLogger().disabled, before = True, logging.getLogger().disabled  # it gives advice
    try:
        if kind == "dynamic":
            quantize_dynamic(source, to, **options)
        else:
            options |= {"activation_type": QuantType.QUInt8, "quant_format": QuantFormat.QDQ}
            products = ["MatMul", "Gemm"]
            quantize_static(source, to, Reader(), op_types_to_quantize=products, **options)
    finally:
        logging.getLogger().disabled = before
