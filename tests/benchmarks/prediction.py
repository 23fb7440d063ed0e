"""How much faster does `finetune.inference.scorer` answer than `transformers.pipeline`?

A model fine-tuned with the app (the bundled checkpoint on MRPC, or on the bundled pairs where
`--mrpc` is no folder) reads the validation pairs, several times over, each time anew. The sides are
`pipeline("text-classification", batch_size=32)` in fp32, the `Scorer` as it chooses without int8,
the `Scorer` in fp32, and in int8 as it is made from the run; and, like with like, what one would
write by hand: PyTorch in fp32 and ONNX Runtime with the same int8 file, over batches of 32 sorted
by length. They take turns in one process, and medians count. Then one pair at a time, and fifty
threads that ask a `MicroBatcher`, against the pipeline asked one by one, both with as many threads.
Last, whether the answers are the same: labels, and in fp32 the logits.

    python -m tests.benchmarks.prediction [--model FOLDER] [--mrpc FOLDER] [--rounds 3]
"""

from __future__ import annotations

import argparse
import functools
import itertools
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

MAX_LENGTH, CLIENTS = 128, 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a saved model; trained first by default")
    parser.add_argument(
        "--mrpc", type=Path, default=machine.MRPC, help="folder of MRPC's Parquet files"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=10, help="times the pairs are read")
    parser.add_argument("--alone", type=int, default=100, help="pairs asked one by one")
    parser.add_argument("--seconds", type=float, default=5.0, help="of fifty clients, a round")
    args = parser.parse_args()
    print(machine.described())
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    files = {name: path for name in ("train", "validation") for path in args.mrpc.glob(f"{name}-*")}
    print("MRPC" if files else "the bundled pairs")
    with tempfile.TemporaryDirectory() as folder:
        pairs = _validation(Path(folder), files)
        saved = args.model or _trained(Path(folder), files)
        sides = Sides(saved, pairs * args.repeat)
        ratio = _batch(sides, args.rounds)
        _alone(sides, args.alone)
        _crowd(sides, args.rounds, args.seconds)
        _same(sides, len(pairs))
    print(f"prediction: ratio {ratio:.2f}")


def _validation(folder: Path, files: dict[str, Path]) -> list[tuple[str, str]]:
    from finetune.config import RunConfig
    from finetune.data import splits
    from finetune.uploads import Uploads

    config = RunConfig()
    if files:
        config = config.changed(dataset=Uploads(folder / "uploads").add(files))
    split = splits.load_pairs(config, folder).splits["validation"]
    return list(zip(split["sentence1"], split["sentence2"], strict=True))


def _trained(folder: Path, files: dict[str, Path]) -> Path:
    """The best model of two epochs under Recommended."""
    command = [sys.executable, "-m", "finetune", "train", "--runs", str(folder / "runs")]
    command += ["--preset", "Recommended", "--num_train_epochs", "2"]
    for name, path in files.items():
        command += [f"--{name}_file", str(path)]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return next((folder / "runs").glob("*/best"))


class Sides:
    """The three sides, of a `from_pretrained` folder, on the same pairs."""

    def __init__(self, saved: Path, pairs: list[tuple[str, str]]) -> None:
        from transformers import pipeline

        from finetune.inference.scorer import Scorer
        from finetune.training import model

        tokenizer, classifier = model.load_saved_model(saved)
        self._pipeline = pipeline(
            "text-classification", model=classifier, tokenizer=tokenizer, batch_size=32
        )
        self.scorer = Scorer(saved, MAX_LENGTH)
        self.exact = Scorer(saved, MAX_LENGTH, precision="fp32")
        self.small, self._session = _in_int8(saved, self.scorer, pairs)
        self._tokenizer, self._classifier = tokenizer, classifier
        self.pairs = pairs

    def pipeline(self, pairs: list[tuple[str, str]], **options: Any) -> Any:
        rows = [{"text": one, "text_pair": two} for one, two in pairs]
        return self._pipeline(rows, truncation=True, max_length=MAX_LENGTH, **options)

    def pytorch(self) -> None:
        """The plain model in fp32 on sorted batches."""
        import torch

        with torch.inference_mode():
            for batch in self._sorted("pt"):
                self._classifier(**batch)

    def onnx_runtime(self) -> None:
        """ONNX Runtime's own session of the int8 file on sorted batches."""
        names = [entry.name for entry in self._session.get_inputs()]
        for batch in self._sorted("np"):
            self._session.run(None, {name: batch[name] for name in names})

    def _sorted(self, kind: str) -> Iterator[Any]:
        columns = list(zip(*self.pairs, strict=True))
        rows = self._tokenizer(*columns, truncation=True, max_length=MAX_LENGTH)
        order = sorted(range(len(self.pairs)), key=lambda at: len(rows["input_ids"][at]))
        for start in range(0, len(order), 32):
            places = order[start : start + 32]
            batch = {name: [rows[name][at] for at in places] for name in rows}
            yield self._tokenizer.pad(batch, return_tensors=kind)


