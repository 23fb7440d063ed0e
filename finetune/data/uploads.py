"""Files a person brought, kept by their contents and names: the same files are one upload.

Knows names, sizes and bytes; nothing of what is in them (`files`). Standard library only.
"""

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

_COPIES, _SPARE = 4, 2**28  # what a file may come to take, and bytes left for runs
_ID = re.compile(r"[0-9a-f]{24}")


@dataclass(frozen=True)
class StoredUpload:
    """One upload.

    Args:
        name: as a configuration's `dataset` names it.
        called: split -> what the person calls the file.
        size: of its files together, in bytes.
        when: it was brought last, in seconds since the epoch.
    """

    name: str
    called: dict[str, str]
    size: int
    when: float


class Uploads:
    """The uploads below one root that a visitor may see, a folder each.

    The same files of two visitors are two uploads: a name shows nobody what another has.

    Args:
        root: made when the first upload is kept.
        visitor: whose they are.
        used: the names that the visitor's runs still need; the others make room for new ones.
        beside: bytes of what they have brought elsewhere, which count too.
    """

    def __init__(
        self,
        root: Path,
        visitor: Visitor = LOCAL_USER,
        used: Callable[[], Collection[str]] = frozenset,
        beside: Callable[[], int] = int,
    ) -> None:
        self.root = root
        self.visitor = visitor
        self._used = used
        self._beside = beside

    def add(self, files: Mapping[str, Path], names: Mapping[str, str] | None = None) -> str:
        """Keep a set of files; the name a configuration's `dataset` calls it by.

        Args:
            files: split (of `SPLITS`, `train` at least) -> where its file lies now; it is copied.
            names: split -> what the person calls the file, when not as it lies.

        Raises:
            DataError: when there is no training file, one is not a file that can be read, or the
                visitor has as much as they may.
        """
        if not self.visitor.may_start:
            raise DataError(*NOBODY)
        if "train" not in files:
            raise DataError("There is no training file.", "Choose at least that one.")
        called = {
            split: _readable((names or {}).get(split) or path.name) for split, path in files.items()
        }
        digest = hashlib.sha256(self.visitor.name.encode())
        endings = {}
        for split in SPLITS:
            if split in files:
                endings[split] = file_suffix(called[split])
                contents = _digest(files[split], called[split])
                digest.update(f"{split}{endings[split]}{contents}\n{called[split]}\n".encode())
        upload = digest.hexdigest()[:24]
        folder = self.root / upload
        if not (folder / "upload.json").is_file():
            self._keep(folder, files, called, endings)
        with contextlib.suppress(OSError):  # brought again: the newest, and the last to make room
            os.utime(folder)
        return UPLOAD_PREFIX + upload

    def newest(self, most: int) -> list[StoredUpload]:
        """The visitor's uploads, the newest first."""
        found: list[StoredUpload] = []
        for when, folder in sorted(self._dated(), reverse=True):
            if len(found) == most:
                break
            if self.visitor.owns(_owner(folder)) and (kept := self._kept(folder, when)):
                found.append(kept)
        return found

    def _dated(self) -> list[tuple[float, Path]]:
        found = []
        for folder in self.root.glob("[0-9a-f]*/"):
            with contextlib.suppress(OSError):  # it has just made room
                found.append((folder.stat().st_mtime, folder))
        return found

    def _kept(self, folder: Path, when: float) -> StoredUpload | None:
        name = UPLOAD_PREFIX + folder.name
        try:
            size = sum(path.stat().st_size for path in self.files(name).values())
            return StoredUpload(name, self.called(name), size, when)
        except (OSError, DataError):
            return None

    def _keep(
        self,
        folder: Path,
        files: Mapping[str, Path],
        called: Mapping[str, str],
        endings: Mapping[str, str],
    ) -> None:
        aside = self.root / f".{folder.name}.{secrets.token_hex(4)}"
        size = sum(path.stat().st_size for path in files.values())
        try:
            aside.mkdir(parents=True)
            # The file, what is read of it, and its tokens.
            if shutil.disk_usage(aside).free < _COPIES * size + _SPARE:
                raise OSError(errno.ENOSPC, "the disk is nearly full")
            places = {path: aside / (split + endings[split]) for split, path in files.items()}
            here = [path for path in places if path.is_relative_to(self.root)]
            for path in here:  # of an upload that may make room for this one
                shutil.copyfile(path, places[path])
            self.make_room(size, self._beside())
            for path in places.keys() - here:
                shutil.copyfile(path, places[path])
            (aside / "owner").write_text(self.visitor.name, encoding="utf-8")
            (aside / "upload.json").write_text(
                json.dumps(dict(called), ensure_ascii=False), encoding="utf-8"
            )
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(aside, folder)
        except OSError as error:
            if (folder / "upload.json").is_file():
                return  # another process kept the same files at the same moment
            raise disk.failure("The upload", error, DataError) from error
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def make_room(self, size: int, beside: int = 0) -> int:
        """See that a visitor may bring so many bytes more; bytes their uploads have then.

        The oldest uploads that no run needs go first; none does where that would not be enough.

        Args:
            beside: bytes they have brought elsewhere.

        Raises:
            DataError: when it is more than they may have.
        """
        if self.visitor.alone:
            return 0
        most = Limits.of_environment().upload_bytes - size - beside
        sizes = self._sizes()
        if sum(sizes.values()) <= most:
            return sum(sizes.values())
        spare = self._spare(sizes)
        needed = sum(sizes.values()) - sum(sizes[folder] for folder in spare)
        if needed > most:
            raise _too_much(size, needed + beside)
        for folder in spare:
            if sum(sizes.values()) > most:
                shutil.rmtree(folder, ignore_errors=True)
                del sizes[folder]
        return sum(sizes.values())

    def needed(self) -> int:
        """Bytes of the visitor's uploads that cannot make room, for runs are of them."""
        sizes = self._sizes()
        return sum(sizes.values()) - sum(sizes[folder] for folder in self._spare(sizes))

    def _spare(self, sizes: Mapping[Path, int]) -> list[Path]:
        used = self._used()
        return [folder for folder in sizes if UPLOAD_PREFIX + folder.name not in used]

    def _sizes(self) -> dict[Path, int]:
        """The visitor's upload folders, the oldest first, and their bytes."""
        mine = [one for one in self.root.glob("[0-9a-f]*/") if _owner(one) == self.visitor.name]
        mine.sort(key=lambda folder: folder.stat().st_mtime)
        return {one: sum(path.stat().st_size for path in one.iterdir()) for one in mine}

    def files(self, name: str) -> dict[str, Path]:
        """Split -> file of an upload.

        Raises:
            DataError: when there is no such upload.
        """
        folder = self._folder(name)
        found = {path.name.split(".")[0]: path for path in folder.iterdir() if path.is_file()}
        return {split: found[split] for split in SPLITS if split in found}

    def called(self, name: str) -> dict[str, str]:
        """Split -> what the person calls the file.

        Raises:
            DataError: when there is no such upload.
        """
        known = json_files.read(self._folder(name) / "upload.json")
        return {str(split): str(text) for split, text in known.items()}

    def _folder(self, name: str) -> Path:
        upload = name.removeprefix(UPLOAD_PREFIX)
        folder = self.root / upload
        known = _ID.fullmatch(upload) and (folder / "upload.json").is_file()
        if not known or not self.visitor.owns(_owner(folder)):
            raise DataError(
                f"There is no upload {name!r} here.", "Upload the files again under Data."
            )
        return folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--train_file`, `--validation_file`, `--test_file`: a person's own files in a terminal."""
    group = parser.add_argument_group("Files", f"one of {', '.join(ENDINGS)}, each also as .gz")
    for split in SPLITS:
        group.add_argument(
            f"--{split}_file", type=Path, help=f"the {split} rows, in place of --dataset"
        )


def upload_from_arguments(namespace: argparse.Namespace, root: Path) -> dict[str, str]:
    """`dataset` for the files given, which are kept; empty where none is.

    Raises:
        DataError: as `Uploads.add`.
    """
    named = {split: getattr(namespace, f"{split}_file") for split in SPLITS}
    given = {split: path for split, path in named.items() if path is not None}
    return {"dataset": Uploads(root / "uploads").add(given)} if given else {}


def _too_much(size: int, had: int) -> DataError:
    most = Limits.of_environment().upload_bytes
    return DataError(
        f"These files have {size / 2**20:.1f} MB, and those of your runs and what you had judged "
        f"{had / 2**20:.1f} MB; a visitor may have {most / 2**20:.0f} MB.",
        "Bring a part of the rows, or delete a run of other files.",
    )


def _owner(folder: Path) -> str:
    try:
        return (folder / "owner").read_text(encoding="utf-8")
    except OSError:
        return ""  # of before there were visitors: one's own machine's


def file_suffix(name: str) -> str:
    """The ending of a file's name, of those that are read.

    Raises:
        DataError: when it has another.
    """
    lower = name.lower()
    packed = ".gz" if lower.endswith(".gz") else ""
    plain = lower.removesuffix(".gz")
    for known in ENDINGS:
        if plain.endswith(known):
            return known + packed
    raise DataError(
        f"{name!r} has no ending that is known.",
        f"Upload one of {', '.join(ENDINGS)}, each also as .gz.",
    )


def _readable(name: str) -> str:
    """A file's name as UTF-8 can have it: a system's names are bytes, of any encoding."""
    return name.encode("utf-8", "replace").decode("utf-8")


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
