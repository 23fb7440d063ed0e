"""The engine that carries out a run, as flags of the command line."""

from __future__ import annotations

import argparse
import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from finetune.engines import spending
from finetune.engines.base import HERE, EngineSpec
from finetune.engines.registry import (
    ENGINES,
    billed_options,
    find_engine,
    make_spec,
    open_engine,
)
from finetune.errors import JobError
from finetune.runs.run import Run

if TYPE_CHECKING:
    from finetune.inference.files import WindowScorer

_PRICE = "price"  # is asked for, and no flag


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that choose an engine and what it takes."""
    group = parser.add_argument_group("Where it is carried out")
    group.add_argument("--engine", choices=list(ENGINES), help="this machine by default")
    helps: dict[str, str] = {}
    for engine in ENGINES.values():
        for name, field in engine.Options.model_fields.items():
            helps.setdefault(name, f"{field.description} (default: {field.default})")
    for name, text in helps.items():
        if name != _PRICE:
            group.add_argument(f"--{name}", help=text.replace("%", "%%"))
    group.add_argument("--yes", action="store_true", help="agree to the price without a question")


def spec_from_arguments(args: argparse.Namespace) -> EngineSpec | None:
    """Return the requested engine spec with its price; None if none was requested.

    Raises:
        ConfigError: names the wrong options.
    """
    if not args.engine:
        return None
    names = find_engine(args.engine).Options.model_fields.keys() - {_PRICE}
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    spec = make_spec(args.engine, given)
    price = open_engine(spec).price(spec)
    return make_spec(args.engine, given | {_PRICE: price}) if price else spec


def add_file_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that choose where the rows of a file are scored."""
    scoring = [engine for engine in ENGINES.values() if engine.scores_files]
    text = "where rows are scored; all machines of a cluster share the folder of the runs"
    names = [engine.name for engine in scoring]
    parser.add_argument("--engine", choices=names, default=HERE, help=text)
    for engine in scoring:
        for name in engine.file_options:
            text = str(engine.Options.model_fields[name].description)
            parser.add_argument(f"--{name}", default="", help=text.replace("%", "%%"))


def scorer_from_arguments(
    args: argparse.Namespace, run: Run
) -> AbstractContextManager[WindowScorer]:
    """Open the requested scorer of rows for a run's best model."""
    options = {name: getattr(args, name) for name in find_engine(args.engine).file_options}
    spec = make_spec(args.engine, options)
    return open_engine(spec).scorer(run, spec)


def agree(args: argparse.Namespace, spec: EngineSpec, search_dollars: float = 0.0) -> None:
    """Ask at the terminal whether a job's maximum cost is accepted. Asks nothing if unbilled.

    Args:
        search_dollars: maximum cost of the search, if the job is one of its trials; otherwise 0.

    Raises:
        JobError: if the price was not accepted.
    """
    options = billed_options(spec)
    if options is None:
        return
    text = f"{spec.place}: ${options.price:.2f} an hour; it stops by itself after "
    text += f"{options.minutes} minutes, at most ${spending.rounded_up(options.most):.2f}"
    if search_dollars:
        text += f", all trials together at most ${spending.rounded_up(search_dollars):.2f}"
    text += "."
    print(text, file=sys.stderr)
    if not args.yes and (not sys.stdin.isatty() or input("Start it? [y/N] ").lower() != "y"):
        raise JobError("The price was not agreed to.", "Answer y, or give --yes.")
