"""Loads hostile checkpoints in a process of its own and says which of them opened a file that is
none of theirs: `python -m tests.support.canary FOLDER [CLASS ...]` prints JSON, of the tokenizer
classes that are named, or of all that transformers has.

The canary lies in the working folder. The kernel tells who opens it (inotify), for the tokenizers
library opens files without Python's knowledge; an audit hook tells what else Python opens.
"""

from __future__ import annotations

import ctypes
import inspect
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from finetune.data import checkpoint_files
from finetune.errors import ModelError

NAME = "canary.txt"
_IN_OPEN, _IN_NONBLOCK = 0x20, 0o4000
# Words that the toy knows, so that a class that takes the file as its vocabulary is content.
TEXT = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhush\nsecret\ntoken\n"


class Canary:
    """A file that says if it was opened."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self.path.write_text(TEXT)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._watch = self._libc.inotify_init1(_IN_NONBLOCK)
        added = self._libc.inotify_add_watch(self._watch, str(self.path).encode(), _IN_OPEN)
        assert added > 0, os.strerror(ctypes.get_errno())

    def was_opened(self) -> bool:
        """True if somebody has opened it since this was last asked."""
        try:
            return bool(os.read(self._watch, 2**16))
        except BlockingIOError:
            return False


def values(canary: Path) -> Iterator[Any]:
    """The canary as a checkpoint's file could name it."""
    yield from (str(canary), NAME, f"./{NAME}", f"../{canary.parent.name}/{NAME}")
    yield from ([NAME], [[NAME]], {NAME: 0}, {"a": NAME}, f"file://{canary}")
    yield os.open(os.devnull, os.O_RDONLY)  # the number of an open file


def tokenizer_parameters() -> dict[str, set[str]]:
    """The tokenizer classes of transformers that can be made here, and what each takes."""
    from transformers.models.auto import tokenization_auto as auto

    found: dict[str, set[str]] = {}
    for name in sorted({name for name in auto.TOKENIZER_MAPPING_NAMES.values() if name}):
        kind = auto.tokenizer_class_from_name(name)
        if kind is None or not hasattr(kind, "__mro__"):
            continue
        takes = {"init_inputs", "auto_map", "fast_tokenizer_files", "sp_model_kwargs", "vocab"}
        for parent in kind.__mro__:
            if "__init__" in vars(parent):
                takes |= set(inspect.signature(vars(parent)["__init__"]).parameters)
        found[name] = takes - {"self", "args", "kwargs"}
    return found


def config_keys() -> set[str]:
    """What a configuration of the toy's kind can hold, and what the libraries look for in one."""
    from transformers import BertConfig

    return {
        *BertConfig().to_dict(), "auto_map", "_name_or_path", "name_or_path", "tokenizer_class",
        "transformers_weights", "quantization_config", "attn_implementation", "dtype",
        "_attn_implementation", "base_model_name_or_path", "custom_pipelines", "adapter",
    }  # fmt: skip


class Cases:
    """Copies of a checkpoint, each changed in one place, and what their loading opened."""

    def __init__(self, checkpoint: Path, canary: Canary) -> None:
        self._canary, self.loaded, self.refused = canary, 0, 0
        self.opened: list[str] = []
        self.folder = Path(tempfile.mkdtemp()) / "toy"
        shutil.copytree(checkpoint, self.folder)
        with checkpoint_files.open_files(self.folder) as files:
            self._unchanged = dict(files.contents)

    def load(
        self, what: str, file: str, content: dict[str, Any], load: Callable[[Any], Any]
    ) -> None:
        """Load the checkpoint with that file in it, unless nothing is left of the change."""
        path = self.folder / file
        before = path.read_text(encoding="utf-8") if path.exists() else None
        path.write_text(json.dumps(content), encoding="utf-8")
        try:
            with checkpoint_files.open_files(self.folder, "ada/hostile") as files:
                kept = {**files.contents[file], "tokenizer_class": 0}
                if kept != {**self._unchanged.get(file, {}), "tokenizer_class": 0}:
                    load(files)
                    self.loaded += 1
        except ModelError:
            self.refused += 1
        path.unlink() if before is None else path.write_text(before, encoding="utf-8")
        if self._canary.was_opened():
            self.opened.append(what)


def main(checkpoint: Path, kinds: list[str]) -> None:
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    canary = Canary(Path.cwd())
    cases = Cases(checkpoint, canary)
    own = json.loads((checkpoint / "tokenizer_config.json").read_text(encoding="utf-8"))
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))

    def tokenizer(files: Any) -> None:
        files.load(AutoTokenizer)

    def model(files: Any) -> None:
        files.load(AutoModelForSequenceClassification, config=files.load(AutoConfig))

    for value in values(canary.path):
        for kind, parameters in tokenizer_parameters().items():
            if kinds and kind not in kinds:
                continue
            for key in sorted(parameters):
                hostile = {**own, "tokenizer_class": kind, key: value}
                what = f"{kind} {key}={value!r}"
                cases.load(what, "tokenizer_config.json", hostile, tokenizer)
            hostile = dict.fromkeys(parameters, value)
            cases.load(f"{kind} map {value!r}", "special_tokens_map.json", hostile, tokenizer)
        for key in sorted(config_keys()):
            cases.load(f"config {key}={value!r}", "config.json", {**config, key: value}, model)
    # What the watch is worth: the library itself, on such a file, opens it.
    (cases.folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "vocab": str(canary.path)})
    )
    (cases.folder / "tokenizer.json").unlink(missing_ok=True)
    AutoTokenizer.from_pretrained(cases.folder)
    seen = canary.was_opened()
    shutil.rmtree(cases.folder.parent)
    print(json.dumps({"opened": cases.opened, "loaded": cases.loaded, "refused": cases.refused,
                      "watch_works": seen}))  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
