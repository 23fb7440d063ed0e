"""Every kind of checkpoint goes the whole way: trained, resumed, evaluated, explained, exported,
quantised and published."""

from __future__ import annotations

from pathlib import Path

import pytest

from finetune.config import RunConfig
from finetune.evaluation import quantization, report
from finetune.hub import onnx, publish
from finetune.hub.push_plan import PushRequest
from finetune.inference.predictor import Predictor
from finetune.jobs import train
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from tests.support.families import FAMILIES, VARIANTS, write
from tests.support.hub import TOKEN, LoopbackHub
from tests.support.training import work_in_this_process

PAIR = ("the cat sees a dog .", "a cat sees the dog .")


@pytest.fixture
def run(
    request: pytest.FixtureRequest, store: RunStore, tmp_path: Path, toy_config: RunConfig,
    toy_pairs_folder: Path, monkeypatch: pytest.MonkeyPatch,
) -> Run:  # fmt: skip
    """A run of a family that was stopped in its middle, and then resumed to its end."""
    work_in_this_process(monkeypatch)
    files = {path.stem: path for path in toy_pairs_folder.glob("*.csv")}
    config = toy_config.changed(
        checkpoint=str(write(tmp_path / "checkpoint", request.param)), max_steps=6, eval_steps=2,
        save_steps=2, max_length=32, mixed_precision="no", dataset=store.uploads.add(files),
    )  # fmt: skip
    run = store.create(config)

    def stop(event: events.Event) -> None:
        if isinstance(event, events.Stepped) and event.step == 3:
            run.request_stop()

    train.carry_out_run(run, stop)
    assert run.state().status == "stopped", run.state().error
    run.stop_file.unlink()
    train.carry_out_run(run, lambda event: None)
    return run


@pytest.mark.long
@pytest.mark.parametrize("run", [*FAMILIES, *VARIANTS], indirect=True)
def test_it_goes_the_whole_way(
    run: Run, hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = run.state()
    assert summary.status == "finished", summary.error
    assert [event.step for event in summary.train] == [1, 2, 3, 4, 5, 6]
    analysis = report.evaluate_run(run, summary).analysis
    assert analysis is not None
    assert summary.prepared is not None
    label, explanation = Predictor.from_run(run).explain(*PAIR)
    assert label in summary.prepared.labels
    assert [word.text for word in explanation.words] == " ".join(PAIR).split()
    file = tmp_path / "model.onnx"
    assert onnx.export_onnx(run.best, file) <= onnx.TOLERANCE
    monkeypatch.setattr(quantization, "time_rounds", lambda measures: ([(2.0, 1.0)] * 8, True))
    quantised = quantization.quantize_model(run, file, run.best_step())
    assert quantised.pairs == summary.prepared.validation_examples
    pushed = publish.push_run(run, summary, PushRequest("pairs"), TOKEN)
    assert pushed.verified is not None
    assert not pushed.verified.problem
