"""How much faster does `finetune.inference.scorer` answer than `transformers.pipeline`?

A model fine-tuned with the app (the bundled checkpoint on MRPC, or on the bundled pairs where
`--mrpc` is no folder) reads the validation pairs. The sides are `pipeline("text-classification",
batch_size=32)` in fp32, and the `Scorer` in fp32, in bf16 where the processor is faster in it, and
in dynamic int8 where there is no GPU. Each is measured alone in a process of its own, for threads
that wait for work take time from others; they take turns, and medians count.

Measured are a file, read several times over; one pair after another, and one now and then, a tenth
of a second after the last; and fifty threads that ask a `MicroBatcher`, beside the pipeline asked
one by one. Then whether the answers are the pipeline's: labels, and logits. The ratio is the
`Scorer` over the pipeline, both in fp32, of a file. `--model` names a saved model; `--repeat` says
how often the file is read, `--alone` how many pairs are asked one by one, and `--seconds` how long
the fifty ask.

    python -m tests.benchmarks.prediction [--model FOLDER] [--mrpc FOLDER] [--rounds 2] [--quick]
"""

import itertools
import json
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from finetune.config import RunConfig, preset
from finetune.environment import devices
from tests.benchmarks import machine

MAX_LENGTH, CLIENTS, BATCH = 128, 50, 32
GAP = 0.1  # seconds between pairs that are asked now and then
PIPELINE, EXACT, HALF, INT8 = "pipeline, fp32", "scorer, fp32", "scorer, bf16", "scorer, int8"
COLUMNS = {
    "file": "a file, pairs/s", "alone": "one pair, ms", "now and then": "now and then, ms",
    "answers": f"{CLIENTS} clients, answers/s",
}  # fmt: skip
Pair = tuple[str, str]
Answer = Callable[[list[Pair]], Any]  # logits of shape (pairs, classes)


def main():
    args = machine.parsed(
        __doc__, model=Path, mrpc=(machine.MRPC, Path("absent")), rounds=(2, 1), repeat=(2, 1),
        alone=(60, 3), seconds=(4.0, 0.1), side=str, folder=Path,
    )  # fmt: skip
    if args.side:
        print(json.dumps(measure(args.side, args.folder, args)))
        return
    with machine.begun() as args.folder:
        if args.quick:
            args.model = machine.tiny_bert(args.folder)
        ratio = compare(args, args.model or trained(args.folder, args.mrpc))
    print(f"prediction: ratio {ratio:.2f}")


def trained(folder, mrpc):
    """The best model of an epoch under Recommended, on 1,500 pairs."""
    config = RunConfig(num_train_epochs=1, max_train_samples=1500, **preset("Recommended"))
    return machine.train(machine.on_mrpc(config, folder / "runs", mrpc), folder / "runs")[0].best


def compare(args, model):
    """Measure all sides and print their figures. Returns the ratio."""
    sides = prepare(args.folder, args.mrpc, model)
    figures = {side: [] for side in sides}

    def file_rate(side):
        figures[side].append(machine.of_side("prediction", side, args))
        return float(figures[side][-1]["file"])

    machine.medians(sides, args.rounds, file_rate, "pairs/s")
    return report(figures)


def prepare(folder, mrpc, saved):
    """Put into a folder what the sides need: the pairs, the model, and on a CPU its int8 file.
    Returns the names of the sides."""
    from finetune.data import splits
    from finetune.hub import onnx
    from finetune.inference import quantized

    pairs = splits.load_pairs(machine.on_mrpc(RunConfig(), folder, mrpc), folder)
    split = pairs.splits["validation"]
    rows = list(zip(split["sentence1"], split["sentence2"], strict=True))
    (folder / "pairs.json").write_text(json.dumps(rows), encoding="utf-8")
    (folder / "model").symlink_to(saved.resolve())
    sides = [PIPELINE, EXACT, *([HALF] if devices.prefers_bf16() else [])]
    if devices.list_accelerators():
        return sides
    onnx.export_onnx(saved, folder / "fp32.onnx")
    quantized.quantize(folder / "fp32.onnx", folder / "int8.onnx", "dynamic", [])
    return [*sides, INT8]


