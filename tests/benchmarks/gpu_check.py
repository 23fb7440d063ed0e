"""Is training right on this card? Run by `python -m tests.benchmarks.gpu --check`.

In bf16 and in fp16, with the bundled checkpoint on the bundled pairs: the losses of recorded steps
equal those of steps done one by one, within the precision, also with dropout, several batches a
step, weighted classes and LoRA; a run that was stopped and resumed is bit-identical with
`deterministic`. A run goes on without graphs if one cannot be recorded. Answers of recorded batches
equal those of the model. Prints a line for each, and every problem.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from finetune.config import RunConfig
from finetune.data import splits
from finetune.environment import devices, pace
from finetune.inference.scorer import Scorer
from finetune.runs.events import GraphsGivenUp
from finetune.training import cuda_graphs
from finetune.training.cuda_graphs import Recorder
from finetune.training.step import Step
from tests.benchmarks.machine import random_bert
from tests.support.tape import TapeRecorder
from tests.support.training import evaluations, fit, losses

STEPS = 14  # two epochs of batches of 32, the last of each smaller
COMMON: dict[str, Any] = {
    "per_device_train_batch_size": 32, "eval_steps": 7, "logging_steps": 1, "warmup_ratio": 0.0,
    "max_train_samples": 212, "max_eval_samples": 100, "seed": 3,
}  # fmt: skip
CLOSE = {"bf16": 3e-2, "fp16": 1e-2, "no": 1e-3}  # difference of a loss
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "dropout": {"dropout": 0.1, "freeze_embeddings": False},
    "two batches a step": {"gradient_accumulation_steps": 2},
    "weighted, smoothed": {"class_weights": "balanced", "label_smoothing_factor": 0.1},
    "LoRA": {"use_lora": True, "lora_dropout": 0.0},
}


class Counted:
    """Counts the recordings of all runs."""

    def __init__(self) -> None:

        self.recordings, record = 0, Recorder.record

        def counted(recorder: Recorder, work: Any) -> Any:
            recorded = record(recorder, work)
            self.recordings += 1
            return recorded

        Recorder.record = counted  # type: ignore[assignment, method-assign]


def check(folder: Path, precisions: tuple[str, ...] = ("bf16", "fp16")) -> int:
    """Check everything, and print it. Returns the exit status."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    print(f"{name}, torch {torch.__version__}, auto is {devices.trains_in()}", flush=True)
    counted, problems, began = Counted(), [], time.monotonic()
    if torch.cuda.is_available() and not devices.prefers_bf16():
        precisions = tuple(name for name in precisions if name != "bf16")
    for precision in precisions:
        for case, values in CASES.items():
            before = counted.recordings
            problem = attempt(compare, folder, precision, values)
            if torch.cuda.is_available() and counted.recordings == before:
                problem = problem or "nothing was recorded: the log above says why"
            problems += told(f"{precision}, {case}", problem)
        problems += told(f"{precision}, resumed", attempt(resume, folder, precision))
    problems += told("answers", attempt(answer, folder))
    if torch.cuda.is_available():
        problems += told("pace", attempt(measured_pace))
        # Last: a recording that failed may spoil later ones.
        problems += told("without graphs", attempt(fall_back, folder, precisions[0]))
    print(f"{counted.recordings} recordings, {time.monotonic() - began:.0f} s", flush=True)
    print("check: " + (f"{len(problems)} problems" if problems else "ok"), flush=True)
    return bool(problems)


def rehearse(folder: Path, model: Path) -> int:
    """Check a tiny model on a processor, with a tape in place of graphs, and see that a wrong step
    is found. Returns the exit status."""

    def recorder(configuration: RunConfig, *_: Any) -> TapeRecorder | None:
        return TapeRecorder() if configuration.cuda_graphs == "auto" else None

    COMMON.update(
        checkpoint=str(model), max_length=32, learning_rate=1e-2, per_device_train_batch_size=8,
        max_train_samples=53, max_eval_samples=25,
    )  # fmt: skip
    with (
        mock.patch.object(cuda_graphs, "recorder_for", recorder),
        mock.patch.dict(CASES, {"plain": {}}, clear=True),
    ):
        failed = check(folder, ("no",)) or bool(fall_back(folder, "no"))
        with mock.patch.object(cuda_graphs.RecordedStep, "_before_replay"):
            found = attempt(compare, folder, "no", {})
    print(f"a wrong step: {found[:60] or 'is not found'}", flush=True)
    return int(failed or not found)


def told(name: str, problem: str) -> list[str]:
    print(f"{name}: {problem or 'ok'}", flush=True)
    return [problem] if problem else []


def attempt(part: Callable[..., str], *values: Any) -> str:
    """Return what is wrong; an error, too, is a problem of its part alone."""
    try:
        return part(*values)
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"


