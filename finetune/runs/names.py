"""Names of runs: `tickets-3`, the data and a number. A name is given once, when a run is made."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from finetune.config import RunConfig, is_upload

BETWEEN = " \u00b7 "  # a name's parts: `search 2 · trial 3`, `tickets-3 · seed 43`
SEED = f"{BETWEEN}seed "
OWN_FILES = "own-files"  # in place of a file's name where others may read it
_LONGEST = 24  # characters of the data's part


def data_name(config: RunConfig, files: str = "") -> str:
    """Return the data's part of a name: `tickets` of `tickets.csv`, `mrpc` of `glue/mrpc`. `files`
    are the person's names of uploaded files, with commas between them."""
    if is_upload(config.dataset):
        name = Path(files.partition(",")[0]).stem or OWN_FILES
    else:
        name = config.dataset_config_name or config.dataset.rstrip("/").rpartition("/")[2]
    short = re.sub(r"[^\w.]+", "-", name).strip("-._")[:_LONGEST].rstrip("-._")
    return short or OWN_FILES


def new_name(wanted: str, stem: str, taken: Iterable[str], counter: str = "-") -> str:
    """Return `wanted` if it is free, else it or `stem` with the next number: `stem-3`.

    Args:
        wanted: a name that a person or a program asks for; "" for none.
        counter: what stands before the number.
        taken: the names of other runs. Of names with parts the first one counts.
    """
    names = {name for whole in taken for name in (whole, whole.partition(BETWEEN)[0])}
    if wanted and wanted not in names:
        return wanted
    start = f"{wanted or stem}{counter}"
    texts = (name[len(start) :] for name in names if name.startswith(start))
    numbers = [int(text) for text in texts if re.fullmatch("[0-9]{1,9}", text)]
    return f"{start}{1 + max(numbers, default=1 if wanted else 0)}"
