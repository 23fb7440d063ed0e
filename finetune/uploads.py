"""Uploaded files, stored by their contents and names: the same files are one upload."""

import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from finetune import disk
from finetune.config import UPLOAD_PREFIX
from finetune.errors import DataError
from finetune.messages import message
from finetune.owners import LOCAL_USER, NOBODY, Visitor

SPLITS = ("train", "validation", "test")
_PACKED = (".parquet", ".xlsx", ".xls", ".ods")  # not as .gz
ENDINGS = (".csv", ".tsv", ".txt", ".jsonl", ".ndjson", ".json", *_PACKED)
_ID = re.compile(r"[0-9a-f]{24}")


@dataclass(frozen=True)
class StoredUpload:
    """The files of one upload."""

    name: str  # a configuration's `dataset`
    file_names: dict[str, str]  # split -> name of the file
    size: int  # bytes of all files
    when: float  # last upload, in seconds since the epoch


@dataclass(frozen=True)
class Uploads:
    """The uploads that a visitor may see, a folder each. Visitors never share one."""

    root: Path
    visitor: Visitor = LOCAL_USER
    # Names of the uploads that the visitor's runs need; others are removed to make room.
    used: Callable[[], Collection[str]] = frozenset
    other_bytes: Callable[[], int] = int  # of the visitor's other files, which count too

    def add(self, files: Mapping[str, Path], names: Mapping[str, str] | None = None) -> str:
        """Store copies of the files of each split; returns the upload's name, for a configuration's
        `dataset`. `names` are those for the person, if they differ. DataError if a file cannot be
        read, or the visitor may not store more."""
        if not self.visitor.may_start:
            raise DataError(*NOBODY)
        if "train" not in files:
            raise DataError("There is no training file.", "Choose at least that one.")
        file_names, stored_names = {}, {}
        digest = hashlib.sha256(self.visitor.name.encode())
        for split in filter(files.__contains__, SPLITS):
            name = (names or {}).get(split) or files[split].name
            name = name.encode("utf-8", "replace").decode()  # file systems allow any bytes
            file_names[split], stored_names[split] = name, split + file_suffix(name)
            contents = contents_hash(files[split], name)
            if split != "test" and self._golden(contents).exists():
                raise DataError(
                    "{name!r} is a golden file: release checks rely on no model being trained on "
                    "it.",
                    "Choose another file.",
                    name=name,
                )
            digest.update(f"{stored_names[split]}{contents}\n{name}\n".encode())
        folder = self.root / digest.hexdigest()[:24]
        if not (folder / "upload.json").is_file():
            self._store(folder, {stored_names[split]: files[split] for split in files}, file_names)
        disk.make_newest(folder, self.root.glob("*/"))  # also if it is uploaded again
        return UPLOAD_PREFIX + folder.name

    def _store(self, folder: Path, files: dict[str, Path], file_names: dict[str, str]) -> None:
        """Copy files into a folder, which becomes an upload when it has its `upload.json`."""
        size = sum(path.stat().st_size for path in files.values())
        try:
            with disk.writing(message("The upload"), DataError):
                folder.mkdir(parents=True, exist_ok=True)
                for name, path in files.items():  # may be those of an upload that is removed below
                    shutil.copyfile(path, folder / name)
                self.make_room(size, self.other_bytes())
                text = json.dumps({"owner": self.visitor.name, "file_names": file_names})
                disk.write_atomically(folder / "upload.json", text)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def keep_golden(self, path: Path) -> bool:
        """Make `add` refuse a golden file, by its hash. Returns True if that is new."""
        mark = self._golden(contents_hash(path, path.name))
        with disk.writing(message("The golden file's hash"), DataError):
            mark.parent.mkdir(parents=True, exist_ok=True)
            is_new = not mark.exists()
            mark.touch()
        return is_new

    def forget_golden(self, contents: str) -> None:
        """Allow a golden file to be trained on, as one that was before. `contents`: its hash."""
        self._golden(contents).unlink(missing_ok=True)

    def _golden(self, contents: str) -> Path:
        """The mark of a golden file of the visitor, by the hash of its contents."""
        digest = hashlib.sha256(f"{self.visitor.name}\n{contents}".encode()).hexdigest()
        return self.root / ".golden" / digest

    def _stored(self) -> list[StoredUpload]:
        """The visitor's uploads, the oldest first."""
        stored = []
        for path in self.root.glob("*/upload.json"):
            folder, name = path.parent, UPLOAD_PREFIX + path.parent.name
            with contextlib.suppress(OSError, DataError):  # not theirs, or just removed
                size = sum(file.stat().st_size for file in self.files(name).values())
                when = folder.stat().st_mtime
                stored.append(StoredUpload(name, self.file_names(name), size, when))
        return sorted(stored, key=lambda upload: upload.when)

    def newest(self, most: int) -> list[StoredUpload]:
        """The visitor's uploads, the newest first."""
        return self._stored()[::-1][:most]

    def make_room(self, size: int, other_bytes: int = 0) -> int:
        """Remove the oldest uploads that no run needs until so many bytes fit beside `other_bytes`.
        Returns the bytes of the rest. DataError, and nothing removed, if they cannot fit."""
        limit = self.visitor.policy.limits.upload_bytes
        most = limit - size - other_bytes
        stored, used = self._stored(), self.used()
        total = sum(upload.size for upload in stored)
        needed = sum(upload.size for upload in stored if upload.name in used)
        if needed > most:
            mb, needed_mb, limit_mb = (n / 2**20 for n in (size, needed + other_bytes, limit))
            raise DataError(
                "These files have {mb:.1f} MB, and those of your runs and predictions "
                "{needed_mb:.1f} MB; a visitor may have {limit_mb:.0f} MB.",
                "Bring a part of the rows, or delete a run of other files.",
                mb=mb,
                needed_mb=needed_mb,
                limit_mb=limit_mb,
            )
        for upload in stored:
            if total > most and upload.name not in used:
                shutil.rmtree(self._folder(upload.name), ignore_errors=True)
                total -= upload.size
        return total

    def needed(self) -> int:
        """Bytes of the visitor's uploads that are needed by runs."""
        used = self.used()
        return sum(upload.size for upload in self._stored() if upload.name in used)

    def files(self, name: str) -> dict[str, Path]:
        """Split -> file of an upload; DataError if it does not exist."""
        names, folder = self.file_names(name), self._folder(name)
        return {split: folder / f"{split}{file_suffix(file)}" for split, file in names.items()}

    def file_names(self, name: str) -> dict[str, str]:
        """Split -> the person's name of the file; raises as `files`."""
        folder = self._folder(name)
        values = disk.read_json(folder / "upload.json") if _ID.fullmatch(folder.name) else {}
        if not values or not self.visitor.owns(values["owner"]):
            raise DataError(
                "There is no upload {name!r} here.", "Upload the files again under Data.", name=name
            )
        return dict(values["file_names"])

    def _folder(self, name: str) -> Path:
        return self.root / name.removeprefix(UPLOAD_PREFIX)


def contents_hash(path: Path, name: str) -> str:
    """sha256 of a file's contents; DataError, with the person's `name`, if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        reason = error.strerror or error
        raise DataError("{name!r} cannot be read: {reason}.", name=name, reason=reason) from error


def file_suffix(name: str) -> str:
    """The ending of a file's name: one of `ENDINGS`, text also with `.gz`; or a DataError."""
    packed = name.lower().endswith(".gz")
    ending = next(filter(name.lower().removesuffix(".gz").endswith, ENDINGS), "")
    if ending and not (packed and ending in _PACKED):
        return ending + ".gz" * packed
    raise DataError(
        "{name!r} has no ending that is known.",
        "Upload it unpacked, or in part."
        if ending
        else "Upload one of {endings}, text also as .gz.",
        name=name,
        endings=", ".join(ENDINGS),
    )