def measure(side, folder, args):
    """Pairs a second of a file; milliseconds of a pair, one after another and now and then; answers
    a second; and the logits."""
    from finetune.inference.predictor import MicroBatcher
    from finetune.inference.scorer import Scorer

    pairs = [(one, two) for one, two in json.loads((folder / "pairs.json").read_text("utf-8"))]
    batcher = None
    if side == PIPELINE:
        answer = pipeline(folder)
        ask = lambda at: answer([pairs[at % len(pairs)]])  # noqa: E731
    else:
        precision = side.split(", ")[1]
        int8_file = folder / "int8.onnx" if side == INT8 else None
        scorer = Scorer(folder / "model", MAX_LENGTH, precision, int8_file=int8_file)
        answer = lambda pairs: scorer.scores(*zip(*pairs, strict=True))  # noqa: E731
        batcher = MicroBatcher(scorer)
        ask = lambda at: batcher.submit(*pairs[at % len(pairs)]).result()  # noqa: E731
    figures = {"logits": np.asarray(answer(pairs), float).tolist()}
    figures["file"] = len(pairs) * args.repeat / _seconds(answer, pairs * args.repeat)
    for name, gap in (("alone", 0.0), ("now and then", GAP)):
        times = []
        for pair in pairs[: args.alone]:
            time.sleep(gap)
            times.append(1e3 * _seconds(answer, [pair]))
        figures[name] = statistics.median(times)
    figures["answers"] = _rate(ask, CLIENTS if batcher else 1, args.seconds)
    if batcher is not None:
        batcher.close()
    return figures


def _seconds(answer, pairs):
    began = time.perf_counter()
    answer(pairs)
    return time.perf_counter() - began


def pipeline(folder):
    import torch
    from transformers import pipeline

    from finetune.training import model

    tokenizer, classifier = model.load_saved_model(folder / "model")
    classify = pipeline(
        "text-classification", model=classifier, tokenizer=tokenizer, batch_size=BATCH,
        top_k=None, function_to_apply="none",
        device=torch.device("cuda" if torch.cuda.is_available() else "cpu"),
    )  # fmt: skip
    labels = list(classifier.config.id2label.values())

    def answer(pairs):
        rows = [{"text": one, "text_pair": two} for one, two in pairs]
        answers = classify(rows, truncation=True, max_length=MAX_LENGTH)
        scores = [{entry["label"]: entry["score"] for entry in row} for row in answers]
        return [[row[label] for label in labels] for row in scores]

    return answer


def _rate(ask, clients, seconds):
    """Answers a second that so many clients get, each asking again once it is answered."""
    numbers, ends, answered = itertools.count(), time.perf_counter() + seconds, [0] * clients

    def client(number):
        while not answered[number] or time.perf_counter() < ends:
            ask(next(numbers))
            answered[number] += 1

    began = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, range(clients)))
    return sum(answered) / (time.perf_counter() - began)


def report(figures):
    """Print each side's medians, also as shares of the pipeline's, and how far its answers are from
    it. Returns the rate of a file in fp32 over the pipeline's."""
    medians = {
        side: {name: statistics.median(each[name] for each in rounds) for name in COLUMNS}
        for side, rounds in figures.items()
    }
    plain = medians[PIPELINE]
    print(f"\n{'times the pipeline':<28}" + "".join(f"{text:>26}" for text in COLUMNS.values()))
    for side, values in medians.items():
        cells = (f"{values[name]:.1f} ({values[name] / plain[name]:.2f})" for name in COLUMNS)
        print(f"{side:<28}" + "".join(f"{cell:>26}" for cell in cells))
    expected = np.array(figures[PIPELINE][0]["logits"])
    for side, rounds in figures.items():
        logits = np.array(rounds[0]["logits"])
        equal = float((logits.argmax(1) == expected.argmax(1)).mean())
        print(
            f"{side}: labels equal on {equal:.2%} of {len(logits)} pairs, "
            f"logits within {abs(logits - expected).max():.1e}"
        )
    return float(medians[EXACT]["file"] / plain["file"])


if __name__ == "__main__":
    main()
