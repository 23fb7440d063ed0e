"""How fast a run's model answers on this machine, and how large it is.

`speed.json` in the run's folder keeps the measurement, until the model or the machine is another.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import asdict, dataclass

import numpy as np

from finetune import disk
from finetune.data import checkpoints
from finetune.environment import devices
from finetune.evaluation import saved_predictions, test_set
from finetune.inference import quantized
from finetune.runs.run import Run

_PAIRS, _SECONDS = 64, 3.0  # measured at most; five pairs are in any case
_FIRST = 3  # answers that are not counted: they are slow


@dataclass(frozen=True)
class Speed:
    """A measurement of one model."""

    milliseconds: float  # median time of an answer to a pair that is asked alone
    pairs: int  # that were measured
    precision: str
    machine: str
    step: int | None  # optimizer steps of the model


def read_speed(run: Run) -> Speed | None:
    """Read the measurement of a run's model; None if there is none of it on this machine."""
    speed = disk.read_as(Speed, run.folder / "speed.json")
    if speed is None or (speed.machine, speed.step) != (_machine(), run.best_step()):
        return None
    return speed


def model_megabytes(run: Run) -> float:
    """Size of the weights that answer on this machine, in 10^6 bytes: those in int8 if they are
    used."""
    small = run.best / quantized.MODEL
    if quantized.is_enabled(run.best) and not devices.list_accelerators():
        return small.stat().st_size / 1e6
    return sum(path.stat().st_size for path in run.best.glob("*.safetensors")) / 1e6


def measure_speed(run: Run) -> Speed:
    """Measure a run's model as Predict uses it, on up to 64 of its validation pairs, and keep the
    result. Takes about three seconds besides loading."""
    from finetune.inference.scorer import Precision, Scorer

    table = test_set.validation_examples(run)
    rows = np.linspace(0, table.num_rows - 1, min(_PAIRS, table.num_rows)).astype(int)
    texts = saved_predictions.sentences_of(table.take(rows))
    precision: Precision = "int8" if quantized.serves(run.best) else "auto"
    length = checkpoints.length_of(run.folder)
    scorer = Scorer(run.best, length, precision, single_requests=True)
    times: list[float] = []
    for row in [*[0] * _FIRST, *range(len(rows))]:
        began = time.perf_counter()
        scorer.scores(*([column[row]] for column in texts))
        times.append(time.perf_counter() - began)
        if len(times) > _FIRST + 5 and sum(times) > _SECONDS:
            break
    scorer.free()
    measured = times[_FIRST:]
    speed = Speed(
        1000 * statistics.median(measured), len(measured), scorer.precision, _machine(),
        run.best_step(),
    )  # fmt: skip
    disk.write_atomically(run.folder / "speed.json", json.dumps(asdict(speed), indent=1) + "\n")
    return speed


def _machine() -> str:
    return devices.accelerator_name() or devices.processor_name()
