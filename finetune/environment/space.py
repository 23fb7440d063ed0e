"""The Hugging Face Space the app runs on: its hardware, and whether what is written there stays.

Source: https://huggingface.co/docs/hub/spaces-overview (its environment variables) and
https://huggingface.co/docs/hub/spaces-zerogpu.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from finetune.environment import devices


@dataclass(frozen=True)
class Space:
    """A Space, as far as a visitor should know."""

    hardware: str  # in words
    zero: bool  # whether its GPU is lent to single functions for minutes only
    gpus: int  # how many it has for itself
    lasting: bool  # whether runs are there after a restart

    def notices(self) -> list[str]:
        """What to say at the head of the page, in plain sentences."""
        notices = []
        if self.zero:
            notices.append(
                "This Space runs on ZeroGPU, which lends a GPU to short functions only: a training "
                "is a process of its own and gets none. Training needs ordinary GPU hardware, such "
                "as t4-small; here it runs on the CPU, slowly."
            )
        elif not self.gpus:
            notices.append(
                "This Space has no GPU, so training runs on the CPU: fine for the bundled pairs, "
                "slow for more. Its owner can choose GPU hardware, such as t4-small, in its "
                "settings."
            )
        if not self.lasting:
            notices.append(
                "Runs are lost when this Space restarts: publish what you want to keep. Its owner "
                "can mount a bucket and set FINETUNE_RUNS to a folder in it."
            )
        return notices


def current_space(runs: Path) -> Space | None:
    """The Space this app is, or None elsewhere.

    Args:
        runs: where runs are kept.
    """
    if not os.environ.get("SPACE_ID"):
        return None
    lasting = is_mounted(runs)
    if os.environ.get("SPACES_ZERO_GPU", "").lower() in {"1", "t", "true"}:
        return Space("ZeroGPU", True, 0, lasting)
    gpus = len(devices.list_accelerators())
    hardware = os.environ.get("ACCELERATOR", "").replace("none", "")
    return Space(hardware or (f"{gpus} GPU" if gpus else "CPU"), False, gpus, lasting)


def is_mounted(path: Path) -> bool:
    """Whether a folder lies on a disk of its own, not on that of the machine nor in memory."""
    if Path(tempfile.gettempdir()) in path.parents:
        return False
    return any(map(os.path.ismount, [path, *path.parents][:-1]))
