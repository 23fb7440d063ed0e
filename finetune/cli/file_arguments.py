"""The files of an upload, as flags of the command line."""

from __future__ import annotations

import argparse
from pathlib import Path

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
