"""What a notebook uses, end to end, and how light `import finetune` is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import finetune
from finetune import Predictor, RunConfig, RunStore
from finetune.errors import PublishError, TrainingError
from finetune.jobs import service
from finetune.runs import events
from tests.conftest import TOKEN
from tests.support.hub import LoopbackHub

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def config(toy_config: RunConfig, store: RunStore, toy_pairs_folder: Path) -> RunConfig:
    files = {path.stem: path for path in sorted(toy_pairs_folder.glob("*.csv"))}
    return toy_config.changed(dataset=store.uploads.add(files), max_steps=4)


def test_importing_loads_nothing_heavy() -> None:
    code = (
        "import sys, time; began = time.perf_counter(); import finetune\n"
        "print(sorted({'torch', 'numpy', 'gradio', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
    assert set(dir(finetune)) == set(finetune.__all__)
    with pytest.raises(AttributeError, match="no attribute 'fit'"):
        _ = finetune.fit


def test_a_notebook_trains_evaluates_predicts_and_pushes(
    config: RunConfig, store: RunStore, hub: LoopbackHub, capfd: pytest.CaptureFixture[str]
) -> None:
    pairs = finetune.load_pairs(config, store)
    assert {"train", "validation"} <= set(pairs.splits)
    run = finetune.train(config, store)
    assert "4/4" in capfd.readouterr().err
    assert run.metrics["f1"] == store.summary(run).best.metrics["f1"]  # type: ignore[union-attr]
    report = finetune.evaluate(run)
    assert report.analysis.scores["f1"].value == pytest.approx(run.metrics["f1"])
    answer = Predictor.from_run(run)("the cat sees a dog .", "a dog sees the cat .")
    assert answer.label in pairs.labels
    with pytest.raises(PublishError):
        finetune.push_to_hub(run, "ada/pairs", token="no token of anybody")
    pushed = finetune.push_to_hub(run, "ada/pairs", private=True, token=TOKEN)
    assert pushed.commit
    assert hub.repos["model", "ada/pairs"].private


def test_a_run_that_fails_raises(
    config: RunConfig, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = store.create(config)
    run.append(events.Started(device="CPU"))
    run.append(events.Failed(error="The loss is not a number.", remedy="Lower it."))
    monkeypatch.setattr(service, "start_run", lambda *_: run)
    with pytest.raises(TrainingError, match="not a number") as caught:
        finetune.train(config, store, progress=False)
    assert caught.value.remedy == "Lower it."
