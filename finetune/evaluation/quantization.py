"""Compares a model in int8 with the original on validation pairs: quality and speed."""

import math
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from finetune import disk
from finetune.environment import devices
from finetune.evaluation import saved_predictions, test_set
from finetune.inference import decision_rule, quantized
from finetune.inference.quantized import Kind, QuantizationReport
from finetune.inference.scorer import Scorer
from finetune.metrics import intervals
from finetune.runs.run import Run
from finetune.tasks.comparison import misses
from finetune.tasks.registry import task_of

_SCORED, _TIMED, _CALIBRATING = 2000, 128, 128  # validation pairs
_ROUNDS, _SECONDS = 8, 40.0  # of timing at least, and at most if undecided by then
_SURE = 0.01  # the p of the sign test
Rounds = Sequence[tuple[float, float]]  # seconds of the model as it is, and in int8


def quantize_model(
    run: Run, source: Path, step: int | None, again: bool = False
) -> QuantizationReport:
    """Make int8 models from `source`, the ONNX file of a run's kept model. Keep the fastest of
    those that are as good, if it is faster than what the app uses otherwise.

    An earlier decision for the same weights and thresholds on the same processor stays, and int8 is
    made the same way again: a machine that is busy with other work would measure something else.

    Args:
        again: measure anew, whatever was decided.
        step: steps of the model from which `source` was made. A run that goes on may have kept
            another model since.

    Returns the measurements of that model; if none is as good, of the nearest one.
    """
    table = test_set.validation_examples(run)
    # At random: a file may be sorted by label.
    table = table.take(np.random.default_rng(0).permutation(table.num_rows)[:_SCORED])
    texts = (column[:_CALIBRATING] for column in saved_predictions.sentences_of(table))
    plain = Scorer.of_run(run, "own", device="cpu", low_priority=True)
    calibration = plain.inputs(zip(*texts, strict=True))
    report = None if again else quantized.read_report(run.best)
    before = (step, devices.processor_name())
    known = report and report.scores and report.kind in get_args(Kind)
    if report and (not known or (report.step, report.processor) != before):
        report = None
    kinds: list[Kind] = [kind for kind in get_args(Kind) if report is None or kind == report.kind]
    kept = run.best / quantized.MODEL
    # Beside the source: a killed process may leave it, and nothing may be left in the model.
    with tempfile.TemporaryDirectory(dir=source.parent, prefix=".onnx-") as temporary:
        files = {kind: Path(temporary) / f"{kind}.onnx" for kind in kinds}
        for kind, file in files.items():
            quantized.quantize(source, file, kind, calibration)
        report = report or _measure(run, plain, files, table)
        plain.free()
        kept.parent.mkdir(exist_ok=True)
        if report.kept:
            with disk.replacing(kept) as new:
                shutil.move(files[cast(Kind, report.kind)], new)
        report = replace(report, step=step)
        quantized.write_report(run.best, report)
    return report


def _measure(
    run: Run, plain: Scorer, files: Mapping[Kind, Path], table: pa.Table
) -> QuantizationReport:
    """Compare the kinds of int8 and report the best, `kept` if faster."""
    prepared, rule = run.state().prepared, decision_rule.read_rule(run.best)
    target = prepared.target if prepared else plain.target
    labels, columns = saved_predictions.targets_of(table), saved_predictions.sentences_of(table)
    task = task_of(target)
    compared = [metric for metric in task.metrics if math.isfinite(metric.range[1])]

    def answer(scorer: Scorer, most: int = _SCORED) -> NDArray[np.int64]:
        logits = scorer.scores(*(texts[:most] for texts in columns))
        return task.answers(logits, target, rule).values

    def seconds(scorer: Scorer) -> float:
        began = time.perf_counter()
        answer(scorer, _TIMED)
        return time.perf_counter() - began

    before, reports, timed = answer(plain), [], min(len(labels), _TIMED)
    old, missed = task.scores(before, labels, target, compared), misses(task, before, labels)
    shared = saved_predictions.shared_rows(table)
    for kind, file in files.items():
        small = Scorer.of_run(run, "int8", device="cpu", low_priority=True, int8_file=file)
        after = answer(small)
        new = task.scores(after, labels, target, compared)
        changed = missed - misses(task, after, labels)
        rounds = time_rounds([partial(seconds, scorer) for scorer in (plain, small)])
        speed, speed8 = (timed / statistics.median(times) for times in zip(*rounds, strict=True))
        reports.append(QuantizationReport(
            kind=kind,
            pairs=len(labels),
            precision=plain.precision,
            scores={name: (value, new[name]) for name, value in old.items()},
            p=intervals.sign_test(changed, shared) if task.has_right else None,
            pairs_per_second=(speed, speed8),
            processor=devices.processor_name(),
            classes=target.size,
            faster=is_faster(rounds) is True,
            thresholds=quantized.saved_thresholds(run.best),
        ))  # fmt: skip
        small.free()
    good = [report for report in reports if report.as_good]
    if not good:
        return min(reports, key=lambda report: report.difference)
    best = max(good, key=lambda report: (report.faster, report.speedup))
    return replace(best, kept=best.faster)


def is_faster(rounds: Rounds) -> bool | None:
    """True if int8 is faster, by a two-sided sign test over the rounds; None while undecided. A
    disturbed round counts as one, however long it took."""
    from scipy.stats import binomtest

    wins = sum(before > after for before, after in rounds)
    losses = sum(before < after for before, after in rounds)
    clear = wins + losses >= _ROUNDS and binomtest(wins, wins + losses).pvalue <= _SURE
    return wins > losses if clear else None


def time_rounds(measures: Sequence[Callable[[], float]]) -> Rounds:
    """Time two models in turns until one is plainly faster, or the time limit is reached."""
    rounds: list[tuple[float, float]] = []
    while len(rounds) < _ROUNDS or (is_faster(rounds) is None and sum(map(sum, rounds)) < _SECONDS):
        turns = (0, 1) if len(rounds) % 2 else (1, 0)  # warm caches help each model equally often
        seconds = {turn: measures[turn]() for turn in turns}
        rounds.append((seconds[0], seconds[1]))
    return rounds
