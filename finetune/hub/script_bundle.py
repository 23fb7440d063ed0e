"""A run as a zip to repeat it elsewhere: one plain script, its values, its pairs, its libraries.

The script is always the same file, `templates/train.py`; what differs between runs is in the
`config.json` beside it.
"""

from __future__ import annotations

import contextlib
import json
import math
import tempfile
import textwrap
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from finetune.config import BUNDLED_CHECKPOINT, BUNDLED_DATASET, RunConfig, is_upload
from finetune.data import catalog, checkpoints
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
        StoreError: when the run has not come to its first step, or is of an earlier version.
        DataError: when the pairs cannot be had any more, or have changed since.
    """
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
    config = run.config()
    values = script_config(config, started, prepared, checkpoints.length_of(run.folder))
    temporary = tempfile.TemporaryDirectory(prefix="finetune-script-")
    folder = Path(temporary.name)
    if not values["dataset"]:
        _write_pairs(run, store, prepared, folder / "pairs")
    texts = {
        SCRIPT.name: SCRIPT.read_text(encoding="utf-8"),
        "config.json": json.dumps(values, indent=2, ensure_ascii=False) + "\n",
        "requirements.txt": "".join(f"{pin}\n" for pin in _requirements(config, started)),
        "README.txt": _readme(run, config, summary, started, prepared),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return _pieces(temporary, run.id)


def _pieces(temporary: tempfile.TemporaryDirectory[str], name: str) -> Iterator[bytes]:
    with temporary:
        yield from folder_zip(Path(temporary.name), name)


def _write_pairs(run: Run, store: RunStore, prepared: Prepared, folder: Path) -> None:
    """Write the splits as the run used them, a Parquet file each.

    Raises:
        DataError: when they are gone or changed.
    """
    import datasets

    from finetune.data import dataset_cache, splits

    datasets.disable_progress_bars()
    config = run.pinned_config()
    dataset_cache.ensure_cached(config, store.root)
    pairs = splits.load_pairs(config, store.root)
    if pairs.fingerprint != prepared.fingerprint:
        raise DataError(
            f"The pairs have changed since run {run.id} (fingerprint {pairs.fingerprint[:12]}, "
            f"it was {prepared.fingerprint[:12]}).",
            "Start a new run on the present ones.",
        )
    folder.mkdir()
    for name in prepared.data["rows"]:
        pairs.splits[name].to_parquet(folder / f"{name}.parquet")


def script_config(
    config: RunConfig, started: Started, prepared: Prepared, max_length: int
) -> dict[str, Any]:
    """What the script reads of a run: values of its configuration under their own names, and
    arguments of the libraries it calls."""
    names = (
        "checkpoint", "seed", "deterministic", "dropout", "freeze_embeddings", "frozen_layers",
        "gradient_checkpointing", "class_weights", "label_smoothing_factor", "swap_augmentation",
        "per_device_train_batch_size", "per_device_eval_batch_size", "num_train_epochs",
        "max_steps", "max_grad_norm", "logging_steps", "eval_steps", "metric_for_best_model",
        "early_stopping_patience",
    )  # fmt: skip
    positive = prepared.labels.index(prepared.data["positive_label"])
    on_cpu = started.device.startswith("CPU")
    attention = config.attn_implementation
    if attention == "auto" and on_cpu and prepared.precision == "bf16" and config.max_length <= 256:
        attention = "eager"  # as training.model.choose_attention does
    multiple = config.pad_to_multiple_of
    modules = [name.strip() for name in config.lora_target_modules.split(",") if name.strip()]
    return {
        **{name: getattr(config, name) for name in names},
        "checkpoint_package": checkpoints.BUNDLED_PACKAGE
        * (config.checkpoint == BUNDLED_CHECKPOINT),
        "labels": prepared.labels,
        **_data_values(config, prepared),
        "max_length": max_length,
        "num_processes": max(1, started.processes),
        "group_by_length": config.group_by_length and config.padding == "longest",
        "padding": {
            "padding": config.padding,
            "max_length": max_length,
            "pad_to_multiple_of": multiple if multiple and max_length % multiple == 0 else None,
        },
        "accelerator": {
            "cpu": on_cpu,
            "mixed_precision": prepared.precision,
            "gradient_accumulation_steps": config.gradient_accumulation_steps,
        },
        "model": {
            "dtype": "float32",
            "use_safetensors": True,
            **({"attn_implementation": attention} if attention != "auto" else {}),
        },
        "lora": {
            "r": config.lora_r,
            "lora_alpha": config.lora_alpha,
            "lora_dropout": config.lora_dropout,
            "target_modules": modules or "all-linear",
        }
        if config.use_lora
        else None,
        **_optimizer_values(config),
        "scheduler": _scheduler_arguments(config, prepared.total_steps),
        "f1": {"pos_label": positive} if len(prepared.labels) == 2 else {"average": "macro"},
    }


def _data_values(config: RunConfig, prepared: Prepared) -> dict[str, Any]:
    """Where the script reads the pairs: from the Hub where it has the very rows (at a known commit,
    none cut off or left out), else from files beside the script."""
    data = prepared.data
    whole = not any(data["left_out"].get(name) for name in data["rows"])
    on_hub = config.dataset != BUNDLED_DATASET and not is_upload(config.dataset)
    if not (on_hub and data.get("revision") and whole and set(data["rows"]) <= set(data["splits"])):
        return {"dataset": "", "splits": list(data["rows"])}
    offered = catalog.find_dataset(config.dataset)
    return {
        "dataset": offered.repo if offered else config.dataset,
        "dataset_config_name": config.dataset_config_name or (offered.config if offered else ""),
        "dataset_revision": data["revision"],
        "splits": {name: data["splits"][name] for name in data["rows"]},
        "columns": {column: name for name, column in data["columns"].items() if column},
        "named_labels": bool(data.get("named_labels")),
    }


def _optimizer_values(config: RunConfig) -> dict[str, Any]:
    adam = {
        "betas": [config.adam_beta1, config.adam_beta2],
        "eps": config.adam_epsilon,
        "fused": config.optim == "adamw_torch_fused",
    }
    arguments = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
    adafactor = config.optim == "adafactor"
    return {
        "optimizer_class": "Adafactor" if adafactor else "AdamW",
        "optimizer": arguments if adafactor else arguments | adam,
        "weight_decay_of_biases": config.weight_decay * config.decay_biases_and_norms,
    }


def _scheduler_arguments(config: RunConfig, total: int) -> dict[str, Any]:
    """Arguments of `get_scheduler`, as training.loop.build_scheduler gives them."""
    kwargs: dict[str, dict[str, Any]] = {
        "cosine_with_min_lr": {"min_lr_rate": 0.1},
        "cosine_warmup_with_min_lr": {"min_lr_rate": 0.1},
        "warmup_stable_decay": {"num_decay_steps": max(1, total // 5)},
        "polynomial": {"lr_end": min(1e-7, config.learning_rate / 10)},
        "reduce_lr_on_plateau": {"mode": "min", "factor": 0.5, "patience": 0},
    }
    return {
        "name": config.lr_scheduler_type,
        "num_warmup_steps": config.warmup_steps or math.ceil(total * config.warmup_ratio),
        "scheduler_specific_kwargs": kwargs.get(config.lr_scheduler_type),
    }


def _requirements(config: RunConfig, started: Started) -> list[str]:
    """The libraries that the script imports, in the versions that the run had."""
    names = [*LIBRARIES, *["peft"] * config.use_lora]
    bundled = [checkpoints.BUNDLED_REQUIREMENT] * (config.checkpoint == BUNDLED_CHECKPOINT)
    return [pinned(name, started.versions.get(name, "")) for name in names] + bundled


def pinned(name: str, number: str = "") -> str:
    """A requirement of a version, else of the installed one, without a local build's suffix."""
    with contextlib.suppress(PackageNotFoundError):
        return f"{name}=={(number or version(name)).split('+')[0]}"
    return name


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
        "config.json to train otherwise.",
    ]
    if (best := summary.best) is not None:
        scores = ", ".join(f"{name} {value:.4f}" for name, value in best.metrics.items())
        paragraphs.append(f"Its best model is that of step {best.step}: {scores}.")
    paragraphs += _differences(config, summary, started)
    return "\n\n".join(textwrap.fill(" ".join(text.split()), 90) for text in paragraphs) + "\n"


