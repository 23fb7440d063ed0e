"""Files that a command writes."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path

from finetune import disk


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
    taken = {path.resolve() for path in inputs if path is not None}
    for option, path in outputs.items():
        if path is None:
            continue
        if path.is_dir():
            parser.error(f"--{option} is {path}, a folder: name a file")
        if not path.parent.is_dir():
            parser.error(f"--{option} is {path}, and there is no folder {path.parent}")
        if path.resolve() in taken:
            parser.error(f"--{option} is {path}, which another option names: name another file")
        taken.add(path.resolve())


def write_output(path: Path, text: str) -> None:
    """Write a result as a whole or not at all; through a link, and to a pipe or a device such as
    `/dev/stdout`, as it is."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        path.write_text(text, encoding="utf-8")
    else:
        disk.write_atomically(path, text)
