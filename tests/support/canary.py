"""Loads hostile checkpoints in a process of its own and says which of them opened a file that is
none of theirs: `python -m tests.support.canary FOLDER` prints JSON, of all tokenizer classes that
transformers has.

The canary lies in the working folder. The kernel tells who opens it (inotify), for the tokenizers
library opens files without Python's knowledge.
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
    yield from (str(canary), NAME, [NAME], {"a": NAME}, f"file://{canary}")
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
    """Copies of a checkpoint, each with entries added to one file, and what their loading opened.
    What is kept of an entry depends on nothing else in its file, so it is tried out once for all
    classes, and only what is kept is loaded."""

    def __init__(self, checkpoint: Path, canary: Canary) -> None:
        self._canary, self.loaded = canary, 0
        self.opened: list[str] = []
        self.folder = Path(tempfile.mkdtemp()) / "toy"
        shutil.copytree(checkpoint, self.folder)
        with checkpoint_files.open_files(self.folder) as files:
            self._unchanged = dict(files.contents)

    def try_out(
        self, file: str, entries: dict[str, Any], load: Callable[[Any], Any] | None = None
    ) -> bool:
        """Open the checkpoint with these entries in the file, and `load` what is then left of it.
        False if nothing is left of the entries, or the checkpoint is refused."""
        path = self.folder / file
        before = path.read_text(encoding="utf-8") if path.exists() else None
        content = json.loads(before) if before else {}
        path.write_text(json.dumps(content | entries), encoding="utf-8")
        kept = False
        try:
            with checkpoint_files.open_files(self.folder, "ada/hostile") as files:
                kept = files.contents[file] != self._unchanged.get(file, {})
                if kept and load is not None:
                    load(files)
                    self.loaded += len(entries.keys() - {"tokenizer_class"})
        except ModelError:
            kept = False
        path.unlink() if before is None else path.write_text(before, encoding="utf-8")
        if self._canary.was_opened():
            self.opened.append(f"{file}: {entries}")
        return kept

    def load_kept(
        self, file: str, names: set[str], value: Any, kind: str, load: Callable[[Any], Any]
    ) -> None:
        """Load a tokenizer of a class with each entry that is kept: all tokens at once, and each
        for itself only if the class refuses them together."""
        tokens = {name for name in names if name.endswith("_token")}
        groups = [tokens, *({name} for name in sorted(names - tokens))]
        for group in groups:
            entries = {"tokenizer_class": kind, **dict.fromkeys(sorted(group), value)}
            if group and not self.try_out(file, entries, load) and len(group) > 1:
                for name in sorted(group):
                    self.try_out(file, {"tokenizer_class": kind, name: value}, load)


def main(checkpoint: Path) -> None:
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    canary = Canary(Path.cwd())
    cases = Cases(checkpoint, canary)
    parameters = tokenizer_parameters()

    def tokenizer(files: Any) -> None:
        files.load(AutoTokenizer)

    def model(files: Any) -> None:
        files.load(AutoModelForSequenceClassification, config=files.load(AutoConfig))

    settings, special = "tokenizer_config.json", "special_tokens_map.json"
    for value in values(canary.path):
        names = set().union(*parameters.values())
        kept = {name for name in names if cases.try_out(settings, {name: value})}
        for kind, takes in parameters.items():
            cases.load_kept(settings, takes & kept, value, kind, tokenizer)
        for together in {frozenset(takes) for takes in parameters.values()}:
            cases.try_out(special, dict.fromkeys(together, value), tokenizer)
        for name in sorted(config_keys()):
            cases.try_out("config.json", {name: value}, model)
    # What the watch is worth: the library itself, on such a file, opens it.
    (cases.folder / settings).write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "vocab": str(canary.path)})
    )
    (cases.folder / "tokenizer.json").unlink(missing_ok=True)
    AutoTokenizer.from_pretrained(cases.folder)
    seen = canary.was_opened()
    shutil.rmtree(cases.folder.parent)
    print(json.dumps({"opened": cases.opened, "loaded": cases.loaded, "watch_works": seen}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
