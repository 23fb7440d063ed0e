"""What needs a GPU: `python -m tests.benchmarks.gpu [--check | --quick | --rehearse]`.

`--check` (90 s) is what to run first on a new card. In bf16 and in fp16, with the bundled
checkpoint on the bundled pairs: the losses of recorded steps equal those of steps done one by one,
within the precision, also with dropout, several batches a step, weighted classes and LoRA; a run
that was stopped and resumed is bit-identical with `deterministic`. A run goes on without graphs if
one cannot be recorded. Answers of recorded batches equal those of the model. It prints a line for
each, and every problem. `--quick` and the whole measure how fast they are. The model is of BERT
base's size with random weights and the bundled tokenizer: it is as fast as bert-base-uncased, and
nothing is fetched; `--model` names another. It is trained on MRPC if its files are there, or on the
bundled pairs. `--rehearse` needs no GPU: it runs a tiny model through all that, and lets the check
find a wrong step.

- Training as `training` measures it, at batches of 32 and of 128, once every shape of a batch was
  seen: the course's loop in fp32 and Recommended. The whole also takes `Trainer`.
- Answers as `prediction` measures them.
- Three epochs from the command to the end, and how much of that is training. The whole also takes
  the bundled checkpoint.

Every figure is printed as it comes. The last line is `gpu: ratio X`, Recommended over the course's
loop at batch 32. The exit status is 1 if a part failed; the others go on.
"""

import argparse
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from unittest import mock

import datasets
import numpy as np
import torch
import transformers

from finetune.config import BUNDLED_CHECKPOINT, RunConfig
from finetune.data import splits
from finetune.environment import devices, pace
from finetune.inference.scorer import Scorer
from finetune.runs.events import GraphsGivenUp
from finetune.training import cuda_graphs
from finetune.training.cuda_graphs import Recorder
from finetune.training.step import Step
from tests.benchmarks import machine, prediction, quality, training
from tests.support.tape import TapeRecorder
from tests.support.training import evaluations, fit, losses

EPOCH = 115  # batches of 32 of MRPC


def main():
    args = machine.parsed(__doc__, check=bool, rehearse=bool, model=Path)
    if not args.rehearse and (reason := missing()):
        sys.exit(reason)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    quiet()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.rehearse or args.check:
            os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # before CUDA, for equal bits
            if args.check:
                sys.exit(check(folder))
            os.environ[machine.QUICK] = "yes"
            model = machine.tiny_bert(folder)
            sys.exit(rehearse(folder, model) or measure(folder, model, True, True))
        print(machine.described(), flush=True)
        model = args.model or machine.random_bert(folder / "bert")
        sys.exit(measure(folder, model, args.quick))


def missing():
    """Say what this machine lacks; empty if it has a GPU that can be used."""
    if devices.list_accelerators() and torch.cuda.is_available():
        return ""
    found = "nvidia-smi lists one" if devices.list_accelerators() else "nvidia-smi lists none"
    return (
        f"This needs an NVIDIA GPU ({found}) and a PyTorch with CUDA (torch {torch.__version__} "
        f"{'sees' if torch.cuda.is_available() else 'does not see'} one)."
    )


def quiet():
    """Leave out progress bars and what transformers says of new weights."""
    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


def measure(folder, model, quick, rehearsal=False):
    """Print all figures; a rehearsal takes few steps at one batch size, and no answers, which
    `prediction --quick` runs through. Returns the exit status."""
    rounds, sides = (2, ["course", "recommended"]) if quick else (3, [*training.SIDES])
    rounds, steps, warm = (1, 2, 1) if rehearsal else (rounds, 200, 2 * EPOCH)
    ratios = []

    def train(batch):
        file = next(machine.MRPC.glob("train-*"), None)
        args = argparse.Namespace(
            steps=steps, warm=warm, batch=batch, checkpoint=model, train_file=file
        )
        medians = training.measure(sides, rounds, args)
        ratios.append(medians["recommended"] / medians["course"])

    def answer():
        repeat = 1 if quick else 9  # of 408 pairs
        prediction.compare(
            argparse.Namespace(
                folder=folder, mrpc=machine.MRPC, rounds=rounds, repeat=repeat, alone=60,
                seconds=1.0,
            ),
            model,
        )  # fmt: skip

    parts = {
        "training, 32": lambda: train(32),
        "training, 128": lambda: train(128),
        "answers": answer,
        "a run of BERT base": lambda: whole_run(folder, str(model)),
    }
    if rehearsal:
        del parts["training, 128"], parts["answers"]
    if not quick:
        parts["a run of the bundled checkpoint"] = lambda: whole_run(folder, BUNDLED_CHECKPOINT)
    failed = [name for name, part in parts.items() if not carried_out(name, part)]
    print(f"failed: {', '.join(failed)}" if failed else "every part has its figures", flush=True)
    print(f"gpu: ratio {ratios[0] if ratios else 0:.2f}", flush=True)
    return bool(failed)


