"""The files of an upload, and a file's columns, as flags of the command line."""

from __future__ import annotations

import argparse
from pathlib import Path

from finetune.arguments import add_arguments as add_config_arguments
from finetune.config import READING_FIELDS
from finetune.data.table import ReadOptions
from finetune.inference.file_request import COLUMNS, PredictionRequest
from finetune.runs.run import Run
from finetune.uploads import ENDINGS, SPLITS, Uploads


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--train_file`, `--validation_file` and `--test_file`."""
    group = parser.add_argument_group("Files", f"one of {', '.join(ENDINGS)}; text also as .gz")
    for split in SPLITS:
        help = f"the {split} rows, in place of --dataset"
        group.add_argument(f"--{split}_file", type=Path, help=help)


def upload_from_arguments(namespace: argparse.Namespace, root: Path) -> dict[str, str]:
    """Store the files of `add_arguments`. Returns `dataset` and its value, or nothing without
    files."""
    paths = {split: getattr(namespace, f"{split}_file") for split in SPLITS}
    files = {split: path for split, path in paths.items() if path is not None}
    return {"dataset": Uploads(root / "uploads").add(files)} if files else {}


def add_columns(parser: argparse.ArgumentParser, of: str = "") -> None:
    """Add the flags that name the columns of a file and how it is read. `of` begins their help."""
    for name in COLUMNS:
        text = f"{of}by the name that the run was trained on, or guessed, if absent"
        parser.add_argument(f"--{name}_column", default="", help=text)
    add_config_arguments(parser, READING_FIELDS, absent=False)


def request_from_arguments(
    args: argparse.Namespace, run: Run, file: Path, *options: bool
) -> PredictionRequest:
    """Return the request for a file with the columns of `add_columns`. `options` are those of the
    request that follow them."""
    reading = ReadOptions.checked({name: getattr(args, name) for name in READING_FIELDS})
    columns = [getattr(args, f"{name}_column") for name in COLUMNS]
    return PredictionRequest(run.id, file.name, *columns, *options, **vars(reading))