def config(precision: str, **values: Any) -> RunConfig:
    return RunConfig(**COMMON | {"max_steps": STEPS, "mixed_precision": precision} | values)


def run(
    folder: Path, configuration: RunConfig, given_up: bool = False, **options: Any
) -> tuple[list[float], list[float], Any]:
    """The losses of a run, those of its evaluations, and its weights on the processor.
    RuntimeError if it gives up its graphs and should not, or the other way round."""
    happened, model = fit(configuration, splits.load_pairs(configuration, folder), **options)
    reasons = [event.reason for event in happened if isinstance(event, GraphsGivenUp)]
    if bool(reasons) != given_up:
        raise RuntimeError(f"graphs were given up: {reasons}")
    weights = {name: value.cpu() for name, value in model.state_dict().items()}
    return losses(happened), [each.metrics["loss"] for each in evaluations(happened)], weights


def compare(folder: Path, precision: str, values: dict[str, Any], given_up: bool = False) -> str:
    """Return how recorded steps differ from steps done one by one; empty if they do not."""
    recorded = run(folder, config(precision, **values), given_up)
    by_hand = run(folder, config(precision, cuda_graphs="off", **values))
    for name, one, other in zip(("loss", "validation loss"), recorded, by_hand, strict=False):
        difference = max(abs(a - b) for a, b in zip(one, other, strict=True))
        print(f"  {name} differs by at most {difference:.1e}", flush=True)
        if not difference <= CLOSE[precision]:
            return f"{name} of recorded steps {one}, and of others {other}"
    if not recorded[0][-1] < 2 * recorded[0][0]:
        return f"the loss does not fall: {recorded[0]}"
    return ""


def measured_pace() -> str:
    """Return what is wrong with the pace that estimates use; empty if nothing is."""
    measured = pace._measure("cuda")
    print(f"  {measured}", flush=True)
    sensible = 0 < measured.overhead < 1e-2 and measured.half > measured.full / 2 > 1e11
    return "" if sensible else f"{measured} is no pace of a GPU"


def fall_back(folder: Path, precision: str) -> str:
    """Return how a run whose second shape cannot be recorded differs from one without graphs."""
    loss, seen = Step._loss, set()

    def waiting(step: Step, batch: Any) -> Any:
        computed = loss(step, batch)
        seen.add(batch["input_ids"].shape)
        if len(seen) > 1:
            computed.item()  # waits for the device, which a recording may not
        return computed

    Step._loss = waiting  # type: ignore[assignment, method-assign]
    try:
        return compare(folder, precision, {"dropout": 0.1}, given_up=True)
    finally:
        Step._loss = loss  # type: ignore[method-assign]


def resume(folder: Path, precision: str) -> str:
    """Return how a resumed run differs from one that was never stopped; empty if it does not."""
    at, checkpoint = STEPS // 2 + 2, folder / f"checkpoint-{precision}"
    configuration = config(precision, dropout=0.1, deterministic=True, save_steps=at)
    try:
        losses, _, weights = run(folder, configuration)
        run(
            folder, configuration, should_stop=checkpoint.exists,
            save_checkpoint=lambda step, write: step == at and write(checkpoint),
        )  # fmt: skip
        rest, _, resumed = run(folder, configuration, resume=checkpoint)
    finally:
        torch.use_deterministic_algorithms(False)
    if rest != losses[at:]:
        return f"losses after the stop {rest}, without it {losses[at:]}"
    unequal = [name for name, value in weights.items() if not torch.equal(value, resumed[name])]
    return f"weights differ: {unequal}" if unequal else ""


def answer(folder: Path) -> str:
    """Return how answers of recorded batches differ from those of the model; empty if they do
    not."""
    model = random_bert(folder / "small", num_hidden_layers=2)
    pairs = splits.load_pairs(config("no"), folder).splits["validation"]
    rows = list(zip(pairs["sentence1"], pairs["sentence2"], strict=True))
    for precision in ("fp32", *(["bf16"] if devices.prefers_bf16() else [])):
        scorer, plain = (Scorer(model, 128, precision) for _ in range(2))  # type: ignore[arg-type]
        plain._recorded = None
        for count in (1, 2, 5, len(rows)):
            asked = list(zip(*rows[:count], strict=True))
            for _ in range(3):  # the second is recorded, the third replayed
                logits = scorer.scores(*asked)
            difference = float(np.abs(logits - plain.scores(*asked)).max())
            if not difference <= (1e-3 if precision == "fp32" else 3e-2):
                return f"{precision}, {count} pairs: logits differ by {difference:.1e}"
        print(f"  {precision}: logits are the model's", flush=True)
    return ""
