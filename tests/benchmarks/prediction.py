"""How much faster does `finetune.inference.scorer` answer than `transformers.pipeline`?

A model fine-tuned with the app (the bundled checkpoint on MRPC, or on the bundled pairs where
`--mrpc` is no folder) reads the validation pairs, several times over, each time anew. The sides are
`pipeline("text-classification", batch_size=32)` in fp32, the `Scorer` in fp32, in bf16 where it
would choose that, and in int8 as it is made from the run; and what one would write by hand: PyTorch
in fp32 and ONNX Runtime in fp32 and with the same int8 file, over batches of 32 sorted by length.
They take turns in one process, and medians count. Then one pair at a time, and fifty threads that
ask a `MicroBatcher`, against the pipeline asked one by one, both with as many threads. Last,
whether the answers are the same: labels, and in fp32 the logits.

ONNX Runtime computes on the CPU; where there is a GPU it is no side, and int8 is none. The ratio is
the `Scorer` over the pipeline, both in fp32; those of bf16 and int8 stand above it.

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
    parser.add_argument("--repeat", type=int, default=2, help="times the pairs are read")
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
        ratios = _batch(sides, args.rounds)
        _alone(sides, args.alone)
        _crowd(sides, args.rounds, args.seconds)
        _same(sides, len(pairs))
    for precision, ratio in ratios.items():
        print(f"a file in {precision}, over the pipeline in fp32: {ratio:.2f} times")
    print(f"prediction: ratio {ratios['fp32']:.2f}")


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
    """The sides, of a `from_pretrained` folder, on the same pairs: the pipeline; the scorers and
    ONNX Runtime's sessions, by their precision."""

    def __init__(self, saved: Path, pairs: list[tuple[str, str]]) -> None:
        from transformers import pipeline

        from finetune.environment import devices
        from finetune.inference.scorer import Scorer
        from finetune.training import model

        tokenizer, classifier = model.load_saved_model(saved)
        self._pipeline = pipeline(
            "text-classification", model=classifier, tokenizer=tokenizer, batch_size=32
        )
        self.scorers = {"fp32": Scorer(saved, MAX_LENGTH, "fp32")}
        if devices.prefers_bf16():
            self.scorers["bf16"] = Scorer(saved, MAX_LENGTH, "bf16")
        self.sessions: dict[str, Any] = {}
        if self.scorers["fp32"].device.type == "cpu":
            self.scorers["int8"], self.sessions = _in_onnx(saved, self.scorers["fp32"], pairs)
        self._tokenizer, self._classifier = tokenizer, classifier
        self.pairs = pairs

    def pipeline(self, pairs: list[tuple[str, str]], **options: Any) -> Any:
        rows = [{"text": one, "text_pair": two} for one, two in pairs]
        return self._pipeline(rows, truncation=True, max_length=MAX_LENGTH, **options)

    def pytorch(self) -> None:
        """The plain model in fp32 on sorted batches."""
        import torch

        with torch.inference_mode():
            for batch in self._sorted(self.pairs, "pt"):
                self._classifier(**batch.to(self._classifier.device)).logits.cpu()

    def onnx_runtime(self, precision: str, pairs: list[tuple[str, str]]) -> None:
        """ONNX Runtime's own session on sorted batches."""
        session = self.sessions[precision]
        names = [entry.name for entry in session.get_inputs()]
        for batch in self._sorted(pairs, "np"):
            session.run(None, {name: batch[name] for name in names})

    def _sorted(self, pairs: list[tuple[str, str]], kind: str) -> Iterator[Any]:
        columns = [list(column) for column in zip(*pairs, strict=True)]
        rows = self._tokenizer(*columns, truncation=True, max_length=MAX_LENGTH)
        order = sorted(range(len(pairs)), key=lambda at: len(rows["input_ids"][at]))
        for start in range(0, len(order), 32):
            places = order[start : start + 32]
            batch = {name: [rows[name][at] for at in places] for name in rows}
            yield self._tokenizer.pad(batch, return_tensors=kind)


def _in_onnx(saved: Path, scorer: Any, pairs: list[tuple[str, str]]) -> tuple[Any, dict[str, Any]]:
    """The scorer of the same model with dynamic int8, and ONNX Runtime's sessions of its file and
    of the one that it was made of."""
    import onnxruntime

    from finetune.hub import onnx
    from finetune.inference import quantized
    from finetune.inference.scorer import Scorer

    with tempfile.TemporaryDirectory() as folder:
        source, file = Path(folder) / "model.onnx", Path(folder) / "int8.onnx"
        onnx.export_onnx(saved, source)
        quantized.quantize(source, file, "dynamic", scorer.inputs(pairs[:8]))
        sessions = {
            precision: onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
            for precision, path in (("fp32", source), ("int8", file))
        }
        return Scorer(saved, MAX_LENGTH, "int8", quantized=file), sessions


