"""Scores a run's kept model anew, with the sentences swapped or on the sealed test set: the
worker and the command line."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path

from finetune.config import BUNDLED_CHECKPOINT
from finetune.data import catalog
from finetune.environment import caches, hub_connection
from finetune.errors import FinetuneError, StoreError
from finetune.evaluation.test_set import open_test_set, score_both_orders
from finetune.jobs import background
from finetune.runs import events
from finetune.runs.store import Run


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0 measured, 1 failed."""
    caches.ensure_cache_folder()
    parser = argparse.ArgumentParser(prog="python -m finetune evaluate", description=__doc__)
    parser.add_argument("--folder", type=Path, help="an assessment's folder, as the page makes it")
    parser.add_argument("--run", type=Path, help="a run folder")
    parser.add_argument("--open_test", action="store_true", help="open the test set")
    asked = parser.parse_args(arguments)
    _set_environment(Run(asked.folder.parent.parent if asked.folder else asked.run))
    if asked.folder:
        return _carry_out(Run(asked.folder), Run(asked.folder.parent.parent))
    try:
        (open_test_set if asked.open_test else score_both_orders)(Run(asked.run))
    except FinetuneError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    return 0


def _set_environment(run: Run) -> None:
    """Ask the Hub only for pairs that are its own, and only where it answers: the libraries read
    this when they are imported."""
    with contextlib.suppress(StoreError):
        needed = catalog.needs_hub(run.config().dataset, BUNDLED_CHECKPOINT)
        if not needed or not hub_connection.hub_is_reachable():
            os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"


def _carry_out(place: Run, run: Run) -> int:
    def work() -> events.Event:
        (open_test_set if place.id == "test" else score_both_orders)(run)
        return events.Finished(step=0, seconds=0.0)

    return background.run_job(place, "evaluate", work)


if __name__ == "__main__":
    sys.exit(main())