def carried_out(name, part):
    """Carry out a part, and print how long it took, or why it failed."""
    began = time.monotonic()
    try:
        part()
    except Exception:
        traceback.print_exc()
        return False
    print(f"({name}: {time.monotonic() - began:.0f} s)", flush=True)
    return True


def whole_run(folder, checkpoint):
    """Seconds of three epochs from the command to its end, those of training, and the F1."""
    runs = folder / "runs"
    config = machine.on_mrpc(RunConfig(checkpoint=checkpoint, num_train_epochs=3), runs)
    run, worker = machine.train(config, runs)
    *_, trained = quality.times_of_training(run).values()
    print(
        f"three epochs of {Path(checkpoint).name}: {worker.seconds:.1f} s from the command to the "
        f"end, training {trained:.1f} s, F1 {run.metrics['f1']:.3f}",
        flush=True,
    )


STEPS = 14  # two epochs of batches of 32, the last of each smaller
COMMON = {
    "per_device_train_batch_size": 32, "eval_steps": 7, "logging_steps": 1, "warmup_ratio": 0.0,
    "max_train_samples": 212, "max_eval_samples": 100, "seed": 3,
}  # fmt: skip
CLOSE = {"bf16": 3e-2, "fp16": 1e-2, "no": 1e-3}  # difference of a loss
CASES = {
    "plain": {},
    "dropout": {"dropout": 0.1, "freeze_embeddings": False},
    "two batches a step": {"gradient_accumulation_steps": 2},
    "weighted, smoothed": {"class_weights": "balanced", "label_smoothing_factor": 0.1},
    "LoRA": {"use_lora": True, "lora_dropout": 0.0},
}


class Counted:
    """Counts the recordings of all runs."""

    def __init__(self):

        self.recordings, record = 0, Recorder.record

        def counted(recorder, work):
            recorded = record(recorder, work)
            self.recordings += 1
            return recorded

        Recorder.record = counted


def check(folder, precisions=("bf16", "fp16")):
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


def rehearse(folder, model):
    """Check a tiny model on a processor, with a tape in place of graphs, and see that a wrong step
    is found. Returns the exit status."""

    def recorder(configuration, *_):
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


def told(name, problem):
    print(f"{name}: {problem or 'ok'}", flush=True)
    return [problem] if problem else []


def attempt(part, *values):
    """Return what is wrong; an error, too, is a problem of its part alone."""
    try:
        return part(*values)
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"


def config(precision, **values):
    return RunConfig(**COMMON | {"max_steps": STEPS, "mixed_precision": precision} | values)


def run(folder, configuration, given_up=False, **options):
    """The losses of a run, those of its evaluations, and its weights on the processor.
    RuntimeError if it gives up its graphs and should not, or the other way round."""
    happened, model = fit(configuration, splits.load_pairs(configuration, folder), **options)
    reasons = [event.reason for event in happened if isinstance(event, GraphsGivenUp)]
    if bool(reasons) != given_up:
        raise RuntimeError(f"graphs were given up: {reasons}")
    weights = {name: value.cpu() for name, value in model.state_dict().items()}
    return losses(happened), [each.metrics["loss"] for each in evaluations(happened)], weights


def compare(folder, precision, values, given_up=False):
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


def measured_pace():
    """Return what is wrong with the pace that estimates use; empty if nothing is."""
    measured = pace._measure("cuda")
    print(f"  {measured}", flush=True)
    sensible = 0 < measured.overhead < 1e-2 and measured.half > measured.full / 2 > 1e11
    return "" if sensible else f"{measured} is no pace of a GPU"


def fall_back(folder, precision):
    """Return how a run whose second shape cannot be recorded differs from one without graphs."""
    loss, seen = Step._loss, set()

    def waiting(step, batch):
        computed = loss(step, batch)
        seen.add(batch["input_ids"].shape)
        if len(seen) > 1:
            computed.item()  # waits for the device, which a recording may not
        return computed

    Step._loss = waiting
    try:
        return compare(folder, precision, {"dropout": 0.1}, given_up=True)
    finally:
        Step._loss = loss


def resume(folder, precision):
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


def answer(folder):
    """Return how answers of recorded batches differ from those of the model; empty if they do
    not."""
    model = machine.random_bert(folder / "small", num_hidden_layers=2)
    pairs = splits.load_pairs(config("no"), folder).splits["validation"]
    rows = list(zip(pairs["sentence1"], pairs["sentence2"], strict=True))
    for precision in ("fp32", *(["bf16"] if devices.prefers_bf16() else [])):
        scorer, plain = (Scorer(model, 128, precision) for _ in range(2))
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


if __name__ == "__main__":
    main()
