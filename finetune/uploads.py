"""Files that people uploaded, stored by their contents and names: the same files are one upload."""

from __future__ import annotations

import argparse
import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from finetune import disk, json_files
from finetune.config import UPLOAD_PREFIX
from finetune.errors import DataError
from finetune.owners import LOCAL_USER, NOBODY, Limits, Visitor

SPLITS = ("train", "validation", "test")
ENDINGS = (".csv", ".tsv", ".txt", ".jsonl", ".ndjson", ".json", ".parquet")
MAX_BYTES = 2 * 2**30

# An upload takes its size, what is read of it, and its tokens; some room is left for runs.
_NEEDED_COPIES, _RESERVE_BYTES = 4, 2**28
_ID = re.compile(r"[0-9a-f]{24}")


@dataclass(frozen=True)
class StoredUpload:
    """The files of one upload."""

    name: str  # a configuration's `dataset`
    file_names: dict[str, str]  # split -> name of the file
    size: int  # bytes of all files
    when: float  # last upload, in seconds since the epoch


class Uploads:
    """The uploads below one root that a visitor may see, a folder each.

    The same files of two visitors are two uploads: a name shows nobody what another has.

    Args:
        root: made with the first upload.
        visitor: whose they are.
        used: the names that the visitor's runs still need; the others make room for new ones.
        other_bytes: bytes of the visitor's other files, which count too.
    """

    def __init__(
        self,
        root: Path,
        visitor: Visitor = LOCAL_USER,
        used: Callable[[], Collection[str]] = frozenset,
        other_bytes: Callable[[], int] = int,
    ) -> None:
        self.root = root
        self.visitor = visitor
        self._used = used
        self._other_bytes = other_bytes

    def add(self, files: Mapping[str, Path], names: Mapping[str, str] | None = None) -> str:
        """Store copies of files; the name of the upload, for a configuration's `dataset`.

        Args:
            files: split (of `SPLITS`, `train` at least) -> file.
            names: split -> name of the file for the user, where it differs.

        Raises:
            DataError: when there is no training file, a file cannot be read, or the visitor has
                as much as they may.
        """
        if not self.visitor.may_start:
            raise DataError(*NOBODY)
        if "train" not in files:
            raise DataError("There is no training file.", "Choose at least that one.")
        file_names, suffixes = {}, {}
        digest = hashlib.sha256(self.visitor.name.encode())
        for split in SPLITS:
            if split in files:
                name = (names or {}).get(split) or files[split].name
                name = name.encode("utf-8", "replace").decode()  # file systems allow any bytes
                file_names[split], suffixes[split] = name, file_suffix(name)
                contents = _digest(files[split], name)
                digest.update(f"{split}{suffixes[split]}{contents}\n{name}\n".encode())
        upload = digest.hexdigest()[:24]
        folder = self.root / upload
        if not (folder / "upload.json").is_file():
            self._store(folder, files, file_names, suffixes)
        with contextlib.suppress(OSError):  # uploaded again: the newest, and last to make room
            os.utime(folder)
        return UPLOAD_PREFIX + upload

    def _store(
        self,
        folder: Path,
        files: Mapping[str, Path],
        file_names: Mapping[str, str],
        suffixes: Mapping[str, str],
    ) -> None:
        partial = self.root / f".{folder.name}.{secrets.token_hex(4)}"
        size = sum(path.stat().st_size for path in files.values())
        try:
            partial.mkdir(parents=True)
            if shutil.disk_usage(partial).free < _NEEDED_COPIES * size + _RESERVE_BYTES:
                raise OSError(errno.ENOSPC, "the disk is nearly full")
            for split, path in files.items():  # perhaps of an upload that makes room for this one
                shutil.copyfile(path, partial / (split + suffixes[split]))
            self.make_room(size, self._other_bytes())
            (partial / "owner").write_text(self.visitor.name, encoding="utf-8")
            text = json.dumps(file_names, ensure_ascii=False)
            (partial / "upload.json").write_text(text, encoding="utf-8")
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(partial, folder)
        except OSError as error:
            if (folder / "upload.json").is_file():
                return  # another process stored the same files at the same moment
            raise disk.failure("The upload", error, DataError) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def newest(self, most: int) -> list[StoredUpload]:
        """The visitor's uploads, the newest first."""
        uploads = []
        for folder in self.root.glob("[0-9a-f]*/"):
            name = UPLOAD_PREFIX + folder.name
            with contextlib.suppress(OSError, DataError):  # not theirs, or just removed
                size = sum(path.stat().st_size for path in self.files(name).values())
                when = folder.stat().st_mtime
                uploads.append(StoredUpload(name, self.file_names(name), size, when))
        return sorted(uploads, key=lambda upload: upload.when, reverse=True)[:most]

    def make_room(self, size: int, other_bytes: int = 0) -> int:
        """See that a visitor may bring so many bytes more; bytes of their uploads then.

        The oldest uploads that no run needs are removed; none where that would not be enough.

        Args:
            other_bytes: of their other files.

        Raises:
            DataError: when it is more than they may have.
        """
        if self.visitor.alone:
            return 0
        limit = Limits.of_environment().upload_bytes
        most = limit - size - other_bytes
        sizes = self._sizes()
        total, unused = sum(sizes.values()), self._unused(sizes)
        needed = total - sum(sizes[folder] for folder in unused)
        if needed > most and total > most:
            raise DataError(
                f"These files have {size / 2**20:.1f} MB, and those of your runs and what you had "
                f"judged {(needed + other_bytes) / 2**20:.1f} MB; a visitor may have "
                f"{limit / 2**20:.0f} MB.",
                "Bring a part of the rows, or delete a run of other files.",
            )
        for folder in unused:
            if total > most:
                shutil.rmtree(folder, ignore_errors=True)
                total -= sizes[folder]
        return total

    def needed(self) -> int:
        """Bytes of the visitor's uploads that runs need."""
        sizes = self._sizes()
        return sum(sizes.values()) - sum(sizes[folder] for folder in self._unused(sizes))

    def _unused(self, folders: Collection[Path]) -> list[Path]:
        used = self._used()
        return [folder for folder in folders if UPLOAD_PREFIX + folder.name not in used]

    def _sizes(self) -> dict[Path, int]:
        """The visitor's upload folders, the oldest first, and their bytes."""
        folders = self.root.glob("[0-9a-f]*/")
        own = [folder for folder in folders if _owner(folder) == self.visitor.name]
        own.sort(key=lambda folder: folder.stat().st_mtime)
        return {folder: sum(path.stat().st_size for path in folder.iterdir()) for folder in own}

    def files(self, name: str) -> dict[str, Path]:
        """Split -> file of an upload.

        Raises:
            DataError: when there is no such upload.
        """
        files = {path.name.split(".")[0]: path for path in self._folder(name).iterdir()}
        return {split: files[split] for split in SPLITS if split in files}

    def file_names(self, name: str) -> dict[str, str]:
        """Split -> name of the file, as the user knows it.

        Raises:
            DataError: when there is no such upload.
        """
        names = json_files.read(self._folder(name) / "upload.json")
        return {str(split): str(file_name) for split, file_name in names.items()}

    def _folder(self, name: str) -> Path:
        upload = name.removeprefix(UPLOAD_PREFIX)
        folder = self.root / upload
        exists = _ID.fullmatch(upload) and (folder / "upload.json").is_file()
        if not exists or not self.visitor.owns(_owner(folder)):
            raise DataError(
                f"There is no upload {name!r} here.", "Upload the files again under Data."
            )
        return folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--train_file`, `--validation_file` and `--test_file`."""
    group = parser.add_argument_group("Files", f"one of {', '.join(ENDINGS)}, each also as .gz")
    for split in SPLITS:
        group.add_argument(
            f"--{split}_file", type=Path, help=f"the {split} rows, in place of --dataset"
        )


def upload_from_arguments(namespace: argparse.Namespace, root: Path) -> dict[str, str]:
    """Store the files of `add_arguments`; `dataset` and its value, or nothing without files.

    Raises:
        DataError: as `Uploads.add`.
    """
    paths = {split: getattr(namespace, f"{split}_file") for split in SPLITS}
    files = {split: path for split, path in paths.items() if path is not None}
    return {"dataset": Uploads(root / "uploads").add(files)} if files else {}


def _owner(folder: Path) -> str:
    try:
        return (folder / "owner").read_text(encoding="utf-8")
    except OSError:
        return ""


def file_suffix(name: str) -> str:
    """The ending of a file's name, one of `ENDINGS`, perhaps with `.gz`.

    Raises:
        DataError: when it has another.
    """
    packed = ".gz" if name.lower().endswith(".gz") else ""
    for ending in ENDINGS:
        if name.lower().removesuffix(".gz").endswith(ending):
            return ending + packed
    raise DataError(
        f"{name!r} has no ending that is known.",
        f"Upload one of {', '.join(ENDINGS)}, each also as .gz.",
    )


def _digest(path: Path, name: str) -> str:
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise DataError(f"{name!r} is not a file.", "Upload a file.")
        if size == 0:
            raise DataError(f"{name!r} is empty.", "Upload a file with a header and rows.")
        if size > MAX_BYTES:
            raise DataError(
                f"{name!r} has {size / 2**30:.1f} GiB; at most {MAX_BYTES // 2**30} are read.",
                "Draw a part of its rows.",
            )
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{name!r} cannot be read: {error.strerror or error}.") from error
