"""The command line: `python -m finetune COMMAND`.

`accelerate launch -m finetune train ...` runs the same code in several processes.
"""

import argparse
import gc
import io
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module

from finetune import disk
from finetune.environment import caches, logs
from finetune.errors import FinetuneError

# Commands that are no verb -> their module in `cli`.
OWN = {
    "label": "label", "train": "train", "search": "search", "evaluate": "commands",
    "models": "commands", "deploy": "commands",
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run one command. Returns its exit status; 2 after an error."""
    words = sys.argv[1:] if arguments is None else arguments
    gc.set_threshold(100_000)  # PyTorch and transformers are imported in a sixth less time
    caches.ensure_cache_folder()
    for stream in (sys.stdout, sys.stderr):  # names of files and runs may have any character
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    parser = argparse.ArgumentParser(prog="python -m finetune")
    try:
        return _carry_out(parser, words)
    except (FinetuneError, OSError) as error:
        told = disk.explained(error) or error
        print(f"{parser.prog} {words[0]}: error: {told}", file=sys.stderr)
    except Exception:  # a bug: 1 is an answer of some commands
        logs.print_traceback()
    return 2


def _carry_out(parser: argparse.ArgumentParser, words: list[str]) -> int:
    from finetune.api.verb import VERBS
    from finetune.cli import verbs

    functions: dict[str, Callable[[list[str]], int]] = {
        name: getattr(import_module(f"finetune.cli.{module}"), name) for name, module in OWN.items()
    }
    functions |= {name: partial(verbs.carry_out, verb) for name, verb in VERBS.items()}
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, function in functions.items():
        described = VERBS[name].function if name in VERBS else function
        text = " ".join((described.__doc__ or "").split()).partition(". ")[0].rstrip(".")
        about = text[:1].lower() + text[1:].replace("%", "%%")
        commands.add_parser(name, help=about, add_help=False).set_defaults(command=name)
    args, _ = parser.parse_known_args(words or ["--help"])
    return functions[args.command](words[1:])


if __name__ == "__main__":
    sys.exit(main())
