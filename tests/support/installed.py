"""What an installed package brings, put on the path of this process and of its children."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def install(folder: Path, group: str, brought: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a class known under an entry point's group, as an installed package would."""
    package = brought.__module__.rpartition(".")[2]
    information = folder / f"{package}-1.0.dist-info"
    information.mkdir(parents=True)
    about = f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0"
    (information / "METADATA").write_text(about)
    entry = f"{package} = {brought.__module__}:{brought.__name__}"
    (information / "entry_points.txt").write_text(f"[{group}]\n{entry}\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
