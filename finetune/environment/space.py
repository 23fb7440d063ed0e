"""What a Hugging Face Space has: its hardware, and whether what is written there stays.

Reads the environment, mounts and `nvidia-smi`; knows no page and loads no torch.

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
    """Where the app runs, as far as a visitor should know.

    Args:
        hardware: in words.
        zero: whether its GPU is lent to single functions for minutes only.
        gpus: how many it has for itself.
        lasting: whether runs are there after a restart.
    """

    hardware: str
    zero: bool
    gpus: int
    lasting: bool

    def notices(self) -> list[str]:
        """What to say at the head of the page, in plain sentences."""
        said = []
        if self.zero:
            said.append(
                "This Space runs on ZeroGPU, which lends a GPU to short functions only: a training "
                "is a process of its own and gets none. Training needs ordinary GPU hardware, such "
                "as t4-small; here it runs on the CPU, slowly."
            )
        elif not self.gpus:
            said.append(
                "This Space has no GPU, so training runs on the CPU: fine for the bundled pairs, "
                "slow for more. Its owner can choose GPU hardware, such as t4-small, in its "
                "settings."
            )
        if not self.lasting:
            said.append(
                "Runs are lost when this Space restarts: publish what you want to keep. Its owner "
                "can mount a bucket and set FINETUNE_RUNS to a folder in it."
            )
        return said


def current_space(runs: Path) -> Space | None:
    """The Space this app is, or None elsewhere.

    Args:
        runs: where runs are kept.
    """
    if not os.environ.get("SPACE_ID"):
        return None
    zero = os.environ.get("SPACES_ZERO_GPU", "").lower() in {"1", "t", "true"}
    gpus = 0 if zero else len(devices.list_accelerators())
    named = os.environ.get("ACCELERATOR", "")
    hardware = "ZeroGPU" if zero else named if named not in ("", "none") else (
        f"{gpus} GPU" if gpus else "CPU"
    )  # fmt: skip
    return Space(hardware, zero, gpus, is_mounted(runs))


def is_mounted(path: Path) -> bool:
    """Whether a folder lies on a disk of its own, not on that of the machine nor in memory."""
    if Path(tempfile.gettempdir()) in path.parents:
        return False
    existing = next(one for one in (path, *path.parents) if one.exists()).resolve()
    return any(os.path.ismount(one) for one in (existing, *existing.parents) if one != Path("/"))
