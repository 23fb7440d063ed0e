"""Set environment variables that libraries read: a writable cache, threads, and no progress bars,
colours or reports."""

import os
import tempfile
from pathlib import Path

from finetune.environment import logs


def ensure_cache_folder() -> None:
    """Set the variables. Call this before importing torch and Hugging Face's libraries. `HF_HOME`
    becomes a temporary folder if its default is not writable, as in a container without a home
    folder. Signed URLs are kept out of the libraries' logs."""
    logs.hide_signatures()
    for name in ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS"):
        os.environ.setdefault(name, "1")  # events report progress; transformers reads the first
    # The app itself reports missing and unused weights of a checkpoint, without colours.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    # OpenMP's threads spin only briefly while they wait for each other, then sleep. Long spinning
    # on a busy machine takes cores from the thread that is waited for; without any spinning a Xeon
    # with AMX reaches 0.63 of the speed.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    if not is_writable(Path(os.environ.get("HF_HOME") or user_cache() / "huggingface")):
        os.environ["HF_HOME"] = str(Path(tempfile.gettempdir()) / "finetune-huggingface")


def user_cache() -> Path:
    """The user's cache folder, which need not exist."""
    # Not `Path.expanduser`, which raises if the user has no home.
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))


def is_writable(folder: Path) -> bool:
    """True if a folder can be written, or created."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
