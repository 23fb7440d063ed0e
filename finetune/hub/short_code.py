"""A run as the few lines of the Hugging Face course, with the run's values: to read, not to repeat
it to the digit (`script_bundle` does that)."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import jinja2

from finetune.config import BUNDLED_CHECKPOINT, BUNDLED_DATASET, RunConfig, is_upload
from finetune.data import catalog, checkpoint_catalog
from finetune.errors import FinetuneError
from finetune.hub import rendering
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import RunSummary

_SCHEDULES_OF_TRANSFORMERS = ("linear", "cosine", "constant", "constant_with_warmup")
_BUILDERS = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}


def short_code(run: Run, store: RunStore, summary: RunSummary) -> str:
    """Return the code; empty before the run has read its pairs.

    Raises:
        StoreError: if the configuration is damaged.
    """
    prepared, config = summary.prepared, summary.resolved(run.config())
    if prepared is None:
        return ""
    columns, entry = summary.columns, checkpoint_catalog.find_checkpoint(config.checkpoint)
    label = columns.label
    if not prepared.labels:
        label_code = f"[float(score) for score in rows[{label!r}]]"
    elif is_upload(config.dataset):
        label_code = f"[names.index(str(label)) for label in rows[{label!r}]]"
    else:
        label_code = f"rows[{label!r}]"
    checkpoint = entry.repo if entry and entry.repo else config.checkpoint
    if config.checkpoint == BUNDLED_CHECKPOINT:
        checkpoint = "sentence-transformers/all-MiniLM-L6-v2"
    total, known = prepared.total_steps, config.lr_scheduler_type in _SCHEDULES_OF_TRANSFORMERS
    return _template().render(
        config=config,
        checkpoint=checkpoint,
        loading=_loading(config, store),
        cut="validation" not in prepared.data.get("splits", {"validation": ""}),
        joined=config.folds and "+" in str(prepared.data.get("splits", {}).get("train")),
        share=1 / config.folds if config.folds else config.validation_share,
        names=list(prepared.labels),
        sentences=list(columns.sentences),
        label_code=label_code,
        batch_size=config.per_device_train_batch_size,
        accumulation=prepared.gradient_accumulation_steps,
        total_steps=total,
        epochs=math.ceil(total / prepared.steps_per_epoch),
        scheduler=config.lr_scheduler_type if known else "linear",
        warmup_steps=config.warmup_steps or math.ceil(total * config.warmup_ratio),
        precision=prepared.precision,
    ).strip()  # fmt: skip


def _loading(config: RunConfig, store: RunStore) -> str:
    """The call that loads the pairs."""
    if config.dataset == BUNDLED_DATASET:
        files = {split: f"assets/pairs/{split}.csv" for split in ("train", "validation")}
        return f'load_dataset("csv", data_files={files!r})'
    if is_upload(config.dataset):
        try:
            files = store.uploads.file_names(config.dataset)
        except FinetuneError:  # they are gone
            files = {"train": "train.csv"}
        suffix = Path(next(iter(files.values()))).suffix.lower()
        separator = ', sep="\\t"' if suffix == ".tsv" else ""
        return f"load_dataset({_BUILDERS.get(suffix, 'csv')!r}, data_files={files!r}{separator})"
    name, part = catalog.repo_and_config(config)
    return f"load_dataset({name!r}, {part!r})" if part else f"load_dataset({name!r})"


@cache
def _template() -> jinja2.Template:
    environment = rendering.environment()
    environment.filters["repr"] = repr
    return environment.get_template("short_code.py.jinja")
