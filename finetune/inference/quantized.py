"""A saved model in int8, which ONNX Runtime computes on a processor.

The file lies in the model's folder, at the path of transformers.js, and only if it was measured to
be faster and as good (`finetune.evaluation.quantization`).

Source: https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveFloat

from finetune import disk
from finetune.environment import devices
from finetune.inference import decision_rule
from finetune.runs.run import saved_step

Inputs = Mapping[str, NDArray[np.int64]]  # name -> values of shape (batch, length)
Kind = Literal["dynamic", "static"]  # scales of activations: computed for each batch, or calibrated
MODEL = "onnx/model_quantized.onnx"  # in a model's folder
_REPORT = "onnx/quantization.json"


@dataclass(frozen=True)
class QuantizationReport:
    """The effect of int8, measured on the validation pairs and on one machine."""

    kind: str
    pairs: int  # that were scored
    precision: str  # of the original model
    # Metric -> of the original model, and in int8
    scores: dict[str, tuple[float, float]]
    # Of McNemar's test; null hypothesis: both are right equally often. None if no answer is right
    # or wrong.
    p: float | None
    pairs_per_second: tuple[PositiveFloat, PositiveFloat]
    processor: str
    step: int | None = None  # optimizer steps of the model
    kept: bool = False  # True if int8 is used
    bound: float = 0.005  # largest difference of a score
    classes: int = 2  # number of classes, to name the scores
    faster: bool = False  # True if int8 is significantly faster, over many rounds
    thresholds: str | None = None  # at which both answered; None if an earlier version measured it

    @property
    def as_good(self) -> bool:
        """True if no score differs by more than the bound, and the answers not significantly."""
        return self.difference <= self.bound and (self.p is None or self.p >= 0.05)

    @property
    def difference(self) -> float:
        """The greatest change of a score."""
        changes = (after - before for before, after in self.scores.values())
        # 0.870 - 0.865 is a little more than 0.005
        return round(max(map(abs, changes), default=0.0), 9)

    @property
    def speedup(self) -> float:
        """The speed of int8 relative to the original model."""
        before, after = self.pairs_per_second
        return after / before


def read_report(folder: Path) -> QuantizationReport | None:
    """Read the measurements of the model in a folder; None if there are none, or only of an earlier
    model. Scores at other thresholds than the saved ones are left out."""
    report = disk.read_as(QuantizationReport, folder / _REPORT)
    if report is None or report.step != saved_step(folder):
        return None
    same = report.thresholds in (None, saved_thresholds(folder))
    return report if same else replace(report, scores={}, p=None)


def saved_thresholds(folder: Path) -> str:
    """Return the thresholds at which the model in a folder answers, as JSON."""
    return json.dumps(decision_rule.deciding(decision_rule.read_rule(folder)))


def write_report(folder: Path, report: QuantizationReport) -> None:
    """Save the measurements of the model in a folder."""
    disk.write_atomically(folder / _REPORT, json.dumps(asdict(report), indent=1) + "\n")


def is_enabled(folder: Path) -> bool:
    """True if the model in a folder has an int8 file to publish, and to use on the kind of
    processor that measured it."""
    report = read_report(folder)
    return report is not None and report.kept and (folder / MODEL).is_file()


def answers_on_cpu(folder: Path) -> bool:
    """True if the model in a folder answers in int8 where there is no GPU: on a processor like the
    one that measured it; never with a bound on its errors, which is of the original model."""
    bounded = decision_rule.read_rule(folder).sure is not None
    report = read_report(folder) if is_enabled(folder) and not bounded else None
    return report is not None and report.processor == devices.processor_name()


def serves(folder: Path, device: str = "") -> bool:
    """True if the model in a folder answers in int8 on a device."""
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return answers_on_cpu(folder) and (device or accelerator or "cpu") == "cpu"


def quantize(source: Path, to: Path, kind: Kind, calibration: Sequence[Inputs]) -> None:
    """Write an ONNX model with its products in int8, per channel of the weights. A static model
    learns the range of activations from `calibration` inputs."""
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
    logging.getLogger().disabled, before = True, logging.getLogger().disabled  # it logs advice
    try:
        if kind == "dynamic":
            quantize_dynamic(source, to, **options)
        else:
            options |= {"activation_type": QuantType.QUInt8, "quant_format": QuantFormat.QDQ}
            products = ["MatMul", "Gemm"]
            quantize_static(source, to, Reader(), op_types_to_quantize=products, **options)
    finally:
        logging.getLogger().disabled = before
