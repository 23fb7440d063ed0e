"""The command line: `python -m finetune COMMAND`.

`accelerate launch -m finetune train ...` runs the same code in several processes.
"""

import argparse
import gc
import sys
from importlib import import_module

from finetune import disk
from finetune.environment import caches, logs
from finetune.errors import FinetuneError

COMMANDS = {
    "train": "fine-tune a checkpoint on your texts",
    "search": "find hyperparameters by many runs",
    "probe": "rank checkpoints on your data before training",
    "runs": "list runs, and what each scored",
    "check": "look for what is wrong with the data before training on it",
    "label": "label texts of a file, or pairs that mean the same, by answering questions",
    "groups": "group the texts of a labelled file that mean the same",
    "predict": "predict every row of a file with a run's model",
    "evaluate": "score a run's model with its sentences swapped, or on its test set",
    "sure": "let a run's model answer only when it is sure, with a bound on its error",
    "rank": "rank finished runs, and name the cheapest of those that may be the best",
    "gate": "say if a run's model may replace an older one: exit status 0, 1, or 2 if in doubt",
    "monitor": "say if a run's model still holds on a file without labels",
    "export": "write a saved model as ONNX, and compare it with PyTorch",
    "models": "list checkpoints to begin from and those on this disk, or remove one",
    "deploy": "make or update a Hugging Face Space with this project",
}
MODULES = {
    "train": "train",
    "search": "search",
    "probe": "search",
    "label": "label",
    "groups": "label",
}  # others are in `commands`


def main(arguments: list[str] | None = None) -> int:
    """Run one command. Returns its exit status; 2 after an error."""
    words = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="python -m finetune")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, about in COMMANDS.items():
        commands.add_parser(name, help=about, add_help=False).set_defaults(command=name)
    args, _ = parser.parse_known_args(words or ["--help"])
    gc.set_threshold(100_000)  # PyTorch and transformers are imported in a sixth less time
    caches.ensure_cache_folder()
    try:
        name = MODULES.get(args.command, "commands")
        module = import_module(f"finetune.cli.{name}")
        status: int = getattr(module, args.command)(words[1:])
    except (FinetuneError, OSError) as error:
        told = disk.explained(error) or error
        print(f"{parser.prog} {words[0]}: error: {told}", file=sys.stderr)
        return 2
    except Exception:  # a bug: 1 is an answer of some commands
        logs.print_traceback()
        return 2
    return status


if __name__ == "__main__":
    sys.exit(main())
