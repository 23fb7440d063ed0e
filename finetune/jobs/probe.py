"""Probes: which checkpoint to train first, told from the pairs before any training.

The folder `probes/<id>` gets the report. Requests for the same pairs and checkpoints share it.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from finetune import disk
from finetune.config import DATA_FIELDS, RunConfig
from finetune.data import catalog, checkpoint_catalog, checkpoints, hub_access
from finetune.errors import ConfigError
from finetune.evaluation import probe
from finetune.evaluation.probe import ProbeReport
from finetune.jobs import background, check
from finetune.jobs.background import BackgroundJob, Report
from finetune.messages import message as _
from finetune.runs.events import Event, Phase
from finetune.runs.store import RunStore

MOST = 8  # checkpoints of a probe


class ProbeJob(BackgroundJob):
    """The comparison of some checkpoints on one configuration's pairs."""

    name, folders, limit = "probe", "probes/*", 1
    minutes = 120
    phase = Phase.START
    remedy = _("The log has the details.")
    missing = _("There is no such comparison."), _("Start it again.")

    @property
    def report(self) -> ProbeReport | None:
        """The result; None until it has ended."""
        return disk.read_as(ProbeReport, self.folder / "report.json")

    def work(self, report: Report) -> Event | None:
        found = probe_checkpoints(
            RunConfig(**self.request["config"]),
            self.request["checkpoints"],
            self.folder.parent.parent,
            partial(report, Phase.PROBE),
            self.stop_requested,
            self.owner,
        )
        disk.write_atomically(self.folder / "report.json", found.to_json())
        return self.stopped(found.seconds) if self.stop_requested() else None


def probe_checkpoints(
    config: RunConfig,
    names: Sequence[str],
    root: Path,
    progress: probe.Progress = lambda checkpoint, done, total: None,
    stop: Callable[[], bool] = lambda: False,
    owner: str = "",
) -> ProbeReport:
    """Probe checkpoints in this process; as `evaluation.probe.probe`, which it prepares."""
    remote = (name for name in names if catalog.needs_hub(config.dataset, name))
    background.choose_offline(config.dataset, next(remote, names[0]))
    from finetune.data import splits

    hub_access.count_dataset(root, owner, config)
    for name in names:
        hub_access.count_checkpoint(root, owner, name)
    return probe.probe(splits.load_pairs(config, root), config, names, progress, stop)


def candidates(config: RunConfig) -> list[str]:
    """Return the checkpoints on this disk that can be probed without a download: the
    configuration's own and the offered ones."""
    offered = [entry.name for entry in checkpoint_catalog.CHECKPOINTS]
    names = dict.fromkeys((config.checkpoint, *offered))
    return [name for name in names if checkpoints.local_folder(name) is not None]


def check_request(store: RunStore, config: RunConfig, names: Sequence[str]) -> list[str]:
    """Return the checkpoints to probe, each once. ConfigError or DataError if there are fewer than
    two or too many, or the visitor may not use the pairs or a checkpoint."""
    chosen = list(dict.fromkeys(name.strip() for name in names if name.strip()))
    if not 2 <= (n := len(chosen)) <= MOST:
        problem = _(
            "must be from 2 to {most}, not {n}; without the Hub only models on this machine count",
            most=MOST, n=n,
        )  # fmt: skip
        raise ConfigError({"checkpoints": problem})
    for name in chosen:
        check.check_source_access(store, config.changed(checkpoint=name))
        checkpoints.check_length(name, config.max_length)
    return chosen


def start_probe(store: RunStore, config: RunConfig, names: Sequence[str]) -> ProbeJob:
    """Probe checkpoints on a configuration's pairs, unless they have been."""
    chosen = check_request(store, config, names)
    job = probe_of(store, config, chosen)
    if job.state().status == "finished" and job.report is not None and job.report.complete:
        return job
    absolute = catalog.with_absolute_paths(config)
    paths = [catalog.with_absolute_paths(config.changed(checkpoint=n)).checkpoint for n in chosen]
    job.begin(store, {"config": absolute.to_dict(), "checkpoints": paths})
    background.keep_newest(job.folder.parent, 100)
    return job


def probe_of(store: RunStore, config: RunConfig, names: Sequence[str]) -> ProbeJob:
    """Return the visitor's probe of a configuration's pairs, which may not exist yet."""
    values = [getattr(config, name) for name in (*DATA_FIELDS, "max_length")]
    values += [store.visitor.name, *sorted(names), *hub_access.cache_scope(config)]
    for name in sorted(names):  # when the newest file of a folder was written; 0 for the Hub's
        with contextlib.suppress(OSError):
            values.append(max((p.stat().st_mtime for p in Path(name).glob("*")), default=0.0))
    key = hashlib.sha256(json.dumps(values).encode()).hexdigest()[:24]
    return ProbeJob(store.root / "probes" / key)
