"""A search goes on wherever the process that wrote its journal was killed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from optuna.trial import TrialState

from finetune.config import Range, RunConfig
from finetune.jobs import scheduler
from finetune.runs.store import RunStore
from finetune.search import driver
from finetune.search.space import Budget
from finetune.search.study import Study, create_study

FORM = RunConfig(max_steps=50, learning_rate=5e-4, weight_decay=0.2)
SPACE = {"learning_rate": Range(1e-6, 1e-3, log=True), "weight_decay": Range(0.0, 0.3)}


@pytest.fixture(autouse=True)
def nothing_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "dispatch_queue", lambda store: None)


def test_a_trial_that_was_half_drawn_is_drawn_again(store: RunStore, tmp_path: Path) -> None:
    study = create_study(store, FORM, dict(SPACE), Budget(3))
    study.draw()
    journal = (study.folder / "trials.log").read_bytes()
    ends = [at + 1 for at, letter in enumerate(journal) if letter == ord("\n")]
    assert len(ends) > 4
    half = 0
    for end in ends[1:]:
        for cut in (end - 9, end):  # in a line, and after it
            again = RunStore(tmp_path / str(cut))
            shutil.copytree(store.root, again.root)
            (again.root / "studies" / study.id / "trials.log").write_bytes(journal[:cut])
            opened = Study(again.root / "studies" / study.id)
            for _ in range(3):
                assert driver.advance(again, opened)
            *failed, last = opened.trials()
            assert [trial.state for trial in failed] == [TrialState.FAIL] * len(failed)
            assert last.state == TrialState.RUNNING
            assert last.params == {"learning_rate": 5e-4, "weight_decay": 0.2}
            assert [run.id for run in again.runs()] == [last.user_attrs["run"]]
            half += len(failed)
    assert half > 0


def test_a_process_that_dies_while_it_writes_holds_nobody_up(store: RunStore) -> None:
    study = create_study(store, FORM, dict(SPACE), Budget(3))
    study.draw()
    code = """
        import os, signal, sys
        from pathlib import Path
        from finetune.search.study import JournalLock
        journal = Path(sys.argv[1])
        JournalLock(journal).acquire()
        with journal.open("ab", buffering=0) as file:
            file.write(b'{"op_code": 4, "wor')
        os.kill(os.getpid(), signal.SIGKILL)
        """
    words = [sys.executable, "-c", textwrap.dedent(code), str(study.folder / "trials.log")]
    assert subprocess.run(words, check=False).returncode == -9
    assert study.draw().number == 1
    assert [trial.number for trial in Study(study.folder).trials()] == [0, 1]
