"""How much faster does `finetune.inference.scorer` answer than `transformers.pipeline`?

A model fine-tuned with the app (the bundled checkpoint on MRPC, or on the bundled pairs where
`--mrpc` is no folder) reads the validation pairs. The sides are `pipeline("text-classification",
batch_size=32)` in fp32; the `Scorer` in fp32, in bf16 where the processor is faster in it, and in
dynamic int8; and what one would write by hand: PyTorch in fp32, and ONNX Runtime with the app's own
two files, over batches of 32 sorted by length. Each is measured alone in a process of its own, for
threads that wait for work take time from others; they take turns, and medians count.

Measured are a file, read several times over; one pair after another, and one now and then, a tenth
of a second after the last; and fifty threads that ask a `MicroBatcher`, beside the pipeline asked
one by one. Then what share of the rate of a large product the file's products reach, and whether
the answers are the pipeline's: labels, and logits.

ONNX Runtime computes on the CPU; where there is a GPU it is no side, and int8 is none. The ratio is
the `Scorer` over the pipeline, both in fp32, of a file.

    python -m tests.benchmarks.prediction [--model FOLDER] [--mrpc FOLDER] [--rounds 2]
        [--quick]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks import machine

MAX_LENGTH, CLIENTS, BATCH = 128, 50, 32
GAP = 0.1  # seconds between pairs that are asked now and then
PIPELINE, EXACT = "pipeline, fp32", "scorer, fp32"
Pair = tuple[str, str]
Figures = dict[str, Any]  # of one side in one round, by what was measured
Answer = Callable[[list[Pair]], Any]  # logits of shape (pairs, classes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a saved model; trained first by default")
    parser.add_argument(
        "--mrpc", type=Path, default=machine.MRPC, help="folder of MRPC's Parquet files"
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=2, help="times the pairs are read")
    parser.add_argument("--alone", type=int, default=60, help="pairs asked one by one")
    parser.add_argument("--seconds", type=float, default=4.0, help="of fifty clients, a round")
    parser.add_argument("--side", nargs=2, metavar=("SIDE", "FOLDER"))
    args = machine.parsed(parser, rounds=1, repeat=1, alone=3, seconds=0.1)
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    if args.side:
        side, folder = args.side
        print(json.dumps(measure(side, Path(folder), args.repeat, args.alone, args.seconds)))
        return
    print(machine.described())
    files = {name: path for name in ("train", "validation") for path in args.mrpc.glob(f"{name}-*")}
    print("MRPC" if files else "the bundled pairs")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if args.quick:
            args.model = machine.random_bert(folder / "tiny", **machine.TINY)
        prepare(folder, _validation(folder, files), args.model or _trained(folder, files))
        options = ["--repeat", str(args.repeat), "--alone", str(args.alone)]
        options += ["--seconds", str(args.seconds)]
        figures: dict[str, list[Figures]] = {side: [] for side in sides(folder)}

        def file_rate(side: str) -> float:
            if args.quick:
                figures[side].append(measure(side, folder, args.repeat, args.alone, args.seconds))
                return float(figures[side][-1]["file"])
            command = [sys.executable, "-m", "tests.benchmarks.prediction", *options]
            command += ["--side", side, str(folder)]
            output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            figures[side].append(json.loads(output.splitlines()[-1]))
            return float(figures[side][-1]["file"])

        machine.alternate(list(figures), args.rounds, file_rate, "pairs/s")
    report(figures, machine.matmul_rate("fp32"))


def _validation(folder: Path, files: dict[str, Path]) -> list[Pair]:
    from finetune.config import RunConfig
    from finetune.data import splits
    from finetune.uploads import Uploads

    config = RunConfig()
    if files:
        config = config.changed(dataset=Uploads(folder / "uploads").add(files))
    split = splits.load_pairs(config, folder).splits["validation"]
    return list(zip(split["sentence1"], split["sentence2"], strict=True))


def _trained(folder: Path, files: dict[str, Path]) -> Path:
    """The best model of an epoch under Recommended, on 1,500 pairs."""
    command = [sys.executable, "-m", "finetune", "train", "--runs", str(folder / "runs")]
    command += ["--preset", "Recommended", "--num_train_epochs", "1", "--max_train_samples", "1500"]
    for name, path in files.items():
        command += [f"--{name}_file", str(path)]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return next((folder / "runs").glob("*/best"))


def prepare(folder: Path, pairs: list[Pair], saved: Path) -> None:
    """Put into a folder what the sides need, of a `from_pretrained` folder: the pairs, the model,
    and on a CPU its ONNX files."""
    from finetune.environment import devices
    from finetune.hub import onnx
    from finetune.inference import quantized

    (folder / "pairs.json").write_text(json.dumps(pairs), encoding="utf-8")
    (folder / "model").symlink_to(saved.resolve())
    if not devices.list_accelerators():
        onnx.export_onnx(saved, folder / "fp32.onnx")
        quantized.quantize(folder / "fp32.onnx", folder / "int8.onnx", "dynamic", [])


def sides(folder: Path) -> list[str]:
    """The sides of a prepared folder, on this machine."""
    from finetune.environment import devices

    names = [PIPELINE, "PyTorch, fp32, sorted", EXACT]
    names += ["scorer, bf16"] if devices.prefers_bf16() else []
    if (folder / "int8.onnx").exists():
        names += ["scorer, int8", "ONNX Runtime, fp32, sorted", "ONNX Runtime, int8, sorted"]
    return names


def measure(side: str, folder: Path, repeat: int, alone: int, seconds: float) -> Figures:
    """Pairs a second of a file; milliseconds of a pair, one after another and now and then; answers
    a second; and the logits."""
    from finetune.inference.predictor import MicroBatcher
    from finetune.inference.scorer import Scorer

    pairs = [(one, two) for one, two in json.loads((folder / "pairs.json").read_text("utf-8"))]
    program, precision, *_ = side.split(", ")
    scorer, figures = None, {}
    if program == "scorer":
        quantized = folder / "int8.onnx" if precision == "int8" else None
        scorer = Scorer(folder / "model", MAX_LENGTH, precision, quantized=quantized)  # type: ignore[arg-type]
        answer: Answer = lambda pairs: scorer.scores(*zip(*pairs, strict=True))  # noqa: E731
    elif program == "pipeline":
        answer = _pipeline(folder)
    else:
        answer = _by_hand(folder, precision if program == "ONNX Runtime" else "")
    if program == "PyTorch":
        figures["flops"] = _flops(folder, pairs)
    figures["logits"] = np.asarray(answer(pairs), float).tolist()
    figures["file"] = len(pairs) * repeat / _seconds(answer, pairs * repeat)
    for name, gap in (("alone", 0.0), ("now and then", GAP)):
        times = []
        for pair in pairs[:alone]:
            time.sleep(gap)
            times.append(1e3 * _seconds(answer, [pair]))
        figures[name] = statistics.median(times)
    if scorer is not None:
        batcher = MicroBatcher(scorer)
        crowd = lambda at: batcher.submit(*pairs[at % len(pairs)]).result()  # noqa: E731
        figures["answers"] = _rate(crowd, CLIENTS, seconds)
        batcher.close()
    elif program == "pipeline":
        figures["answers"] = _rate(lambda at: answer([pairs[at % len(pairs)]]), 1, seconds)
    return figures


def _seconds(answer: Answer, pairs: list[Pair]) -> float:
    began = time.perf_counter()
    answer(pairs)
    return time.perf_counter() - began


def _pipeline(folder: Path) -> Answer:
    from transformers import pipeline

    from finetune.training import model

    tokenizer, classifier = model.load_saved_model(folder / "model")
    classify = pipeline(
        "text-classification", model=classifier, tokenizer=tokenizer, batch_size=BATCH,
        top_k=None, function_to_apply="none",
    )  # fmt: skip
    labels = list(classifier.config.id2label.values())

    def answer(pairs: list[Pair]) -> list[list[float]]:
        rows = [{"text": one, "text_pair": two} for one, two in pairs]
        answers = classify(rows, truncation=True, max_length=MAX_LENGTH)
        scores = [{entry["label"]: entry["score"] for entry in row} for row in answers]
        return [[row[label] for label in labels] for row in scores]

    return answer


def _by_hand(folder: Path, precision: str) -> Answer:
    """Batches sorted by length through ONNX Runtime, or through PyTorch where no precision is
    named."""
    import onnxruntime
    import torch

    from finetune.training import model

    tokenizer, classifier = model.load_saved_model(folder / "model")
    if precision:
        session = onnxruntime.InferenceSession(
            str(folder / f"{precision}.onnx"), providers=["CPUExecutionProvider"]
        )
        names = [entry.name for entry in session.get_inputs()]
    elif torch.cuda.is_available():
        classifier.cuda()

    def batches(pairs: list[Pair]) -> Iterator[tuple[list[int], Any]]:
        columns = [list(column) for column in zip(*pairs, strict=True)]
        rows = tokenizer(*columns, truncation=True, max_length=MAX_LENGTH)
        order = sorted(range(len(pairs)), key=lambda at: len(rows["input_ids"][at]))
        for start in range(0, len(order), BATCH):
            places = order[start : start + BATCH]
            batch = {name: [rows[name][at] for at in places] for name in rows}
            yield places, tokenizer.pad(batch, return_tensors="np" if precision else "pt")

    def answer(pairs: list[Pair]) -> Any:
        logits = np.empty((len(pairs), classifier.config.num_labels))
        for places, batch in batches(pairs):
            if precision:
                (logits[places],) = session.run(None, {name: batch[name] for name in names})
            else:
                with torch.inference_mode():
                    batch = batch.to(classifier.device)
                    logits[places] = classifier(**batch).logits.cpu().numpy()
        return logits

    return answer


def _flops(folder: Path, pairs: list[Pair]) -> float:
    """FLOP of the whole model's products for a pair without padding, on average."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from finetune.training import model

    tokenizer, classifier = model.load_saved_model(folder / "model")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        for pair in pairs[:BATCH]:
            options = {"truncation": True, "max_length": MAX_LENGTH, "return_tensors": "pt"}
            classifier(**tokenizer(*pair, **options))
    return float(counter.get_total_flops() / len(pairs[:BATCH]))


