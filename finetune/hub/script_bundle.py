"""What a person takes away to repeat a run: its script, what that requires, and its pairs.

The pairs that cannot be had from the Hub as they were used go beside the script, in a zip written
piece by piece. Reads no tensor: torch is the script's business.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from typing import Any

from finetune.data import catalog
from finetune.errors import DataError, StoreError
from finetune.hub import train_script
from finetune.hub.downloads import Pipe
from finetune.hub.train_script import FILE, FOLDER, ScriptFacts
from finetune.runs.run import Run
from finetune.runs.store import RunStore

REQUIREMENTS = "requirements.txt"
_ROWS = 10_000  # of pairs written at a time


def run_script(run: Run) -> str:
    """The run as one Python file that repeats it, in fp32 on a CPU to the same losses.

    Where the pairs are not the Hub's as they stand, the script reads them from `pairs/` beside
    it: `bundle` has both.

    Raises:
        StoreError: when the run has not come to its first step, or is of an earlier version.
        DataError: when its dataset has a name that is no longer taken.
    """
    return train_script.script_text(_known(run))


def script_zip(run: Run, store: RunStore) -> Iterator[bytes]:
    """A zip of the script, what it requires and, where it reads files, the pairs; in pieces.

    Everything is checked before the first piece.

    Args:
        store: where what was read of the run's source is kept.

    Raises:
        StoreError, DataError: as `script`.
        DataError: when the pairs cannot be had any more, or have changed since.
    """
    known = _known(run)
    pairs = {} if known.from_hub else _pairs(known, store)
    texts = {FILE: train_script.script_text(known), REQUIREMENTS: run_requirements(run)}
    return _zip(run.id, texts, pairs)


def run_requirements(run: Run) -> str:
    """The libraries the script imports, pinned to what the run was trained with.

    Raises:
        StoreError, DataError: as `script`.
    """
    return "\n".join(train_script.pinned_requirements(_known(run))) + "\n"


def _known(run: Run) -> ScriptFacts:
    summary = run.summary()
    started, prepared = summary.started, summary.prepared
    if started is None or prepared is None:
        raise StoreError(
            f"Run {run.id} has not read its pairs yet.", "The script is there when it trains."
        )
    if not prepared.fingerprint or "splits" not in prepared.data:
        raise StoreError(
            f"Run {run.id} was made by an earlier version, which did not note all that a script "
            "needs.",
            "Start it again from its configuration.",
        )
    chosen = run.config()
    catalog.check_dataset(chosen.dataset)  # an earlier version took more names
    if prepared.per_device_train_batch_size:
        chosen = chosen.changed(
            per_device_train_batch_size=prepared.per_device_train_batch_size,
            gradient_accumulation_steps=prepared.gradient_accumulation_steps,
        )
    return ScriptFacts(run, chosen, started, prepared, summary)


class _Counting(io.RawIOBase):
    """A part of a zip as Parquet's writer wants it: it asks how far it has come."""

    def __init__(self, entry: Any) -> None:
        self._entry, self._written = entry, 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._written

    def write(self, data: Any) -> int:
        self._entry.write(data)
        self._written += len(data)
        return len(data)


def _zip(name: str, texts: dict[str, str], pairs: dict[str, Any]) -> Iterator[bytes]:
    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as made:
        for file, text in texts.items():
            made.writestr(f"{name}/{file}", text)
            yield pipe.take()
        for split, rows in pairs.items():
            with made.open(f"{name}/{FOLDER}/{split}.parquet", "w", force_zip64=True) as entry:
                for _ in _parquet(rows, _Counting(entry)):
                    yield pipe.take()
        made.close()
        yield pipe.take()


def _parquet(rows: Any, file: _Counting) -> Iterator[None]:
    """Write a split as Parquet; stops after each part."""
    import pyarrow.parquet as pq

    schema = rows.features.arrow_schema
    with pq.ParquetWriter(file, schema) as writer:
        for table in rows.with_format("arrow").iter(_ROWS):
            writer.write_table(table.cast(schema))
            yield
    yield


def _pairs(known: ScriptFacts, store: RunStore) -> dict[str, Any]:
    """The splits as the run used them.

    Raises:
        DataError: when they are gone or changed.
    """
    from finetune.data import dataset_cache, splits

    config = known.run.pinned_config()
    dataset_cache.ensure_cached(config, store.root)
    found = splits.load_pairs(config, store.root)
    if found.fingerprint == known.prepared.fingerprint:
        return {name: found.splits[name] for name in known.prepared.data["rows"]}
    raise DataError(
        f"The pairs have changed since run {known.run.id} (fingerprint {found.fingerprint[:12]}, "
        f"it was {known.prepared.fingerprint[:12]}).",
        "Start a new run on the present ones.",
    )