def _differences(config: RunConfig, summary: RunSummary, started: Started) -> list[str]:
    """What of the run the script does not repeat, a paragraph each."""
    bundled, offered = BUNDLED_CHECKPOINT, catalog.find_checkpoint(config.checkpoint)
    on_disk = offered is None and catalog.is_local_path(config.checkpoint)
    differences = {
        f"The run shared each step among {started.processes} processes; the script trains in one, "
        "on the batches of all together. Dropout, rounding and the last batch of an epoch differ.":
            started.processes > 1,
        "The run was launched with a configuration file of Accelerate's (FSDP or DeepSpeed), which "
        "is not repeated.": bool(config.accelerate_config),
        "The run's model was compiled, the script's is not: rounding differs.":
            config.torch_compile,
        "The run's optimizer kept its states in 8 bits (adamw_bnb_8bit); the script takes AdamW of "
        "PyTorch: losses differ.": config.optim == "adamw_bnb_8bit",
        f"The run ended at step {summary.step} of {summary.total_steps}.":
            summary.status in ("stopped", "failed") or summary.early,
        "The checkpoint is a folder of the machine that trained; it is needed here.": on_disk,
        "The checkpoint is fetched as it now is on the Hub.":
            not on_disk and config.checkpoint != bundled,
    }  # fmt: skip
    return [text for text, applies in differences.items() if applies]
