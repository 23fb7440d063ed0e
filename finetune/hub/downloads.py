"""Downloads of a run: its model as a zip, streamed without a copy in memory or on disk, its events
as CSV, and a zip to repeat it elsewhere: a script, its values, its pairs and its requirements.

The script is always the same file, `templates/train.py`. Only the `config.json` beside it differs.
"""

import contextlib
import json
import math
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, cast

from finetune.config import BUNDLED_CHECKPOINT, RunConfig
from finetune.data import catalog, checkpoints, csv_cells
from finetune.errors import DataError, StoreError
from finetune.metrics.catalog import ALL, LOSS, OF_SCORES, STANDARD, find
from finetune.runs import events
from finetune.runs.events import Prepared, Started
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import RunSummary
from finetune.tasks.registry import measured

_PIECE = 2**20  # bytes
_COLUMNS = (
    "event", "time", "step", "epoch", "loss", "learning_rate", "grad_norm", "samples_per_second",
    "busy", "memory", "validation_loss", "best", "text",
)  # fmt: skip


class _Buffer(bytearray):
    """A file in memory that a zip is written to, emptied after each piece."""

    def write(self, data: bytes) -> int:
        self.extend(data)
        return len(data)

    def flush(self) -> None:
        pass


def saved_model(run: Run) -> Path:
    """The folder of a run's best model; StoreError if there is none."""
    if not run.has_model():
        raise StoreError(
            "Run {id} has no model.", "One is saved at the first evaluation.", id=run.id
        )
    return run.best


