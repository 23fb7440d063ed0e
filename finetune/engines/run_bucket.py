"""A run's place in a bucket: files sent to its machine, and files the machine saved.

<run id>/attempt-<n>/
    code.tar.gz     this package, the bundled pairs and the pinned requirements
    run.tar         the run's folder, its uploaded files and its local checkpoint
    STOP            asks the worker to stop
    saved/          a mirror of the run's folder on its machine

A bucket is no disk: the machine trains on its own disk and sends whole files.
"""

import contextlib
import io
import os
import shutil
import tarfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from re import match

from huggingface_hub import HfApi

from finetune import disk, owners
from finetune.config import is_upload
from finetune.data import catalog
from finetune.engines.base import read_spec
from finetune.environment import project
from finetune.errors import JobError
from finetune.runs.run import Run
from finetune.runs.store import RunStore

CODE, RUN, STOP, SAVED = "code.tar.gz", "run.tar", "STOP", "saved"
_PAGE_ONLY = {"gradio"}  # not required by workers
# Files of a run's folder that a worker needs or writes.
_FOLDERS = ("best", "checkpoints", "predictions", "seen", "tensorboard")
_FILES = ("job.json", "about.json", "config.json", "events.jsonl")


class RunBucket:
    """The files of one attempt of a run in a bucket, whose id is `namespace/name`."""

    def __init__(self, api: HfApi, bucket: str, run_id: str, attempt: int) -> None:
        self._api, self._bucket = api, bucket
        self._run_folder, self._folder = run_id, f"{run_id}/attempt-{attempt}"
        self._sent: dict[str, tuple[int, int]] = {}  # mirrored file -> its time and size

    def path(self, name: str) -> str:
        """Return a file's path in the bucket."""
        return f"{self._folder}/{name}"

    def put(self, files: dict[str, Path | bytes], gone: list[str] | None = None) -> None:
        """Write files by name, and remove others, as one change."""
        self._api.batch_bucket_files(
            self._bucket,
            add=[(content, self.path(name)) for name, content in files.items()],
            delete=[self.path(name) for name in gone or []],
        )

    def get(self, name: str, target: Path) -> None:
        """Fetch one file. Raises an error of the client if there is none."""
        files: list[tuple[str, str | Path]] = [(self.path(name), target)]
        self._api.download_bucket_files(self._bucket, files, raise_on_missing_files=True)  # type: ignore[arg-type]

    def mirror(self, run: Run) -> None:
        """Send the changed files of a run's folder."""
        staging = run.folder / ".mirror"
        shutil.rmtree(staging, ignore_errors=True)
        files: dict[str, Path] = {}  # links, because a worker may replace the files
        for name in (*_FOLDERS, *_FILES):
            for _ in range(3):
                try:
                    files |= _link(run.folder / name, name, staging)
                    break
                except FileNotFoundError:  # replaced while it was read
                    shutil.rmtree(staging / name, ignore_errors=True)
        now = {name: (path.stat().st_mtime_ns, path.stat().st_size) for name, path in files.items()}
        changed = [name for name, version in now.items() if self._sent.get(name) != version]
        gone = [f"{SAVED}/{name}" for name in self._sent.keys() - now.keys()]
        if changed or gone:
            self.put({f"{SAVED}/{name}": files[name] for name in changed}, gone)
            self._sent = now
        shutil.rmtree(staging, ignore_errors=True)

    def fetch(self, run: Run) -> bytes:
        """Fetch the machine's saved files into the run's folder. Returns its whole `events.jsonl`.
        JobError if that is more than a visitor of a shared app may fetch."""
        staging = run.folder / ".fetched"
        shutil.rmtree(staging, ignore_errors=True)
        prefix = self.path(SAVED) + "/"
        tree = self._api.list_bucket_tree(self._bucket, prefix, recursive=True)
        files = [file for file in tree if file.type == "file" and _is_saved(file.path, prefix)]
        limit, size = owners.policy().limits.hub_bytes / 1e6, sum(file.size for file in files) / 1e6
        if size > limit:
            raise JobError(
                "The job has saved {size:.0f} MB, and {limit:.0f} MB may be fetched here.",
                "Fetch it with `hf buckets`, or use a copy of this app of your own.",
                size=size,
                limit=limit,
            )
        targets = [(file, staging / file.path.removeprefix(prefix)) for file in files]
        for _, target in targets:
            target.parent.mkdir(parents=True, exist_ok=True)
        self._api.download_bucket_files(self._bucket, targets)  # type: ignore[arg-type]
        for name in _FOLDERS:
            if (staging / name).is_dir():
                disk.replace_folder(staging / name, run.folder / name)
        events_file = staging / "events.jsonl"
        content = events_file.read_bytes() if events_file.exists() else b""
        shutil.rmtree(staging, ignore_errors=True)
        return content

    def empty(self) -> None:
        """Remove all files that attempts of the run have here."""
        tree = self._api.list_bucket_tree(self._bucket, self._run_folder + "/", recursive=True)
        paths = [file.path for file in tree if file.type == "file"]
        if paths:
            self._api.batch_bucket_files(self._bucket, delete=paths)


