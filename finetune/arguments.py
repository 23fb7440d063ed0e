"""`RunConfig` as options of the command line."""

import argparse
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from finetune.config import RunConfig, hyperparameters

# Of a field whose help is in a person's words, the values to give.
_NAMED = {"task": ("single_label_classification", "multi_label_classification", "regression")}


def add_arguments(
    parser: argparse.ArgumentParser, names: Sequence[str] = (), absent: bool = True
) -> None:
    """Add an option for each named field, or for all, such as `--learning_rate 5e-5`; booleans as
    `--flag` and `--no-flag`. If not `absent`, fields that are not given get their defaults."""
    defaults = RunConfig()
    described = hyperparameters()
    chosen = {name: described[name] for name in names or described}
    titles = dict.fromkeys(field.group for field in chosen.values())
    groups = {title: parser.add_argument_group(title) for title in titles}
    for name, field in chosen.items():
        details: dict[str, Any] = {"metavar": field.kind.__name__}
        if field.kind is bool:
            details = {"action": argparse.BooleanOptionalAction}
        if field.several:
            details |= {"nargs": "+", "action": "extend"}
        default = getattr(defaults, name)
        word = field.words.get(default) if field.words else None
        text = f"{field.help} (default: {word.lower() if word else repr(default)})"
        text += ",".join(f" {value:g}: {word.lower()}" for value, word in field.words.items())
        if choices := field.choices or _NAMED.get(name):
            text += f" one of: {', '.join(choices)}"
        groups[field.group].add_argument(
            f"--{name}",
            default=argparse.SUPPRESS if absent else getattr(defaults, name),
            help=text.replace("%", "%%"),
            **details,
        )


def arguments_given(namespace: argparse.Namespace) -> dict[str, Any]:
    """The values of the options of `add_arguments` that were given, as text."""
    return {
        name: shlex.join(filter(None, value)) if isinstance(value, list) else value
        for name, value in vars(namespace).items()
        if name in hyperparameters()
    }


def command(config: RunConfig, files: Mapping[str, str] | None = None, runs: str = "") -> str:
    """Format the command that starts the same run from a terminal, without default values. `files`
    are those of an upload by split, `runs` is the folder of runs."""
    words = ["python", "-m", "finetune", "train", *(["--runs", runs] if runs else [])]
    for split, file in (files or {}).items():
        words += [f"--{split}_file", file]
    defaults = RunConfig()
    for name, value in config.to_dict().items():
        if value != getattr(defaults, name) and not (name == "dataset" and files):
            words += option(name, value)
    return shlex.join(words)


def option(name: str, value: Any) -> list[str]:
    """Return the words of a command line that set a field, such as `--label_map` and `old=new`. An
    empty text sets a number to the first of its `words`, as an empty box of the form does."""
    field = hyperparameters()[name]
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if value == "" and field.words:
        value = next(iter(field.words))
    texts = shlex.split(str(value)) if field.several else [str(value)]
    plain = [text for text in texts if text and not text.startswith("-")]
    # Others would be taken for options.
    words = [f"--{name}={text}" for text in texts or [""] if text not in plain]
    return [*words, f"--{name}", *plain] if plain else words
