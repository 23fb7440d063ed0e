"""Files a person brought, kept by their contents: the same files have the same name.

Knows names, sizes and bytes; nothing of what is in them (`files`). Standard library only.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from finetune.errors import DataError

PREFIX = "upload/"
SPLITS = ("train", "validation", "test")
ENDINGS = (".csv", ".tsv", ".txt", ".jsonl", ".ndjson", ".json", ".parquet")
MAX_BYTES = 2 * 2**30

_COPIES, _SPARE = 4, 2**28  # what a file may come to take, and bytes left for runs
_ID = re.compile(r"[0-9a-f]{24}")


class Uploads:
    """All uploads below one root, a folder each.

    Args:
        root: made when the first upload is kept.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(self, files: Mapping[str, Path], names: Mapping[str, str] | None = None) -> str:
        """Keep a set of files; the name a configuration's `dataset` calls it by.

        Args:
            files: split (of `SPLITS`, `train` at least) -> where its file lies now; it is copied.
            names: split -> what the person calls the file, when not as it lies.

        Raises:
            DataError: when there is no training file, or one is not a file that can be read.
        """
        if "train" not in files:
            raise DataError("There is no training file.", "Choose at least that one.")
        called = {split: (names or {}).get(split) or path.name for split, path in files.items()}
        digest = hashlib.sha256()
        endings = {}
        for split in SPLITS:
            if split in files:
                endings[split] = _ending(called[split])
                contents = _digest(files[split], called[split])
                digest.update(f"{split}{endings[split]}{contents}\n".encode())
        upload = digest.hexdigest()[:24]
        folder = self.root / upload
        if not (folder / "upload.json").is_file():
            self._keep(folder, files, called, endings)
        return PREFIX + upload

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
            for split, path in files.items():
                shutil.copyfile(path, aside / (split + endings[split]))
            (aside / "upload.json").write_text(json.dumps(dict(called), ensure_ascii=False))
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(aside, folder)
        except OSError as error:
            shutil.rmtree(aside, ignore_errors=True)
            if (folder / "upload.json").is_file():
                return  # another process kept the same files at the same moment
            raise DataError(
                f"The upload cannot be kept: {error.strerror or error}.", "Free some space."
            ) from error

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
        try:
            known = json.loads((self._folder(name) / "upload.json").read_text(encoding="utf-8"))
            return {str(split): str(text) for split, text in known.items()}
        except (OSError, ValueError, AttributeError):
            return {}

    def _folder(self, name: str) -> Path:
        upload = name.removeprefix(PREFIX)
        folder = self.root / upload
        if not _ID.fullmatch(upload) or not (folder / "upload.json").is_file():
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


def from_arguments(namespace: argparse.Namespace, root: Path) -> dict[str, str]:
    """`dataset` for the files given, which are kept; empty where none is.

    Raises:
        DataError: as `Uploads.add`.
    """
    named = {split: getattr(namespace, f"{split}_file") for split in SPLITS}
    given = {split: path for split, path in named.items() if path is not None}
    return {"dataset": Uploads(root / "uploads").add(given)} if given else {}


def is_upload(dataset: str) -> bool:
    """Whether a configuration's `dataset` names an upload."""
    return dataset.startswith(PREFIX)


def _ending(name: str) -> str:
    lower = name.lower()
    packed = ".gz" if lower.endswith(".gz") else ""
    plain = lower.removesuffix(".gz")
    for ending in ENDINGS:
        if plain.endswith(ending):
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
