"""Sets what the libraries read from the environment: a cache that can be written, threads, and that
they print no progress bars, colours or reports of their own."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from finetune.environment import logs


def ensure_cache_folder() -> None:
    """Set what the libraries read once; call it before torch and Hugging Face's are imported.

    `HF_HOME` becomes a temporary folder where its own place cannot be written, as in a container
    without a home. The libraries' logs hold no signed address.
    """
    logs.hide_signatures()
    for name in ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS"):
        os.environ.setdefault(name, "1")  # events tell the progress; the first is transformers' too
    # What is missing or left over in a checkpoint we say ourselves, without colours.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    # OpenMP's threads spin for a moment only while they wait for each other, then sleep: those that
    # spin for long take the processor from the one they wait for as soon as anything else wants a
    # core; those that never spin have 0.63 of the speed on a Xeon with AMX.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    if not is_writable(Path(os.environ.get("HF_HOME") or user_cache() / "huggingface")):
        os.environ["HF_HOME"] = str(Path(tempfile.gettempdir()) / "finetune-huggingface")


def user_cache() -> Path:
    """The user's cache, which need not exist."""
    # Not `Path.expanduser`, which raises where nobody has a home.
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))


def is_writable(folder: Path) -> bool:
    """Whether a folder can be written, or made."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
