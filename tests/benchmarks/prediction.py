"""How much faster does `finetune.inference.scorer` answer than `transformers.pipeline`?

A model fine-tuned with the app (the bundled checkpoint on MRPC, or on the bundled pairs where MRPC
is not at hand) reads MRPC's validation pairs, several times over, each time anew. The sides are
`pipeline("text-classification", batch_size=32)` in fp32, the `Scorer` as it chooses, and the
`Scorer` in fp32; they take turns in one process, in the other order every other round, and medians
count. Then one pair at a time, the sides taking turns at every tenth, and fifty threads that ask
`Together`, against the pipeline asked one by one, both with as many threads of torch's. Last,
whether the answers are the same: labels, and in fp32 the logits.

    python -m tests.benchmarks.prediction [--model FOLDER] [--rounds 3] [--repeat 10]
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.benchmarks import machine

MRPC = Path(__file__).resolve().parents[3] / "shared" / "data" / "glue" / "mrpc"
MAX_LENGTH, CLIENTS = 128, 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a saved model; trained first by default")
    parser.add_argument("--mrpc", type=Path, default=MRPC, help="folder of MRPC's Parquet files")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=10, help="times the pairs are read")
    parser.add_argument("--alone", type=int, default=100, help="pairs asked one by one")
    parser.add_argument("--seconds", type=float, default=5.0, help="of fifty clients, a round")
    given = parser.parse_args()
    print(machine.described())
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        files = _files(given.mrpc)
        pairs = _validation(Path(folder), files)
        saved = given.model or _trained(Path(folder), files)
        sides = Sides(saved, pairs * given.repeat)
        rate = _batch(sides, given.rounds)
        _alone(sides, given.alone)
        _crowd(sides, given.rounds, given.seconds)
        _same(sides, len(pairs))
    print(f"prediction: ratio {rate:.2f}")


def _files(mrpc: Path) -> dict[str, Path]:
    """A file a split; none where MRPC is not at hand."""
    found = {name: next(mrpc.glob(f"{name}-*.parquet"), None) for name in ("train", "validation")}
    files = {name: path for name, path in found.items() if path is not None}
    if len(files) < 2:
        print("MRPC is not at hand; these are the bundled pairs.")
        return {}
    return files


def _validation(folder: Path, files: dict[str, Path]) -> list[tuple[str, str]]:
    from finetune.config import RunConfig
    from finetune.data import splits
    from finetune.uploads import Uploads

    chosen = RunConfig()
    if files:
        chosen = chosen.changed(dataset=Uploads(folder / "uploads").add(files))
    split = splits.load_pairs(chosen, folder).splits["validation"]
    return list(zip(split["sentence1"], split["sentence2"], strict=True))


def _trained(folder: Path, files: dict[str, Path]) -> Path:
    """The best model of two epochs under Recommended."""
    command = [sys.executable, "-m", "finetune", "train", "--runs", str(folder / "runs")]
    command += ["--preset", "Recommended", "--num_train_epochs", "2"]
    for name, path in files.items():
        command += [f"--{name}_file", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return next((folder / "runs").glob("*/best"))


class Sides:
    """The three sides on the same pairs.

    Args:
        saved: a `from_pretrained` folder.
        pairs: all the pairs of a batch measurement.
    """

    def __init__(self, saved: Path, pairs: list[tuple[str, str]]) -> None:
        from transformers import pipeline

        from finetune.inference.scorer import Scorer
        from finetune.training import model

        tokenizer, classifier = model.load_saved_model(saved)
        self.plain = pipeline(
            "text-classification", model=classifier, tokenizer=tokenizer, batch_size=32
        )
        self.scorer = Scorer(saved, MAX_LENGTH)
        self.exact = Scorer(saved, MAX_LENGTH, precision="fp32")
        self.rows = [{"text": one, "text_pair": two} for one, two in pairs]
        self.texts: tuple[list[str], list[str]] = tuple(map(list, zip(*pairs, strict=True)))  # type: ignore[assignment]

    def pipeline(self, rows: Any = None, **options: Any) -> Any:
        rows = self.rows if rows is None else rows
        return self.plain(rows, truncation=True, max_length=MAX_LENGTH, **options)


def _batch(sides: Sides, rounds: int) -> float:
    """Print pairs a second of each side; how many times the pipeline's the scorer's are."""
    ours = f"scorer, {sides.scorer.precision}"
    measured: dict[str, Callable[[], Any]] = {
        "pipeline, fp32": sides.pipeline,
        ours: lambda: sides.scorer.scores(*sides.texts),
        "scorer in fp32": lambda: sides.exact.scores(*sides.texts),
    }
    sides.pipeline(sides.rows[:64])
    rates: dict[str, list[float]] = {side: [] for side in measured}
    for number in range(rounds):
        for side in list(measured)[:: -1 if number % 2 else 1]:
            rates[side].append(len(sides.rows) / _seconds(measured[side]))
            print(f"round {number + 1} {side:<16}{rates[side][-1]:>8.1f} pairs/s", flush=True)
    medians = {side: statistics.median(found) for side, found in rates.items()}
    best = {side: max(found) for side, found in rates.items()}  # when least else was running
    print(
        f"\n{len(sides.rows):,} pairs{'pairs/s':>19}{'over pipeline':>15}{'best':>8}{'over it':>9}"
    )
    for side, value in medians.items():
        print(
            f"{side:<16}{value:>14.1f}{value / medians['pipeline, fp32']:>15.2f}"
            f"{best[side]:>8.1f}{best[side] / best['pipeline, fp32']:>9.2f}"
        )
    return medians[ours] / medians["pipeline, fp32"]


def _alone(sides: Sides, count: int, turn: int = 10) -> None:
    """Print how long one pair takes each side.

    Args:
        turn: pairs in a row; the pipeline's threads look out for work for a while after each.
    """
    times: dict[str, list[float]] = {"pipeline": [], "scorer": []}
    for start in range(0, count, turn):
        mine = range(start, min(start + turn, count))
        for at in mine:
            times["pipeline"].append(_seconds(functools.partial(sides.pipeline, sides.rows[at])))
        for at in mine:
            one = ([of[at]] for of in sides.texts)
            times["scorer"].append(_seconds(functools.partial(sides.scorer.scores, *one)))
    plain, ours = (1e3 * statistics.median(found) for found in times.values())
    print(f"\none pair: pipeline {plain:.1f} ms, scorer {ours:.1f} ms: {ours / plain:.2f} of it")


def _seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _crowd(sides: Sides, rounds: int, seconds: float) -> None:
    """Print answers a second: fifty clients of `Together`, and the pipeline one by one."""
    from finetune.inference.micro_batcher import MicroBatcher

    together = MicroBatcher(sides.scorer)
    rates: dict[str, list[float]] = {"pipeline": [], "together": []}
    threads = sides.scorer.threads
    for _ in range(rounds):
        rates["pipeline"].append(
            _rate(lambda at: sides.pipeline(sides.rows[at]), 1, seconds, threads)
        )
        rates["together"].append(
            _rate(
                lambda at: together.submit(*(of[at] for of in sides.texts)).result(),
                CLIENTS,
                seconds,
                threads,
            )
        )
    together.close()
    plain, ours = (statistics.median(found) for found in rates.values())
    print(
        f"{CLIENTS} clients: pipeline one by one {plain:.1f} pairs/s, together {ours:.1f}: "
        f"{ours / plain:.2f} times it; threads of each: {threads}"
    )


def _rate(ask: Callable[[int], Any], clients: int, seconds: float, threads: int) -> float:
    """Answers a second that so many clients get, each asking again once it is answered.

    Args:
        threads: of torch's, that a client computes with; what another thread was told last would
            be a new one's number.
    """
    import torch

    numbers, ends, answered = itertools.count(), time.perf_counter() + seconds, [0] * clients

    def client(which: int) -> None:
        torch.set_num_threads(threads)
        while not answered[which] or time.perf_counter() < ends:
            ask(next(numbers) % 400)
            answered[which] += 1

    began = time.perf_counter()
    asking = [threading.Thread(target=client, args=(which,)) for which in range(clients)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    return sum(answered) / (time.perf_counter() - began)


def _same(sides: Sides, count: int) -> None:
    """Print how far the sides' answers to the first pairs agree."""
    import numpy as np

    names = sides.scorer.labels
    wanted = np.array(
        [
            [{one["label"]: one["score"] for one in row}[name] for name in names]
            for row in sides.pipeline(sides.rows[:count], top_k=None, function_to_apply="none")
        ]
    )
    for scorer in (sides.scorer, sides.exact):
        found = scorer.scores(*(of[:count] for of in sides.texts))
        equal = float((found.argmax(1) == wanted.argmax(1)).mean())
        print(
            f"{scorer.precision}: labels equal on {equal:.2%} of {count} pairs, "
            f"logits within {abs(found - wanted).max():.1e}"
        )


if __name__ == "__main__":
    main()