def _in_int8(saved: Path, scorer: Any, pairs: list[tuple[str, str]]) -> tuple[Any, Any]:
    """The scorer of the same model with dynamic int8, and ONNX Runtime's session of its file."""
    import onnxruntime

    from finetune.hub import onnx
    from finetune.inference import quantized
    from finetune.inference.scorer import Scorer

    with tempfile.TemporaryDirectory() as folder:
        source, file = Path(folder) / "model.onnx", Path(folder) / "int8.onnx"
        onnx.export_onnx(saved, source)
        quantized.quantize(source, file, "dynamic", scorer.inputs(pairs[:8]))
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        return Scorer(saved, MAX_LENGTH, "int8", quantized=file), session


def _batch(sides: Sides, rounds: int) -> float:
    """Print pairs a second of each side; how many times the pipeline's the scorer's are."""
    texts = list(zip(*sides.pairs, strict=True))
    measured: dict[str, Callable[[], Any]] = {
        "pipeline, fp32": lambda: sides.pipeline(sides.pairs),
        f"scorer, {sides.scorer.precision}": lambda: sides.scorer.scores(*texts),
        "scorer in fp32": lambda: sides.exact.scores(*texts),
        "scorer in int8": lambda: sides.small.scores(*texts),
        "PyTorch, fp32, sorted": sides.pytorch,
        "ONNX Runtime, int8, sorted": sides.onnx_runtime,
    }
    sides.pipeline(sides.pairs[:64])
    rates = machine.alternate(
        list(measured), rounds, lambda side: len(sides.pairs) / _seconds(measured[side]), "pairs/s"
    )
    plain, *ours = medians = [statistics.median(rates[side]) for side in measured]
    print(f"\n{len(sides.pairs):,} pairs{'pairs/s':>25}{'over pipeline':>15}{'best':>8}")
    for side, value in zip(measured, medians, strict=True):
        print(f"{side:<28}{value:>8.1f}{value / plain:>15.2f}{max(rates[side]):>8.1f}")
    return max(ours[:3]) / plain


def _alone(sides: Sides, count: int, turn: int = 10) -> None:
    """Print how long one pair takes each side, in turns of ten pairs: the pipeline's threads look
    out for work for a while after each."""
    scorers = {"scorer": sides.scorer, "scorer in int8": sides.small}
    times: dict[str, list[float]] = {"pipeline": [], **{name: [] for name in scorers}}
    for start in range(0, count, turn):
        for pair in sides.pairs[start : start + turn]:
            times["pipeline"].append(_seconds(functools.partial(sides.pipeline, [pair])))
        for name, scorer in scorers.items():
            for one, two in sides.pairs[start : start + turn]:
                times[name].append(_seconds(functools.partial(scorer.scores, [one], [two])))
    medians = {name: 1e3 * statistics.median(seconds) for name, seconds in times.items()}
    print("\none pair:")
    for name, value in medians.items():
        print(f"{name:<16}{value:>8.1f} ms{value / medians['pipeline']:>8.2f} of the pipeline's")


def _seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _crowd(sides: Sides, rounds: int, seconds: float) -> None:
    """Print answers a second: fifty clients of a `MicroBatcher`, and the pipeline one by one."""
    from finetune.inference.scorer import MicroBatcher

    batcher, small = MicroBatcher(sides.scorer), MicroBatcher(sides.small)
    threads = sides.scorer.threads
    asks: dict[str, tuple[Callable[[int], Any], int]] = {
        "pipeline": (lambda at: sides.pipeline([sides.pairs[at]]), 1),
        "together": (lambda at: batcher.submit(*sides.pairs[at]).result(), CLIENTS),
        "in int8": (lambda at: small.submit(*sides.pairs[at]).result(), CLIENTS),
    }
    rates = machine.alternate(
        list(asks), rounds, lambda side: _rate(*asks[side], seconds, threads), "answers/s"
    )
    batcher.close()
    small.close()
    plain, ours, best = (statistics.median(rates[side]) for side in asks)
    print(
        f"{CLIENTS} clients: pipeline one by one {plain:.1f} pairs/s, together {ours:.1f}: "
        f"{ours / plain:.2f} times it, in int8 {best:.1f}: {best / plain:.2f} times; "
        f"threads of each: {threads}"
    )


def _rate(ask: Callable[[int], Any], clients: int, seconds: float, threads: int) -> float:
    """Answers a second that so many clients get, each asking again once it is answered, with so
    many threads of torch's."""
    import torch

    numbers, ends, answered = itertools.count(), time.perf_counter() + seconds, [0] * clients

    def client(number: int) -> None:
        torch.set_num_threads(threads)
        while not answered[number] or time.perf_counter() < ends:
            ask(next(numbers) % 400)
            answered[number] += 1

    began = time.perf_counter()
    asking = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    return sum(answered) / (time.perf_counter() - began)


def _same(sides: Sides, count: int) -> None:
    """Print how far the sides' answers to the first pairs agree."""
    pairs = sides.pairs[:count]
    answers = sides.pipeline(pairs, top_k=None, function_to_apply="none")
    scores = [{answer["label"]: answer["score"] for answer in row} for row in answers]
    expected = np.array([[row[name] for name in sides.scorer.labels] for row in scores])
    for scorer in (sides.scorer, sides.exact, sides.small):
        logits = scorer.scores(*zip(*pairs, strict=True))
        equal = float((logits.argmax(1) == expected.argmax(1)).mean())
        print(
            f"{scorer.precision}: labels equal on {equal:.2%} of {count} pairs, "
            f"logits within {abs(logits - expected).max():.1e}"
        )


if __name__ == "__main__":
    main()
