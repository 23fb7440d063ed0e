"""A command for each verb: its flags and its help are the function's signature and docstring."""

import argparse
import contextlib
import json
import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

from finetune import disk
from finetune.api.verb import OutFile, Parameter, Verb
from finetune.arguments import add_arguments, arguments_given
from finetune.cli import options
from finetune.config import RunConfig
from finetune.inference.file_request import PredictionRequest
from finetune.runs.run import Run
from finetune.runs.store import RunStore, named_run

_PROGRESS = "progress"  # a parameter that a command always sets


def carry_out(verb: Verb, words: list[str]) -> int:
    """Carry out a verb with the words of its command. Returns the exit status."""
    parameters = [each for each in verb.parameters() if each.name != _PROGRESS]
    flags = {f"`{each.name}`": f"--{each.name}" for each in parameters}

    def spelled(text: str) -> str:
        return re.sub(r"`\w+`", lambda name: flags.get(name[0], name[0]), text)

    parser = options.parser_of(verb.command, spelled(verb.told()))
    for each in parameters:
        _add(parser, verb, each._replace(about=spelled(each.about).replace("%", "%%")))
    files = verb.files or {}
    for flag in files:
        parser.add_argument(
            f"--{flag}", type=Path, help=f"a file to write it to, as {flag.upper()}"
        )
    has_json = verb.text is not None and "json" not in files
    if has_json:
        parser.add_argument("--json", action="store_true", help="print the whole report as JSON")
    args = parser.parse_args(words)
    written = [each.name for each in parameters if OutFile in each.kinds]
    read = [getattr(args, each.name) for each in parameters if each.kinds == {Path, str}]
    outputs = {name: getattr(args, name) for name in (*written, *files)}
    options.check_outputs(parser, outputs, read)
    if verb.offline:
        os.environ["HF_HUB_OFFLINE"] = "1"
    given = {each.name: _value(args, verb, each) for each in parameters}
    if _PROGRESS in (each.name for each in verb.parameters()):
        given[_PROGRESS] = True
    with contextlib.redirect_stdout(sys.stderr):  # a library's output is no part of the result
        result = verb.function(**given)
    for note in verb.notes(result, given):
        print(note, file=sys.stderr)
    if result is None:
        return 0
    if verb.text is None or (has_json and args.json):
        print(json.dumps(verb.values(result), indent=2, ensure_ascii=False))
    else:
        print(*(f"{outputs[name]}:" for name in written[:1]), verb.text(result))
    for flag, write in files.items():
        if path := getattr(args, flag):
            disk.write_result(path, write(result))
    return verb.status(result)


def _add(parser: argparse.ArgumentParser, verb: Verb, each: Parameter) -> None:
    """Add what a parameter is on the command line: an argument, or the options of its kind."""
    if RunStore in each.kinds:
        return
    if RunConfig in each.kinds:
        options.add_files(parser)
        add_arguments(parser)
    elif PredictionRequest in each.kinds:
        options.add_request(parser, verb.answers)
    elif bool in each.kinds:
        action = argparse.BooleanOptionalAction if each.default else "store_true"
        text = f"{each.about} (default)" if each.default else each.about
        parser.add_argument(f"--{each.name}", action=action, default=each.default, help=text)
    else:
        details: dict[str, Any] = {"help": each.about}
        if each.choices:
            details["choices"] = each.choices
        else:
            kinds = [kind for kind in (int, float) if kind in each.kinds]
            is_path = each.kinds & {Path, OutFile}
            details["type"] = Path if is_path else kinds[0] if kinds else str
        if each.several:
            details["nargs"] = "*"
        if each.name in verb.words:
            parser.add_argument(each.name, metavar=each.name.upper().rstrip("S"), **details)
            return
        if each.required:
            details["required"] = True
        else:
            details["default"] = each.default
            details["help"] += f" (default: {each.default})" if each.default else ""
        parser.add_argument(f"--{each.name}", **details)


def _value(args: argparse.Namespace, verb: Verb, each: Parameter) -> Any:
    """Return what the function is given."""
    if RunStore in each.kinds:
        return RunStore(args.root)
    if RunConfig in each.kinds:
        return RunConfig(**arguments_given(args) | options.upload_of(args, args.root))
    if PredictionRequest in each.kinds:
        return options.file_request(args, verb.answers)
    value, find = getattr(args, each.name), partial(named_run, root=args.root)
    if value is None or not {Run, Path} <= each.kinds:
        return value
    return [*map(find, value)] if each.several else find(value)
