"""The command line: `python -m finetune train | check | predict | evaluate | export | deploy`.

`accelerate launch -m finetune train ...` runs the same code in several processes.
"""

from __future__ import annotations

import sys
from importlib import import_module

COMMANDS = {
    "train": ("finetune.jobs.train", "fine-tune a checkpoint on sentence pairs"),
    "check": ("finetune.jobs.check", "look for what is wrong with pairs before training on them"),
    "predict": ("finetune.jobs.predict", "predict every row of a file with a run's model"),
    "evaluate": ("finetune.jobs.evaluate", "score a run's model with its sentences swapped, or "
                 "on its test set"),
    "export": ("finetune.hub.onnx", "write a saved model as ONNX, and compare it with PyTorch"),
    "deploy": ("finetune.hub.deploy", "make or update a Hugging Face Space with this project"),
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns its exit status, 2 for an unknown command."""
    command, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if command in COMMANDS:
        module, _ = COMMANDS[command]
        status: int = import_module(module).main(rest)
        return status
    wants_help = command in ("-h", "--help")
    lines = [f"  {name:<10}{about}" for name, (_, about) in COMMANDS.items()]
    text = "\n".join(["usage: python -m finetune COMMAND [--help] ...", "", "commands:", *lines])
    if not wants_help:
        text = f"python -m finetune: there is no command {command!r}\n{text}"
    print(text, file=sys.stdout if wants_help else sys.stderr)
    return 0 if wants_help else 2


if __name__ == "__main__":
    sys.exit(main())
