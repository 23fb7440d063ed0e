"""Every figure that needs a GPU, in about ten minutes: `python -m tests.benchmarks.gpu`.

Training of bert-base-uncased over the published loop and over `Trainer` at batch 32, the share of
the device's matrix rate and the tokens a second that it reaches, and files and single pairs
answered beside `pipeline`. Where the Hub does not answer, a model of the same size with random
weights and the bundled tokenizer serves: its speed is the same. The last line repeats training's.

    python -m tests.benchmarks.gpu [--checkpoint bert-base-uncased]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from finetune.config import RunConfig
from finetune.data import checkpoints
from finetune.environment import devices
from tests.benchmarks import machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", default="", help="random weights of BERT base by default")
    parser.add_argument("--steps", type=int, default=120)
    args = parser.parse_args()
    if not devices.list_accelerators():
        raise SystemExit("Needs a GPU.")
    print(machine.described())
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = args.checkpoint or random_bert(Path(folder) / "bert-base")
        training = ["training", "--checkpoint", checkpoint, "--batch", "32"]
        last = _run([*training, "--steps", str(args.steps)])
        _run(["prediction", "--model", random_bert(Path(folder) / "saved"), "--repeat", "40"])
    print(last.replace("training:", "gpu:"))


def random_bert(folder: Path) -> str:
    """A folder with a classifier of BERT base's size, and the bundled checkpoint's tokenizer."""
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    tokenizer = AutoTokenizer.from_pretrained(
        checkpoints.resolve_checkpoint(RunConfig().checkpoint)
    )
    tokenizer.save_pretrained(folder)
    shape = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=512)
    BertForSequenceClassification(shape).save_pretrained(folder)
    return str(folder)


def _run(words: list[str]) -> str:
    """Run one benchmark, print what it prints, and return its last line."""
    command = [sys.executable, "-m", f"tests.benchmarks.{words[0]}", *words[1:]]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    print(done.stdout, flush=True)
    return done.stdout.splitlines()[-1]


if __name__ == "__main__":
    main()