def file_name(name: str) -> str:
    """Return a run's or a search's name as a part of a file's name."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "run"


def model_zip(run: Run) -> Iterator[bytes]:
    """The best model as a zip of a `from_pretrained` folder, in pieces."""
    return folder_zip(saved_model(run), file_name(run.title()))


def folder_zip(folder: Path, name: str) -> Iterator[bytes]:
    """Zip the files of a folder, in pieces, below a folder `name`.

    All files are opened first, so that a model saved in the meantime is not mixed in.
    """
    buffer = _Buffer()
    with contextlib.ExitStack() as stack, zipfile.ZipFile(cast(IO[bytes], buffer), "w") as archive:
        inside = {path: f"{name}/{path.relative_to(folder)}" for path in folder.rglob("*")}
        # Hidden ones may be half written, or left by a killed process.
        paths = sorted(path for path in inside if path.is_file() and "/." not in inside[path])
        files = [(path, stack.enter_context(path.open("rb"))) for path in paths]
        for path, file in files:
            info = zipfile.ZipInfo.from_file(path, inside[path])
            with archive.open(info, "w", force_zip64=True) as entry:
                while piece := file.read(_PIECE):
                    entry.write(piece)
                    yield bytes(buffer)
                    buffer.clear()
    yield bytes(buffer)


def events_csv(run: Run) -> Iterator[str]:
    """All events of a run as CSV, one a row; times are seconds since the epoch."""
    happened = run.tail()[0]
    measured = (event.metrics for event in happened if isinstance(event, events.Evaluated))
    added = dict.fromkeys(name for metrics in measured for name in metrics if name != LOSS.name)
    columns = tuple(dict.fromkeys((*_COLUMNS, *added)))
    yield csv_cells.to_csv([columns, *(_cells(event, columns) for event in happened)])


def _cells(event: events.Event, columns: Sequence[str]) -> list[object]:
    values: dict[str, Any] = dict(vars(event))
    if isinstance(event, events.Evaluated):
        values |= event.metrics | {"validation_loss": event.metrics.get(LOSS.name)}
        values[LOSS.name] = None
    texts = (values.get(name) for name in ("phase", "detail", "error", "remedy"))
    values["text"] = " ".join(str(text) for text in texts if text)
    return ["" if values.get(name) is None else values[name] for name in columns]


SCRIPT = Path(__file__).parent / "templates" / "train.py"
_LIBRARIES = (
    "torch", "transformers", "datasets", "evaluate", "accelerate", "peft", "scikit-learn", "numpy",
)  # fmt: skip
# Configurations of GLUE, and the scores that its own modules compute.
_GLUE = {"mrpc": STANDARD, "qqp": STANDARD, "stsb": OF_SCORES[:2]}
# The values that the script can repeat; it repeats all values of other fields.
_REPEATED = {
    "optim": ("adamw_torch", "adamw_torch_fused"),
    "lr_scheduler_type": ("linear", "cosine", "constant", "constant_with_warmup"),
    "metric_for_best_model": (LOSS.name, *(own.name for own in ALL.values() if own.library)),
} | {
    name: (getattr(RunConfig(), name),)
    for name in (
        "accelerate_config", "folds", "frozen_layers", "lora_target_modules", "num_processes",
        "padding", "torch_compile",
    )
}  # fmt: skip


def script_zip(run: Run, store: RunStore) -> Iterator[bytes]:
    """The zip, in pieces. Everything is checked and written before the first piece.

    Raises:
        StoreError: if the run has no model yet.
        DataError: if the pairs are no longer available, or have changed.
    """
    best, summary = saved_model(run), run.state()
    started, prepared = summary.started, summary.prepared
    if started is None or prepared is None:
        raise StoreError(
            "events.jsonl of run {id} is damaged: it does not say what was trained on.",
            "Its model is still there; train it anew to have its script.",
            id=run.id,
        )
    temporary = tempfile.TemporaryDirectory(prefix="finetune-script-")
    folder = Path(temporary.name)
    class_weights = _write_pairs(run, store, prepared, folder / "data")
    values = _script_config(run, summary, started, prepared) | {"class_weights": class_weights}
    requirements = [pinned(name, started.versions.get(name, "")) for name in _LIBRARIES]
    if run.config().checkpoint == BUNDLED_CHECKPOINT:
        requirements.append(checkpoints.BUNDLED_REQUIREMENT)
    texts = {
        SCRIPT.name: SCRIPT.read_text(encoding="utf-8"),
        "config.json": json.dumps(values, indent=2, ensure_ascii=False),
        "requirements.txt": "\n".join(requirements),
    }
    for name, text in texts.items():
        (folder / name).write_text(text + "\n", encoding="utf-8")
    shutil.copytree(best, folder / "model", ignore=shutil.ignore_patterns("*.safetensors*"))

    def pieces() -> Iterator[bytes]:
        with temporary:
            yield from folder_zip(folder, file_name(run.title()))

    return pieces()


def _write_pairs(run: Run, store: RunStore, prepared: Prepared, folder: Path) -> list[float]:
    """Write each split as the run used it to a Parquet file; returns the weights of the classes."""

    from finetune.data import dataset_cache, splits
    from finetune.training import dataloaders

    config = run.pinned_config()
    dataset_cache.ensure_cached(config, store.root)
    pairs = splits.load_pairs(config, store.root)
    if pairs.fingerprint != prepared.fingerprint:
        raise DataError(
            "The data has changed since run {id} (fingerprint {fingerprint}, it was "
            "{fingerprint2}).",
            "Start a new run on the present data.",
            id=run.id,
            fingerprint=pairs.fingerprint[:12],
            fingerprint2=prepared.fingerprint[:12],
        )
    train = dataloaders.both_orders(pairs, config, bool(prepared.data.get("either_order")))
    folder.mkdir()
    for name, split in {**pairs.splits, "train": train}.items():
        split.to_parquet(folder / f"{name}.parquet")
    if config.class_weights == "none":
        return [1.0] * len(prepared.labels)
    return list(dataloaders.balanced_class_weights(pairs.counts["train"]).tolist())


def _script_config(
    run: Run, summary: RunSummary, started: Started, prepared: Prepared
) -> dict[str, Any]:
    """The run's configuration, with automatic values replaced by those that the run used."""
    import torch

    from finetune.training import dataloaders, model, recipe

    config, total = summary.resolved(run.config()), prepared.total_steps
    eval_steps = summary.eval_every or recipe.eval_every(  # a fallback if the run ended too early
        config, prepared.steps_per_epoch, total, started.processes, prepared.validation_examples
    )
    length, half = checkpoints.length_of(run.folder), prepared.precision == "bf16"
    device = torch.device("cpu" if started.device.startswith("CPU") else "cuda")
    asked, longest = config.attn_implementation, config.max_length
    attention = model.choose_attention(asked, device, half, longest)
    values = config.to_dict() | {"num_processes": started.processes}
    not_repeated = [name for name, repeated in _REPEATED.items() if values[name] not in repeated]
    not_repeated += ["teacher"] if summary.taught else []
    bundled = config.checkpoint == BUNDLED_CHECKPOINT
    classes, entry = len(prepared.labels), catalog.find_dataset(config.dataset)
    scores = {
        metric.name: [metric.library, metric.library_options(classes, prepared.target.positive)]
        for metric in measured(config, prepared.target)
        if metric.library
    }
    # GLUE's own module, which `evaluate` fetches, if it computes these very scores.
    glue = entry.config if entry and prepared.target.positive == 1 else ""
    of_glue = {metric.name for metric in _GLUE.get(glue, ())}
    return values | {
        "run": f"{run.title(public=True)} ({run.id}), on {started.device}",
        "best": summary.best and {"step": summary.best.step, **summary.best.metrics},
        "not_repeated": not_repeated,
        "checkpoint_package": checkpoints.BUNDLED_PACKAGE if bundled else "",
        "glue": glue if scores and scores.keys() <= of_glue else "",
        "scores": scores,
        "problem_type": prepared.task,
        "lower_is_better": [name for name in scores if not find(name).greater_is_better],
        "per_device_train_batch_size": prepared.per_device_train_batch_size,
        "gradient_accumulation_steps": prepared.gradient_accumulation_steps,
        "max_length": length,
        "either_order": bool(prepared.data.get("either_order")),
        "pad_to_multiple_of": dataloaders.padding_multiple(config, prepared.precision, length),
        "head": prepared.head.model_dump(),
        "cpu": device.type == "cpu",
        "mixed_precision": prepared.precision,
        "attn_implementation": None if attention == "auto" else attention,
        "steps": summary.step,
        "total_steps": total,
        "eval_steps": eval_steps,
        "warmup_steps": config.warmup_steps or math.ceil(total * config.warmup_ratio),
    }


def pinned(name: str, number: str = "") -> str:
    """Pin a requirement to a version, by default the installed one, without a local suffix."""
    return f"{name}=={(number or version(name)).split('+')[0]}"