def _is_saved(path: str, prefix: str) -> bool:
    """True if a machine saves files at this path; the bucket's owner may have added others."""
    first, *rest = path.removeprefix(prefix).split("/")
    known = first in _FOLDERS if rest else first == "events.jsonl"
    return path.startswith(prefix) and known and ".." not in rest


def _link(path: Path, name: str, staging: Path) -> dict[str, Path]:
    """Link the files of a folder, or a file. FileNotFoundError if it is replaced meanwhile."""
    links: dict[str, Path] = {}
    if not path.exists():
        return links
    folder = path.stat().st_ino
    for file in (path, *sorted(path.rglob("*"))):
        relative = Path(name, file.relative_to(path))
        if file.is_file() and not any(part.startswith(".") for part in relative.parts):
            (staging / relative).parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.link(file, staging / relative)
            links[relative.as_posix()] = staging / relative
    if path.stat().st_ino != folder:
        raise FileNotFoundError(path)
    return links


def code_archive() -> bytes:
    """Archive this package, the bundled pairs, and the requirements as installed here."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for folder in (project.ROOT / "finetune", project.ROOT / "assets" / "pairs"):
            for path in sorted(folder.rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    archive.add(path, path.relative_to(project.ROOT).as_posix())
        text = "\n".join(pinned_requirements()).encode()
        info = tarfile.TarInfo("requirements.txt")
        info.size = len(text)
        archive.addfile(info, io.BytesIO(text))
    return buffer.getvalue()


def pinned_requirements() -> list[str]:
    """Return a worker's requirements, pinned to the versions installed here."""
    pinned = []
    for line in (project.ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines():
        name = match(r"[\w-]+", line)
        if name and name[0] not in _PAGE_ONLY:
            with contextlib.suppress(PackageNotFoundError):
                pinned.append(f"{name[0]}=={version(name[0]).partition('+')[0]}")
    return pinned


def pack_run(run: Run, target: Path) -> None:
    """Pack a run for a machine: its folder, the files of its upload, and its local checkpoint. Only
    the events that its spec counts are packed; the machine's own follow them."""
    config = run.config()

    def cut(info: tarfile.TarInfo) -> tarfile.TarInfo:
        if info.name == f"{run.id}/{run.events_file.name}":
            info.size = read_spec(run).sent
        return info

    with tarfile.open(target, "w", dereference=True) as archive:
        for name in (*_FOLDERS, *_FILES):
            if (run.folder / name).exists():
                archive.add(run.folder / name, f"{run.id}/{name}", filter=cut)
        if is_upload(config.dataset):
            store = RunStore(run.folder.parent)
            folder = next(iter(store.uploads.files(config.dataset).values())).parent
            archive.add(folder, folder.relative_to(store.root).as_posix())
        if catalog.is_local_path(config.checkpoint):
            archive.add(config.checkpoint, "checkpoint")


def unpack_run(archive_file: Path, root: Path, run_id: str) -> Run:
    """Unpack an archive of `pack_run`. A local checkpoint is put where the configuration has it."""
    with tarfile.open(archive_file) as archive:
        archive.extractall(root, filter="data")
    run = Run(root / run_id)
    if (root / "checkpoint").exists():
        target = Path(run.config().checkpoint)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            (root / "checkpoint").rename(target)
    return run
