"""The Hugging Face Space the app runs on: its hardware, and whether its storage persists.

Source: https://huggingface.co/docs/hub/spaces-overview (its environment variables) and
https://huggingface.co/docs/hub/spaces-zerogpu.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from finetune.environment import devices

ZERO_GPU = (
    "This Space runs on ZeroGPU, which lends a GPU to short functions only: a training is a "
    "process of its own and gets none. Training needs ordinary GPU hardware, such as t4-small; "
    "here it runs on the CPU, slowly."
)
NO_GPU = (
    "This Space has no GPU, so training runs on the CPU: fine for the bundled pairs, slow for "
    "more. Its owner can choose GPU hardware, such as t4-small, in its settings."
)
NOT_LASTING = (
    "Runs are lost when this Space restarts: publish what you want to keep. Its owner can mount a "
    "bucket and set FINETUNE_RUNS to a folder in it."
)


def describe_space(runs: Path) -> tuple[str, list[str]] | None:
    """The hardware of the Space that runs this app, and notices for its visitors; None outside a
    Space."""
    if not os.environ.get("SPACE_ID"):
        return None
    notices = [] if is_mounted(runs) else [NOT_LASTING]
    if os.environ.get("SPACES_ZERO_GPU", "").lower() in {"1", "t", "true"}:
        return "ZeroGPU", [ZERO_GPU, *notices]
    gpus = len(devices.list_accelerators())
    hardware = os.environ.get("ACCELERATOR", "").replace("none", "")
    if gpus:
        return hardware or f"{gpus} GPU", notices
    return hardware or "CPU", [NO_GPU, *notices]


def is_mounted(path: Path) -> bool:
    """True if a folder is on a mounted disk, and not on the machine's own disk or in memory."""
    if Path(tempfile.gettempdir()) in path.parents:
        return False
    return any(map(os.path.ismount, [path, *path.parents][:-1]))