def _rate(ask: Callable[[int], Any], clients: int, seconds: float) -> float:
    """Answers a second that so many clients get, each asking again once it is answered."""
    numbers, ends, answered = itertools.count(), time.perf_counter() + seconds, [0] * clients

    def client(number: int) -> None:
        while not answered[number] or time.perf_counter() < ends:
            ask(next(numbers))
            answered[number] += 1

    began = time.perf_counter()
    asking = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    return sum(answered) / (time.perf_counter() - began)


def report(figures: dict[str, list[Figures]], rate: float) -> None:
    """Print each side's medians, also as shares of the pipeline's; `rate`: FLOP/s in fp32."""
    medians = {
        side: {
            name: statistics.median(figures_[name] for figures_ in rounds)
            for name in ("file", "alone", "now and then", "answers")
            if name in rounds[0]
        }
        for side, rounds in figures.items()
    }
    plain = medians[PIPELINE]
    columns = {
        "file": "a file, pairs/s", "alone": "one pair, ms", "now and then": "now and then, ms",
        "answers": f"{CLIENTS} clients, answers/s",
    }  # fmt: skip
    print(f"\n{'times the pipeline':<28}" + "".join(f"{text:>26}" for text in columns.values()))
    for side, values in medians.items():
        cells = (
            f"{values[x]:.1f} ({values[x] / plain[x]:.2f})" if x in values else "" for x in columns
        )
        print(f"{side:<28}" + "".join(f"{cell:>26}" for cell in cells))
    flops = next(rounds[0]["flops"] for rounds in figures.values() if "flops" in rounds[0])
    share = medians[EXACT]["file"] * flops / rate
    print(f"the file in fp32: {share:.2f} of what {rate / 1e9:.0f} GFLOP/s allow the whole model")
    expected = np.array(figures[PIPELINE][0]["logits"])
    for side, rounds in figures.items():
        logits = np.array(rounds[0]["logits"])
        equal = float((logits.argmax(1) == expected.argmax(1)).mean())
        print(
            f"{side}: labels equal on {equal:.2%} of {len(logits)} pairs, "
            f"logits within {abs(logits - expected).max():.1e}"
        )
    print(f"prediction: ratio {medians[EXACT]['file'] / plain['file']:.2f}")


if __name__ == "__main__":
    main()
