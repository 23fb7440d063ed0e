"""The Python API from end to end."""

from __future__ import annotations

from pathlib import Path

import pytest

import finetune
from finetune import Predictor, RunConfig, RunStore
from finetune.errors import PublishError
from tests.support.hub import TOKEN, LoopbackHub


@pytest.mark.long
def test_a_notebook_trains_evaluates_predicts_and_pushes(
    toy_config: RunConfig, toy_pairs_folder: Path, store: RunStore, hub: LoopbackHub,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    files = {path.stem: path for path in sorted(toy_pairs_folder.glob("*.csv"))}
    config = toy_config.changed(dataset=store.uploads.add(files), max_steps=4)
    pairs = finetune.load_pairs(config, store)
    assert {"train", "validation"} <= set(pairs.splits)
    run = finetune.train(config, store)
    assert "4/4" in capfd.readouterr().err
    assert run.metrics["f1"] == run.state().best.metrics["f1"]  # type: ignore[union-attr]
    report = finetune.evaluate(run)
    assert report.analysis.scores["f1"].value == pytest.approx(run.metrics["f1"])
    answer = Predictor.from_run(run)("the cat sees a dog .", "a dog sees the cat .")
    assert answer.label in pairs.target.names
    with pytest.raises(PublishError):
        finetune.push_to_hub(run, "ada/pairs", token="no token of anybody")
    pushed = finetune.push_to_hub(run, "ada/pairs", private=True, token=TOKEN)
    assert pushed.commit
    assert hub.repos["model", "ada/pairs"].private
