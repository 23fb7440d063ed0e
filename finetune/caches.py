"""Where the libraries keep what they download and make: a folder that can be written.

Standard library only; where runs are kept is `store`'s business.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from finetune import logs


def ensure() -> None:
    """Point `HF_HOME` to a temporary folder where its own place cannot be written, and let the
    libraries' logs hold no signed address.

    So it is for who has no home, as in a container. Call it before Hugging Face's libraries are
    imported: they read it once.
    """
    logs.hide_signatures()
    if not writable(Path(os.environ.get("HF_HOME") or cache() / "huggingface")):
        os.environ["HF_HOME"] = str(Path(tempfile.gettempdir()) / "finetune-huggingface")


def cache() -> Path:
    """The user's cache, which need not exist."""
    # Not `Path.expanduser`, which raises where nobody has a home.
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))


def writable(folder: Path) -> bool:
    """Whether a folder can be written, or made."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
