"""Whether a model in int8 is as good as it was, and faster: measured on the validation pairs."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from finetune.data import checkpoints
from finetune.environment import devices
from finetune.evaluation import test_set
from finetune.inference import decision_rule, quantized
from finetune.inference.decision_rule import DecisionRule
from finetune.inference.quantized import Kind, QuantizationReport
from finetune.inference.scorer import Scorer
from finetune.metrics import classification, intervals
from finetune.runs.run import Run

_SCORED, _TIMED, _CALIBRATING = 2000, 256, 128  # validation pairs
_ROUNDS = 3
_Rows = list[tuple[str, str | None]]


def quantize_model(run: Run, source: Path, step: int | None) -> QuantizationReport:
    """Make int8 models of a run's kept one, of which `source` is the ONNX file, and keep the
    fastest of those that are as good, if it is faster than what the app computes with otherwise.

    Args:
        step: that the model had taken when `source` was made: a run that goes on may have kept
            another since.

    Returns what was measured of that one; where none is as good, of the one that comes nearest.
    """
    table = test_set.validation_examples(run)
    # At random: a file may be sorted by label.
    table = table.take(np.random.default_rng(0).permutation(table.num_rows)[:_SCORED])
    second = table.column("sentence2").to_pylist() if "sentence2" in table.column_names else None
    rows: _Rows = list(
        zip(table.column("sentence1").to_pylist(), second or [None] * table.num_rows, strict=True)
    )
    labels = np.asarray(table.column("label").to_numpy(), np.int64)
    prepared = run.events_summary().prepared
    names, positive = (prepared.labels, prepared.positive) if prepared else ([], 0)
    length = checkpoints.length_of(run.folder)
    plain = Scorer(run.best, length, device="cpu", aside=True)
    rule = decision_rule.read_rule(run.best)
    answers = _answers(plain, rows, rule)
    reports: list[tuple[QuantizationReport, Path]] = []
    folder = run.best / Path(quantized.MODEL).parent
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".") as temporary:
        calibration = plain.inputs(rows[:_CALIBRATING])
        for kind in get_args(Kind):
            file = Path(temporary) / f"{kind}.onnx"
            quantized.quantize(source, file, kind, calibration)
            small = Scorer(run.best, length, "int8", "cpu", aside=True, quantized=file)
            report = _compare(plain, small, rows, labels, answers, positive, len(names), rule)
            reports.append((replace(report, kind=kind, step=step), file))
            small.free()
        plain.free()
        good = [(report, file) for report, file in reports if report.as_good]
        if good:
            report, file = max(good, key=lambda entry: entry[0].speedup)
        else:
            report, file = min(reports, key=lambda entry: entry[0].difference)
        report = replace(report, kept=bool(good) and report.speedup > 1)
        if report.kept:
            shutil.move(file, run.best / quantized.MODEL)
        quantized.write_report(run.best, report)
    return report


def _answers(scorer: Scorer, rows: _Rows, rule: DecisionRule) -> NDArray[np.int64]:
    logits = np.concatenate([block.logits for block in scorer.stream(rows)])
    return decision_rule.decided_answers(logits, scorer.labels, rule)


def _compare(
    plain: Scorer, small: Scorer, rows: _Rows, labels: NDArray[np.int64], before: NDArray[np.int64],
    positive: int, classes: int, rule: DecisionRule,
) -> QuantizationReport:  # fmt: skip
    after = _answers(small, rows, rule)
    scores = [
        classification.accuracy_and_f1(
            classification.confusion_matrix(labels, answers, classes), positive
        )
        for answers in (before, after)
    ]
    seconds: dict[Scorer, list[float]] = {plain: [], small: []}
    for _ in range(_ROUNDS):  # in turns: others use this machine too
        for scorer, times in seconds.items():
            began = time.perf_counter()
            _answers(scorer, rows[:_TIMED], rule)
            times.append(time.perf_counter() - began)
    timed = min(len(rows), _TIMED)
    speeds = [timed / statistics.median(times) for times in seconds.values()]
    return QuantizationReport(
        kind="",
        pairs=len(rows),
        precision=plain.precision,
        accuracy=(scores[0]["accuracy"], scores[1]["accuracy"]),
        f1=(scores[0]["f1"], scores[1]["f1"]),
        p=intervals.mcnemar_test(labels, before, after).p,
        pairs_per_second=(speeds[0], speeds[1]),
        processor=devices.processor_name(),
        classes=classes,
    )
