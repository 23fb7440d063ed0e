"""Does a file of a million pairs fit where one of fifty thousand does?

Two CSV files of made pairs, of 50,000 and of 1,000,000 rows. Each is checked and then trained on
for a few steps by the real workers, and predicted whole by a toy of two layers (a real model has
the same rows and takes hours over them); the largest resident memory of each process is taken
(Linux, `VmHWM`). The ratio is the peak at the small file over the peak at the large one, of the
worst of them: 1 means that the rows cost nothing, 0.8 that they cost a quarter more.

    python -m tests.benchmarks.memory [--small 50000] [--rows 1000000] [--quick]
"""

import random
import shutil

from finetune.config import RunConfig
from finetune.runs.store import RunStore
from tests.benchmarks import machine
from tests.support import toys

WORDS = [a + b for a in ("ba", "ke", "li", "mo", "nu", "pra", "so", "ti") for b in "bdfglmnrstvx"]


def main():
    args = machine.parsed(__doc__, small=(50_000, 300), rows=(1_000_000, 300), steps=(20, 2))
    peaks = {}
    with machine.begun() as folder:
        print(f"{'worker':<10}{'rows':>12}{'MiB':>8}{'seconds':>10}")
        for rows in sorted({args.small, args.rows}):
            path, runs = folder / f"{rows}.csv", folder / f"runs-{rows}"
            write(path, rows)
            source = ["--runs", runs, "--train_file", path]
            steps = ["--max_steps", args.steps, "--max_eval_samples", 200]
            if args.quick:
                steps += ["--checkpoint", machine.tiny_bert(folder)]
            workers = {
                "check": ["check", *source],
                "again": ["check", *source],
                "train": ["train", *source, *steps],
                "predict": ["predict", "--file", path, "--out", f"{path}.out.csv", "--run"],
            }
            for name, words in workers.items():
                run = [toy_run(runs)] if name == "predict" else []
                worker = machine.work("finetune", *words, *run)
                peaks.setdefault(name, []).append(worker.peak)
                print(f"{name:<10}{rows:>12,}{worker.peak:>8.0f}{worker.seconds:>10.1f}")
    print(f"memory: ratio {min(sizes[0] / sizes[-1] for sizes in peaks.values()):.2f}")


def write(path, rows):
    """A CSV of so many pairs of 6 to 14 words; half of the pairs share most of them."""
    draw = random.Random(rows)
    with path.open("w", encoding="utf-8") as file:
        file.write("question1,question2,is_duplicate\n")
        for number in range(rows):
            first = draw.choices(WORDS, k=draw.randint(6, 14))
            same = draw.random() < 0.5
            second = [*first[1:], first[0]] if same else draw.choices(WORDS, k=len(first))
            file.write(f"{' '.join(first)} {number},{' '.join(second)} {number},{int(same)}\n")


def toy_run(runs):
    """A run folder with a model of two layers, and the training pairs of the run before it."""
    store = RunStore(runs)
    trained = store.runs()
    run = store.create(RunConfig(max_length=48))
    toys.write_checkpoint(run.best)
    for before in trained:
        shutil.copytree(before.folder / "seen", run.folder / "seen", dirs_exist_ok=True)
    return run.folder


if __name__ == "__main__":
    main()
