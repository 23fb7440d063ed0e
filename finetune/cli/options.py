"""Options that several commands share, and the files that commands write."""

import argparse
import inspect
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from finetune import arguments
from finetune.api import verb
from finetune.config import READING_FIELDS, RunConfig
from finetune.data.table import ReadOptions
from finetune.engines import spending
from finetune.engines.base import EngineSpec
from finetune.engines.registry import ENGINES, billed_options, find_engine, make_spec, open_engine
from finetune.errors import ConfigError, JobError
from finetune.inference.file_request import COLUMNS, PredictionRequest
from finetune.runs.store import default_root
from finetune.uploads import ENDINGS, SPLITS, Uploads

_PRICE = "price"  # is asked for, and no flag


def parser_of(command: str, about: str | None, of_runs: bool = True) -> argparse.ArgumentParser:
    """Make the parser of a command, with `--runs`."""
    about = inspect.cleandoc(about or "")
    parser = argparse.ArgumentParser(f"python -m finetune {command}", description=about)
    if of_runs:
        parser.add_argument(
            "--runs", type=Path, default=default_root(), dest="root", metavar="RUNS",
            help="where runs are kept",
        )  # fmt: skip
    return parser


def add_files(parser: argparse.ArgumentParser) -> None:
    """Add `--train_file`, `--validation_file` and `--test_file`."""
    group = parser.add_argument_group("Files", f"one of {', '.join(ENDINGS)}; text also as .gz")
    for split in SPLITS:
        help = f"the {split} rows, in place of --dataset"
        group.add_argument(f"--{split}_file", type=Path, help=help)


def upload_of(namespace: argparse.Namespace, root: Path) -> dict[str, str]:
    """Store the files of `add_files`. Returns `dataset` and its value, or nothing without
    files."""
    paths = {split: getattr(namespace, f"{split}_file") for split in SPLITS}
    files = {split: path for split, path in paths.items() if path is not None}
    return {"dataset": Uploads(root / "uploads").add(files)} if files else {}


def add_request(parser: argparse.ArgumentParser, answers: bool) -> None:
    """Add the flags that name the columns of a file and how it is read; with `answers`, also those
    that say how its rows are answered."""
    for name in COLUMNS:
        text = "by the name that the run was trained on, or guessed, if absent"
        parser.add_argument(f"--{name}_column", default="", help=text)
    if answers:
        text = "average the probabilities of both orders"
        parser.add_argument("--both_orders", action="store_true", help=text)
        text = "use the temperature saved with the model, if there is one"
        parser.add_argument("--calibrated", action="store_true", help=text)
        parser.add_argument(
            "--threshold", action=argparse.BooleanOptionalAction, default=True,
            help="use the threshold saved with the model (default)",
        )  # fmt: skip
    arguments.add_arguments(parser, READING_FIELDS, absent=False)


def file_request(args: argparse.Namespace, answers: bool) -> PredictionRequest:
    """Return the request that the flags of `add_request` make, of no run and no file yet."""
    reading = ReadOptions.of(RunConfig(**{name: getattr(args, name) for name in READING_FIELDS}))
    columns = [getattr(args, f"{name}_column") for name in COLUMNS]
    options = (args.both_orders, args.threshold, args.calibrated) if answers else ()
    return PredictionRequest("", "", *columns, *options, **vars(reading))


def add_engine(parser: argparse.ArgumentParser) -> list[str]:
    """Add the flags that choose an engine and what it takes. Returns their names."""
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
    return ["engine", "yes", *helps]


def engine_spec(args: argparse.Namespace) -> EngineSpec | None:
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


def check_alone(
    parser: argparse.ArgumentParser, args: argparse.Namespace, option: str, beside: Iterable[str]
) -> None:
    """End the command if it goes on with what `--option` names, and more is given than `beside`."""
    known = {option, "root", *beside}
    given = [
        f"--{name}" for name, value in vars(args).items()
        if name not in known and value != parser.get_default(name)
    ]  # fmt: skip
    if getattr(args, option) and given:
        parser.error(f"--{option} goes on with what was begun: leave {', '.join(given)} out")


def check_outputs(
    parser: argparse.ArgumentParser,
    outputs: Mapping[str, Path | None],
    inputs: Iterable[Path | None],
) -> None:
    """End the command before its work if it cannot write a file, or would write over another one.

    Args:
        outputs: option -> the file that it names; None if it was not given.
        inputs: the files that the command reads.
    """
    try:
        verb.check_outputs(outputs, inputs)
    except ConfigError as error:
        parser.error(f"--{error}")
