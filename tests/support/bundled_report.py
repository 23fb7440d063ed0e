"""The check of the bundled pairs that comes with them: `python -m tests.support.bundled_report`
writes it anew."""

import tempfile
from dataclasses import replace
from pathlib import Path

from finetune.config import RunConfig
from finetune.jobs import check


def made_anew(root):
    """Check the bundled pairs; what depends on the machine and what only Data shows is left out."""
    report = check.check_config(RunConfig(), root)
    return replace(report, corpus="", fingerprint="", seconds=0.0, findings=[])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        check.BUNDLED_REPORT.write_text(made_anew(Path(folder)).to_json(), encoding="utf-8")
