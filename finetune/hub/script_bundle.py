"""A run as a zip to repeat it elsewhere: one plain script, its values, its pairs, its libraries.

The script is always the same file, `templates/train.py`; what differs between runs is in the
`config.json` beside it.
"""

from __future__ import annotations

import json
import math
import tempfile
import textwrap
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from finetune.config import BUNDLED_CHECKPOINT, RunConfig
from finetune.data import checkpoints
from finetune.errors import DataError, StoreError
from finetune.hub.downloads import folder_zip
from finetune.runs.events import Prepared, Started
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import RunSummary

SCRIPT = Path(__file__).parent / "templates" / "train.py"
LIBRARIES = ("torch", "transformers", "datasets", "accelerate", "scikit-learn", "numpy")


def script_zip(run: Run, store: RunStore) -> Iterator[bytes]:
    """The zip in pieces; everything is checked and written aside before the first one.

    Args:
        store: where the run's pairs are cached.

    Raises:
        StoreError: when the run has not come to its first step.
        DataError: when the pairs cannot be had any more, or have changed since.
    """
    summary = run.summary()
    started, prepared = summary.started, summary.prepared
    if started is None or prepared is None:
        raise StoreError(
            "Run {id} has not read its pairs yet.", "The script is there when it trains.", id=run.id
        )
    config = run.config()
    values = script_config(config, summary, checkpoints.length_of(run.folder))
    temporary = tempfile.TemporaryDirectory(prefix="finetune-script-")
    folder = Path(temporary.name)
    _write_pairs(run, store, prepared, folder / "pairs")
    texts = {
        SCRIPT.name: SCRIPT.read_text(encoding="utf-8"),
        "config.json": json.dumps(values, indent=2, ensure_ascii=False) + "\n",
        "requirements.txt": _requirements(config, started),
        "README.txt": _readme(run, config, summary, started, prepared),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return _pieces(temporary, run.id)


def _pieces(temporary: tempfile.TemporaryDirectory[str], name: str) -> Iterator[bytes]:
    with temporary:
        yield from folder_zip(Path(temporary.name), name)


def _write_pairs(run: Run, store: RunStore, prepared: Prepared, folder: Path) -> None:
    """Write the splits as the run used them, a Parquet file each."""
    import datasets

    from finetune.data import dataset_cache, splits

    datasets.disable_progress_bars()
    config = run.pinned_config()
    dataset_cache.ensure_cached(config, store.root)
    pairs = splits.load_pairs(config, store.root)
    if pairs.fingerprint != prepared.fingerprint:
        raise DataError(
            "The pairs have changed since run {id} (fingerprint {fingerprint}, it was "
            "{fingerprint2}).",
            "Start a new run on the present ones.",
            id=run.id,
            fingerprint=pairs.fingerprint[:12],
            fingerprint2=prepared.fingerprint[:12],
        )
    train = pairs.splits["train"]
    if config.swap_augmentation:  # every pair in both orders
        swapped = train.rename_columns({"sentence1": "sentence2", "sentence2": "sentence1"})
        swapped = swapped.select_columns(train.column_names)
        train = datasets.concatenate_datasets([train, swapped])
    folder.mkdir()
    for name, split in {**pairs.splits, "train": train}.items():
        split.to_parquet(folder / f"{name}.parquet")


def script_config(config: RunConfig, summary: RunSummary, max_length: int) -> dict[str, Any]:
    """What the script reads of a run that has come to its first step: its configuration, with what
    the run found out in place of what was left to it."""
    started, prepared = summary.started, summary.prepared
    assert started is not None
    assert prepared is not None
    total, kind = prepared.total_steps, config.lr_scheduler_type
    positive = prepared.labels.index(prepared.data["positive_label"])
    attention: str | None = config.attn_implementation
    if attention == "auto":  # as training.model.choose_attention does
        half = prepared.precision == "bf16" and config.max_length <= 256
        attention = "eager" if half and started.device.startswith("CPU") else None
    multiple = config.pad_to_multiple_of
    modules = [name.strip() for name in config.lora_target_modules.split(",") if name.strip()]
    scheduler_arguments = {  # as training.optimizer.build_scheduler gives them
        "cosine_with_min_lr": {"min_lr_rate": 0.1},
        "cosine_warmup_with_min_lr": {"min_lr_rate": 0.1},
        "warmup_stable_decay": {"num_decay_steps": max(1, total // 5)},
        "polynomial": {"lr_end": min(1e-7, config.learning_rate / 10)},
        "reduce_lr_on_plateau": {"mode": "min", "factor": 0.5, "patience": 0},
    }
    bundled = config.checkpoint == BUNDLED_CHECKPOINT
    return config.to_dict() | {
        "checkpoint_package": checkpoints.BUNDLED_PACKAGE if bundled else "",
        "labels": prepared.labels,
        "f1": {"pos_label": positive} if len(prepared.labels) == 2 else {"average": "macro"},
        "per_device_train_batch_size": prepared.per_device_train_batch_size
        or config.per_device_train_batch_size,
        "gradient_accumulation_steps": prepared.gradient_accumulation_steps
        or config.gradient_accumulation_steps,
        "max_length": max_length,
        "pad_to_multiple_of": multiple if multiple and max_length % multiple == 0 else None,
        "group_by_length": config.group_by_length and config.padding == "longest",
        "cpu": started.device.startswith("CPU"),
        "mixed_precision": prepared.precision,
        "num_processes": max(1, started.processes),
        "attn_implementation": attention,
        "lora_target_modules": modules or "all-linear",
        "steps": summary.step if summary.early else total,
        "total_steps": total,
        "eval_steps": config.eval_steps or prepared.steps_per_epoch,
        "warmup_steps": config.warmup_steps or math.ceil(total * config.warmup_ratio),
        "scheduler_arguments": scheduler_arguments.get(kind),
    }


def pinned(name: str, number: str = "") -> str:
    """A requirement of a version, else of the installed one, without a local build's suffix."""
    return f"{name}=={(number or version(name)).split('+')[0]}"


def _requirements(config: RunConfig, started: Started) -> str:
    """The libraries that the script imports, in the versions that the run had."""
    names = [*LIBRARIES, *["peft"] * config.use_lora]
    pins = [pinned(name, started.versions.get(name, "")) for name in names]
    if config.checkpoint == BUNDLED_CHECKPOINT:
        pins.append(checkpoints.BUNDLED_REQUIREMENT)
    return "\n".join(pins) + "\n"


def _readme(
    run: Run, config: RunConfig, summary: RunSummary, started: Started, prepared: Prepared
) -> str:
    """What the run was, how to repeat it, and what of it the script does not repeat."""
    precision = "fp32" if prepared.precision == "no" else prepared.precision
    paragraphs = [
        f"Repeats the run {run.title(public=True)!r} ({run.id}): {config.checkpoint} fine-tuned on "
        f"{prepared.data['source']}.",
        "pip install -r requirements.txt",
        "python train.py",
        f"The run was trained on {started.device} with Python {started.versions.get('python')} in "
        f"{precision}; the same machine and libraries give the same losses. Change a value in "
        "config.json to train otherwise. A checkpoint of the Hub is fetched as it now is; one on "
        "a disk is needed here.",
    ]
    if (best := summary.best) is not None:
        scores = ", ".join(f"{name} {value:.4f}" for name, value in best.metrics.items())
        paragraphs.append(f"Its best model is that of step {best.step}: {scores}.")
    differences = {
        f"num_processes={started.processes} (the script trains in one, on the batches of all)":
            started.processes > 1,
        f"accelerate_config={config.accelerate_config}": bool(config.accelerate_config),
        "torch_compile": config.torch_compile,
        f"optim={config.optim} (it takes PyTorch's AdamW)":
            not config.optim.startswith("adamw_torch"),
        f"its end at step {summary.step} of {summary.total_steps}":
            summary.status in ("stopped", "failed") or summary.early,
    }  # fmt: skip
    if any(differences.values()):
        names = "; ".join(name for name, applies in differences.items() if applies)
        paragraphs.append(f"Of the run the script does not repeat: {names}. Losses differ by that.")
    return "\n\n".join(textwrap.fill(" ".join(text.split()), 90) for text in paragraphs) + "\n"
