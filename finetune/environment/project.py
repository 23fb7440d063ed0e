"""The folder of this project, and the module path of its child processes."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent  # holds `finetune/` and `assets/`


def python_path() -> str:
    """`PYTHONPATH` of a child process in any folder; this project comes first."""
    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return os.pathsep.join(map(os.path.abspath, paths))