def _batch(sides: Sides, rounds: int) -> dict[str, float]:
    """Print pairs a second of each side; how many times the pipeline's each scorer's are, by its
    precision."""
    texts = list(zip(*sides.pairs, strict=True))
    measured: dict[str, Callable[[], Any]] = {
        "pipeline, fp32": lambda: sides.pipeline(sides.pairs),
        "PyTorch, fp32, sorted": sides.pytorch,
    }
    for precision, scorer in sides.scorers.items():
        measured[f"scorer, {precision}"] = functools.partial(scorer.scores, *texts)
    for precision in sides.sessions:
        measured[f"ONNX Runtime, {precision}, sorted"] = functools.partial(
            sides.onnx_runtime, precision, sides.pairs
        )
    sides.pipeline(sides.pairs[:64])
    rates = machine.alternate(
        list(measured), rounds, lambda side: len(sides.pairs) / _seconds(measured[side]), "pairs/s"
    )
    medians = {side: statistics.median(rates[side]) for side in measured}
    plain = medians["pipeline, fp32"]
    print(f"\n{len(sides.pairs):,} pairs{'pairs/s':>25}{'over pipeline':>15}{'best':>8}")
    for side, value in medians.items():
        print(f"{side:<28}{value:>8.1f}{value / plain:>15.2f}{max(rates[side]):>8.1f}", flush=True)
    return {precision: medians[f"scorer, {precision}"] / plain for precision in sides.scorers}


def _alone(sides: Sides, count: int, turn: int = 10) -> None:
    """Print how long one pair takes each side, in turns of ten pairs: the pipeline's threads look
    out for work for a while after each."""
    asks: dict[str, Callable[[tuple[str, str]], Any]] = {
        "pipeline": lambda pair: sides.pipeline([pair])
    }
    for precision, scorer in sides.scorers.items():
        asks[f"scorer, {precision}"] = functools.partial(_score, scorer)
    for precision in sides.sessions:
        asks[f"ONNX Runtime, {precision}"] = functools.partial(_run, sides, precision)
    times: dict[str, list[float]] = {name: [] for name in asks}
    for start in range(0, count, turn):
        for name, ask in asks.items():
            for pair in sides.pairs[start : start + turn]:
                times[name].append(_seconds(functools.partial(ask, pair)))
    medians = {name: 1e3 * statistics.median(seconds) for name, seconds in times.items()}
    print("\none pair:")
    for name, value in medians.items():
        print(f"{name:<20}{value:>8.1f} ms{value / medians['pipeline']:>8.2f} of the pipeline's")


def _score(scorer: Any, pair: tuple[str, str]) -> None:
    scorer.scores(*([text] for text in pair))


def _run(sides: Sides, precision: str, pair: tuple[str, str]) -> None:
    sides.onnx_runtime(precision, [pair])


def _seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _crowd(sides: Sides, rounds: int, seconds: float) -> None:
    """Print answers a second: fifty clients of a `MicroBatcher`, and the pipeline one by one."""
    from finetune.inference.scorer import MicroBatcher

    def ask_batcher(batcher: MicroBatcher, at: int) -> None:
        batcher.submit(*sides.pairs[at]).result()

    batchers = {precision: MicroBatcher(scorer) for precision, scorer in sides.scorers.items()}
    threads = sides.scorers["fp32"].threads
    asks: dict[str, tuple[Callable[[int], Any], int]] = {
        "pipeline": (lambda at: sides.pipeline([sides.pairs[at]]), 1)
    }
    for precision, batcher in batchers.items():
        asks[f"together in {precision}"] = functools.partial(ask_batcher, batcher), CLIENTS
    rates = machine.alternate(
        list(asks), rounds, lambda side: _rate(*asks[side], seconds, threads), "answers/s"
    )
    for batcher in batchers.values():
        batcher.close()
    plain, *medians = (statistics.median(rates[side]) for side in asks)
    together = ", ".join(
        f"together in {precision} {value:.1f}: {value / plain:.2f} times it"
        for precision, value in zip(batchers, medians, strict=True)
    )
    print(
        f"{CLIENTS} clients: pipeline one by one {plain:.1f} pairs/s, {together}; "
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
    expected = np.array([[row[name] for name in sides.scorers["fp32"].labels] for row in scores])
    for scorer in sides.scorers.values():
        logits = scorer.scores(*zip(*pairs, strict=True))
        equal = float((logits.argmax(1) == expected.argmax(1)).mean())
        print(
            f"{scorer.precision}: labels equal on {equal:.2%} of {count} pairs, "
            f"logits within {abs(logits - expected).max():.1e}"
        )


if __name__ == "__main__":
    main()
