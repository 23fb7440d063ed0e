"""The datasets that the app offers, and rules for the names of datasets and checkpoints."""

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from finetune import owners, uploads
from finetune.config import BUNDLED_CHECKPOINT, BUNDLED_DATASET, RunConfig, is_upload
from finetune.data.checkpoint_catalog import CHECKPOINTS, find_checkpoint
from finetune.environment import project
from finetune.errors import DataError, some
from finetune.messages import message as _
from finetune.metrics.catalog import METRICS

_NAME = r"[A-Za-z0-9_](?:[\w.-]{0,94}[A-Za-z0-9_])?"
_HUB_ID = re.compile(rf"{_NAME}/{_NAME}", re.ASCII)
_MODEL_ID = re.compile(rf"(?:{_NAME}/)?{_NAME}", re.ASCII)  # old ones have no owner
COURSE_CHOICE = "glue/mrpc", "bert-base-uncased"  # the first choice if the Hub answers
BUNDLED_PAIRS = project.ROOT / "assets" / "pairs"


@dataclass(frozen=True)
class CatalogEntry:
    """A dataset that is offered."""

    name: str  # in a configuration
    label: str  # on the page
    repo: str = ""  # its Hub repository; empty if it has none
    config: str = ""  # the configuration within that
    pairs: int = 0  # rows of its training split


def _glue(task: str, pairs: int) -> CatalogEntry:
    name = {"sst2": "SST-2", "cola": "CoLA", "stsb": "STS-B"}.get(task, task.upper())
    return CatalogEntry(f"glue/{task}", f"GLUE {name} (Hub)", "nyu-mll/glue", task, pairs)


DATASETS: tuple[CatalogEntry, ...] = (
    CatalogEntry(BUNDLED_DATASET, "Bundled pairs (no network needed)", pairs=2038),
    _glue("mrpc", 3668),
    _glue("qqp", 363_846),
    _glue("rte", 2490),
    _glue("qnli", 104_743),
    _glue("wnli", 635),
    _glue("mnli", 392_702),
    _glue("sst2", 67_349),
    _glue("cola", 8551),
    _glue("stsb", 5749),
    CatalogEntry("paws", "PAWS (Hub)", "google-research-datasets/paws", "labeled_final", 49_401),
)


def find_dataset(name: str) -> CatalogEntry | None:
    """The offered dataset of that name, or None."""
    return next((entry for entry in DATASETS if entry.name == name), None)


def repo_and_config(config: RunConfig) -> tuple[str, str]:
    """The Hub repository of a dataset, and the configuration within it, or ""."""
    entry = find_dataset(config.dataset)
    if entry is not None:
        return entry.repo, config.dataset_config_name or entry.config
    return config.dataset, config.dataset_config_name


def is_local_path(name: str) -> bool:
    """True if a name is a path on this machine's disk. In a shared app its spelling decides: a
    visitor must not learn what lies there."""
    if name in (BUNDLED_DATASET, BUNDLED_CHECKPOINT) or is_upload(name):
        return False
    spelled = name.startswith(("/", "~", ".")) or "\\" in name or ".." in name
    return spelled or (owners.policy().owner_asks and os.path.exists(name))


def is_folder(name: str) -> bool:
    """True if a checkpoint is a folder on this machine's disk."""
    return is_local_path(name) and os.path.isdir(name)


def check_dataset(name: str) -> None:
    """Raise DataError unless a name is an offered dataset, an upload, or a Hub id
    (`owner/name`)."""
    # `datasets` would take other names for a local folder or reader (`csv`, `imagefolder`).
    if find_dataset(name) is not None or is_upload(name):
        return
    is_file = name.lower().removesuffix(".gz").endswith(uploads.ENDINGS)
    if is_local_path(name) or name.count("/") > 1 or is_file:
        raise DataError(
            "{name!r} is a path, and no path is read as a dataset.",
            "Upload the file under Data, or in a terminal give it as --train_file.",
            name=name,
        )
    if not _HUB_ID.fullmatch(name) or ".." in name:
        raise DataError(
            "There is no dataset {name!r}.",
            "Choose {bundled_dataset!r}, another one offered, or a Hub id as owner/name.",
            name=name,
            bundled_dataset=BUNDLED_DATASET,
        )


def is_hub_dataset(name: str) -> bool:
    """True if a dataset is read from the Hub."""
    return name != BUNDLED_DATASET and not is_upload(name)


def may_be_fetched(name: str) -> bool:
    """True if a name can only mean the bundled checkpoint or one on the Hub."""
    of_hub = bool(_MODEL_ID.fullmatch(name)) and not is_local_path(name)
    return of_hub or name == BUNDLED_CHECKPOINT


def checkpoint_problem(name: str, policy: owners.Policy) -> str | None:
    """Return why a checkpoint may not be chosen, or None if it may."""
    if policy.owner_asks or find_checkpoint(name) is not None:
        return None
    if is_local_path(name):
        return _("is on this machine's disk, which visitors cannot use; choose one on the Hub")
    if not policy.any_checkpoint:
        offered = some([entry.name for entry in CHECKPOINTS])
        return _("is not offered in this shared app; choose one of {offered}", offered=offered)
    return None if may_be_fetched(name) else _("is not a name on the Hub; give it as owner/name")


def needs_hub(dataset: str, checkpoint: str, metrics: Sequence[str] = ()) -> bool:
    """True if a run of this dataset and checkpoint may have to download something."""
    local = checkpoint == BUNDLED_CHECKPOINT or is_folder(checkpoint)
    modules = any(not os.path.exists(name) for name in metrics)
    return is_hub_dataset(dataset) or not local or modules


def with_absolute_paths(config: RunConfig) -> RunConfig:
    """Make the paths of a configuration absolute, for workers that run in another folder. Those of
    a visitor of a shared app stay as they are: errors quote them."""
    if not owners.policy().owner_asks:
        return config
    paths = {"accelerate_config": config.accelerate_config}
    if is_local_path(config.checkpoint):
        paths["checkpoint"] = config.checkpoint

    def absolute(path: str) -> str:
        return os.path.abspath(os.path.expanduser(path))

    metrics = [
        absolute(name) if name not in METRICS and is_local_path(name) else name
        for name in config.added_metrics
    ]
    config = config.changed(metrics=shlex.join(metrics))
    return config.changed(**{name: absolute(path) for name, path in paths.items() if path})
