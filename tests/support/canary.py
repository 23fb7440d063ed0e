"""Loads hostile checkpoints in a process of its own and says which of them opened a file that is
none of theirs: `python -m tests.support.canary FOLDER` prints JSON, of all tokenizer classes that
transformers has.

The canary lies in the working folder. The kernel tells who opens it (inotify), for the tokenizers
library opens files without Python's knowledge.
"""

import contextlib
import ctypes
import inspect
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from finetune.data import checkpoint_files
from finetune.errors import ModelError

NAME = "canary.txt"
_IN_OPEN, _IN_NONBLOCK = 0x20, 0o4000
# What a configuration can hold beside its own, and what the libraries look for in one.
CONFIG = {
    "auto_map", "_name_or_path", "name_or_path", "tokenizer_class", "transformers_weights",
    "quantization_config", "attn_implementation", "dtype", "_attn_implementation",
    "base_model_name_or_path", "custom_pipelines", "adapter",
}  # fmt: skip
CLASS = "tokenizer_class"
# Words that the toy knows, so that a class that takes the file as its vocabulary is content.
TEXT = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhush\nsecret\ntoken\n"


def watched(path):
    """Lay the canary there. What comes back says if it was opened since it was last asked."""
    path.write_text(TEXT)
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(_IN_NONBLOCK)
    added = libc.inotify_add_watch(watch, str(path).encode(), _IN_OPEN)
    assert added > 0, os.strerror(ctypes.get_errno())

    def was_opened():
        try:
            return bool(os.read(watch, 2**16))
        except BlockingIOError:
            return False

    return was_opened


def values(canary):
    """The canary as a checkpoint's file could name it."""
    yield from (str(canary), NAME, [NAME], {"a": NAME}, f"file://{canary}")
    yield os.open(os.devnull, os.O_RDONLY)  # the number of an open file


def tokenizer_parameters():
    """The tokenizer classes of transformers that can be made here, and what each takes."""
    from transformers.models.auto import tokenization_auto as auto

    found = {}
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


class Cases:
    """A copy of a checkpoint, in one file of which entries are added, and what their loading
    opened. What is kept of an entry depends on nothing else in its file, so it is tried out once
    for all classes, and only what is kept is loaded."""

    def __init__(self, checkpoint, was_opened):
        self._was_opened, self.loaded = was_opened, 0
        self.opened = []
        self.folder = Path(shutil.copytree(checkpoint, Path(tempfile.mkdtemp()) / "toy"))
        with checkpoint_files.open_files(self.folder) as files:
            self._unchanged = dict(files.contents)

    def try_out(self, file, entries, load=None):
        """Open the checkpoint with these entries in the file, and `load` what is then left of it.
        False if nothing is left of the entries, or the checkpoint is refused."""
        path, kept = self.folder / file, False
        before = path.read_text(encoding="utf-8") if path.exists() else None
        path.write_text(json.dumps(json.loads(before or "{}") | entries), encoding="utf-8")
        opening = checkpoint_files.open_files(self.folder, "ada/hostile")
        with contextlib.suppress(ModelError), opening as files:
            kept = files.contents[file] != self._unchanged.get(file, {})
            if kept and load is not None:
                kept = False  # unless it loads
                load(files)
                self.loaded, kept = self.loaded + len(entries.keys() - {CLASS}), True
        path.unlink() if before is None else path.write_text(before, encoding="utf-8")
        if self._was_opened():
            self.opened.append(f"{file}: {entries}")
        return kept


def main(checkpoint):
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    was_opened = watched(canary := Path.cwd() / NAME)
    cases, parameters = Cases(checkpoint, was_opened), tokenizer_parameters()

    def tokenizer(files):
        files.load(AutoTokenizer)

    def model(files):
        files.load(AutoModelForSequenceClassification, config=files.load(AutoConfig))

    settings = "tokenizer_config.json"
    for value in values(canary):
        names = set().union(*parameters.values())
        kept = {name for name in names if cases.try_out(settings, {name: value})}
        for kind, takes in parameters.items():
            # All tokens at once, and each for itself only if the class refuses them together.
            tokens = sorted(name for name in takes & kept if name.endswith("_token"))
            groups = [tokens, *([name] for name in sorted(takes & kept - {*tokens}))]
            for group in filter(None, groups):
                entries = {CLASS: kind, **dict.fromkeys(group, value)}
                if not cases.try_out(settings, entries, tokenizer) and len(group) > 1:
                    for name in group:
                        cases.try_out(settings, {CLASS: kind, name: value}, tokenizer)
        for together in {frozenset(takes) for takes in parameters.values()}:
            cases.try_out("special_tokens_map.json", dict.fromkeys(together, value), tokenizer)
        for name in sorted(CONFIG | AutoConfig.from_pretrained(checkpoint).to_dict().keys()):
            cases.try_out("config.json", {name: value}, model)
    # What the watch is worth: the library itself, on such a file, opens it.
    (cases.folder / settings).write_text(json.dumps({CLASS: "BertTokenizer", "vocab": str(canary)}))
    (cases.folder / "tokenizer.json").unlink(missing_ok=True)
    AutoTokenizer.from_pretrained(cases.folder)
    seen = was_opened()
    shutil.rmtree(cases.folder.parent)
    print(json.dumps({"opened": cases.opened, "loaded": cases.loaded, "watch_works": seen}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
