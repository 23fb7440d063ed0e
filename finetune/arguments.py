"""`RunConfig` as options of the command line."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from finetune.config import RunConfig, knobs


def add_arguments(
    parser: argparse.ArgumentParser, names: Sequence[str] = (), absent: bool = True
) -> None:
    """One option a field, `--learning_rate 5e-5`; booleans as `--flag` and `--no-flag`.

    Args:
        names: of the fields; all if there are none.
        absent: leave a field that is not given out of the namespace, rather than its default in.
    """
    defaults = RunConfig()
    chosen = {name: knob for name, knob in knobs().items() if not names or name in names}
    titles = dict.fromkeys(knob.group for knob in chosen.values())
    groups = {title: parser.add_argument_group(title) for title in titles}
    for name, knob in chosen.items():
        details: dict[str, Any] = {"metavar": knob.kind.__name__}
        if knob.kind is bool:
            details = {"action": argparse.BooleanOptionalAction}
        if knob.several:
            details |= {"nargs": "+"}
        text = f"{knob.help} (default: {getattr(defaults, name)!r})"
        if knob.choices:
            text += f" one of: {', '.join(knob.choices)}"
        groups[knob.group].add_argument(
            f"--{name}",
            default=argparse.SUPPRESS if absent else getattr(defaults, name),
            help=text.replace("%", "%%"),
            **details,
        )


def arguments_given(namespace: argparse.Namespace) -> dict[str, Any]:
    """The values of the options of `add_arguments` that were given, as they were written."""
    return {
        name: shlex.join(value) if isinstance(value, list) else value
        for name, value in vars(namespace).items()
        if name in knobs()
    }


def command(config: RunConfig, files: Mapping[str, str] | None = None, runs: str = "") -> str:
    """The line that starts the same run from a terminal, with what is not the default; `files` are
    those of an upload by split, `runs` is the folder of runs."""
    words = ["python", "-m", "finetune", "train", *(["--runs", runs] if runs else [])]
    for split, file in (files or {}).items():
        words += [f"--{split}_file", file]
    defaults = RunConfig()
    for name, value in config.to_dict().items():
        if value == getattr(defaults, name) or (name == "dataset" and files):
            continue
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif (text := str(value)).startswith("-") or not text:
            words.append(f"--{name}={text}")  # else it would be taken for an option
        elif knobs()[name].several:
            words += [f"--{name}", *shlex.split(text)]
        else:
            words += [f"--{name}", text]
    return shlex.join(words)
