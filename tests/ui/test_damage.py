"""Any file of a run's folder may be damaged: a fact and a remedy are said, and nothing else."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr
import httpx
import numpy as np
import pytest

from finetune.engines.base import EngineSpec, write_spec
from finetune.errors import FinetuneError
from finetune.evaluation import corrections, saved_predictions
from finetune.inference import quantized
from finetune.inference.quantized import QuantizationReport
from finetune.runs import events, pair_index
from finetune.runs.events import Phase
from finetune.runs.job_folder import JobFolder, forget_state
from finetune.runs.run import Run
from finetune.ui import feedback, form, live_updates
from finetune.ui.api import Api
from finetune.ui.tabs.runs import RunsTab, blank
from tests.support.damage import damages
from tests.support.evaluated_runs import FILTERS, LABELS, evaluated
from tests.support.server import Server
from tests.support.tabs import NOBODY, predict_tab, publish_tab, push_form

BATCH = events.FirstBatch(
    shapes={"input_ids": [8, 9]}, lengths=[9, 8], padded=0.1, positions=[0, 1, 2],
    tokens=[["[CLS]", "a", "[SEP]"]], ids=[[1, 2, 3]], attention_mask=[[1, 1, 1]],
    token_type_ids=[[0, 0, 0]], labels=["equivalent"], special=["[CLS]"], form="[CLS] a",
)  # fmt: skip
JOBS = {
    "evaluations/orders": "evaluate", "evaluations/test": "evaluate", "exports/onnx": "export",
    "pushes/latest": "push",
}  # fmt: skip
FILES = (
    "about.json", "best/config.json", "best/model.safetensors", "best/onnx/quantization.json",
    "best/tokenizer.json", "best/tokenizer_config.json", "config.json", "console.log",
    "corrections.json", "engine.json", "events.jsonl", "job.json", "process.json",
    "predictions/step-000008.npz", "predictions/step-000016.npz", "predictions/swapped.npz",
    "predictions/test.npz", "predictions/test.parquet", "predictions/validation.parquet",
    "seen/train", "exports/onnx/files/model.onnx", "pushes/latest/progress.json",
    "pushes/latest/result.json",
    *(f"{job}/{name}" for job in JOBS for name in ("events.jsonl", "job.json")),
)  # fmt: skip
# What reads these loads the model or the pairs.
HEAVY = (
    "best/model.safetensors", "best/tokenizer.json", "best/config.json", "config.json",
    "events.jsonl",
)  # fmt: skip


def furnished(server: Server, checkpoint: Path) -> Run:
    """A finished run with every kind of file that one may have."""
    run = evaluated(server, checkpoint, 1, 3.0)  # type: ignore[arg-type]
    started, prepared, *later = run.tail()[0]
    run.events_file.unlink()
    steps = (
        events.Stepped(
            step=step, epoch=step / 8, loss=1 / step, learning_rate=1e-5, samples_per_second=9.0,
            grad_norm=1.0,
        )
        for step in (1, 8, 16)
    )  # fmt: skip
    opened = events.TestSetOpened(step=16, metrics={"accuracy": 0.8, "f1": 0.8})
    planned = events.EvaluationsPlanned(interval=8)
    training = events.PhaseStarted(phase=Phase.TRAIN)
    for event in (started, prepared, BATCH, training, *steps, planned, *later, opened):
        run.append(event)
    _furnish_predictions(run)
    corrections.correct_label(run, 3, "equivalent", LABELS)
    pair_index.write_pair_index(run, {"train": np.arange(5), "validation": np.arange(3)})
    config = json.loads((run.best / "config.json").read_text(encoding="utf-8"))
    notes = {"threshold": 0.4, "positive": "equivalent", "temperature": 1.5, "step": 16}
    (run.best / "config.json").write_text(json.dumps(config | {"finetune": notes}))
    (run.best / "onnx").mkdir()
    scores = {"accuracy": (0.8, 0.8), "f1": (0.8, 0.8)}
    quantized.write_report(
        run.best,
        QuantizationReport("dynamic", 60, "fp32", scores, 0.5, (1.0, 2.0), "a processor", 16),
    )
    run.describe(name="a name", tags=("a", "b"), note="a note")
    write_spec(run, EngineSpec())
    run.log_file.write_text("a line\n")
    run.process_file.write_text('{"pid": 1, "born": 2.0, "devices": []}')
    _furnish_jobs(run)
    return run


def _furnish_predictions(run: Run) -> None:
    """The logits of both orders, and the opened test set."""
    logits = np.random.default_rng(0).normal(0, 1, (2, 60, 2)).astype(np.float32)
    swapped = saved_predictions.SwappedLogits(16, np.arange(60), *logits)
    saved_predictions.save_swapped_logits(run, swapped)
    table = saved_predictions.read_examples(run)
    assert table is not None
    labels = np.array(table.column("label").to_pylist()[:8])
    saved_predictions.save_logits(run, 16, logits[0][:8], labels, "test")
    saved_predictions.save_examples(run, "test", table.slice(0, 8))


def _furnish_jobs(run: Run) -> None:
    """Jobs that have ended, and what they left."""
    for folder, kind in JOBS.items():
        job = JobFolder(run.folder / folder)
        job.folder.mkdir(parents=True)
        job.describe_job(kind, "", {"step": 16, "push": {}, "approved": ["a"]})
        job.append(events.PhaseStarted(phase=Phase.EXPORT))
        job.append(events.Finished(step=0, seconds=0.0))
    (run.folder / "exports/onnx/files").mkdir()
    (run.folder / "exports/onnx/files/model.onnx").write_bytes(b"x")
    push = run.folder / "pushes/latest"
    (push / "progress.json").write_text('{"full": "ada/pairs", "sent": 3, "total": 5}')
    verified = {"problem": "", "difference": 0.0, "pairs": 3}
    pushed = {"url": "http://localhost/a/b", "commit": "abc", "created": True}
    (push / "result.json").write_text(json.dumps(pushed | {"verified": verified}))


class Uses:
    """All that reads a run's folder. Call it with a run: what is said to be our fault comes back,
    none if all is well."""

    def __init__(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        store = server.store
        self.client = server.client()
        self.runs, self.predict = RunsTab(store), predict_tab(store)
        self.publish, self.api = publish_tab(store), Api(store, self.predict.models)
        with gr.Blocks():
            self.runs.draw()
        stand_ins = [object() for _ in range(len(form.NAMES) + 2)]
        self.runs.filled = self.runs.evaluation.filled = stand_ins
        self.use, self.faults = "", list[str]()
        monkeypatch.setattr(feedback, "apology", self._note)
        monkeypatch.setattr(live_updates, "FRESH", 0.0)

    def _note(self, error: Exception) -> str:
        self.faults.append(f"{self.use}: {error!r:.200}")
        return "Our fault."

    def __call__(self, run: Run, heavy: bool = False) -> list[str]:
        self.faults = []
        asked = [self._routes(run, heavy), self._runs(run), self._part(run), self._others(run)]
        for self.use, ask in [entry for entries in asked for entry in entries]:
            try:
                answer = ask()
            except (FinetuneError, gr.Error):
                continue
            except Exception as error:
                self._note(error)
                continue
            if isinstance(answer, httpx.Response) and answer.status_code >= 500:
                self.faults.append(f"{self.use}: {answer.status_code}")
        if heavy:
            self.use = "ask"
            self.predict.on_ask(NOBODY, run.id, "the cat", "a dog", True, True, True)
        return self.faults

    def _routes(self, run: Run, heavy: bool) -> Iterator[tuple[str, Callable[[], Any]]]:
        kinds = ["model.zip", "onnx.zip", "events.csv", "config.json", "corrected.csv"]
        kinds += ["script.zip"] * heavy
        addresses = [f"watch/{run.id}", f"news/{run.id}", *(f"runs/{run.id}/{k}" for k in kinds)]
        for address in addresses:
            yield address, partial(self.client.get, f"finetune/{address}")

    def _runs(self, run: Run) -> Iterator[tuple[str, Callable[[], Any]]]:
        tab, view = self.runs, blank() | {"opened": run.id}
        for asked in ("", f"run={run.id}", f"compare={run.id},{run.id}"):
            yield asked, partial(tab.on_open, NOBODY, blank(), {}, "", asked)
        yield "runs' tick", lambda: tab.on_tick(NOBODY, view, {}, "")
        yield "delete?", lambda: tab.on_delete(NOBODY, view)
        yield "copy into the form", lambda: tab.on_clone(NOBODY, view)

    def _part(self, run: Run) -> Iterator[tuple[str, Callable[[], Any]]]:
        part, view, filters = self.runs.evaluation, {"opened": run.id}, FILTERS.values()
        for name in ("Evaluation", "Errors"):
            yield name, partial(part.on_part, NOBODY, view, name, *filters)
        suspected = ("suspected labels", "equivalent", "cat")
        yield "suspected", lambda: part.on_filter(NOBODY, view, *suspected)
        save = gr.EventData(None, {"do": "save", "what": "0.5", "run": run.id})
        yield "save", lambda: part.on_choice(NOBODY, save, view)
        label = gr.EventData(None, {"what": "3", "label": "not_equivalent", "run": run.id})
        yield "correct", lambda: part.on_table(NOBODY, label, view, *filters)

    def _others(self, run: Run) -> Iterator[tuple[str, Callable[[], Any]]]:
        publish, tick = self.publish, gr.EventData(None, {"wait": "+1"})
        pushed = push_form(publish, run.id)
        yield "publish", lambda: publish.on_open(NOBODY, None, f"run={run.id}")
        yield "card", lambda: publish.on_card(NOBODY, pushed)
        yield "push?", lambda: publish.on_check(NOBODY, pushed, None)
        yield "cancel", lambda: publish.on_action(NOBODY, run.id, "cancel")
        yield "publish's tick", lambda: publish.on_tick(NOBODY, run.id, tick)
        yield "predict", lambda: self.predict.on_open(NOBODY, None, f"run={run.id}")
        yield "predict's run", lambda: self.predict.on_run(NOBODY, run.id, None)
        for endpoint in (self.api.run_status, self.api.stop_run):
            yield endpoint.__name__, partial(endpoint, NOBODY, run.id)
        yield "list_runs", lambda: self.api.list_runs(NOBODY)


@pytest.mark.long
@pytest.mark.parametrize("some", [15])
def test_any_damage_is_a_fact_with_a_remedy(
    server: Server, toy_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, some: int
) -> None:
    """Never a fault of ours, and no route that fails: to each file some kinds of damage."""
    run, whole = furnished(server, toy_checkpoint), tmp_path / "whole"
    uses, faults = Uses(server, monkeypatch), {}
    assert uses(run, heavy=True) == []
    shutil.copytree(run.folder, whole)
    assert set(FILES) <= {str(path.relative_to(whole)) for path in whole.rglob("*")}
    for name in FILES:
        kinds = list(damages(whole / name))
        for what, content in random.Random(name).sample(kinds, min(len(kinds), some)):
            shutil.rmtree(run.folder)
            shutil.copytree(whole, run.folder)
            if content is None:
                (run.folder / name).unlink()
            else:
                (run.folder / name).write_bytes(content)
            if said := uses(run, heavy=name in HEAVY):
                faults[f"{name}, {what}"] = said
    assert faults == {}


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("predictions/step-000016.npz", "Train the run again to get them."),
        ("predictions/validation.parquet", "Delete it to see the figures without the sentences."),
    ],
)
def test_what_is_damaged_is_named(
    server: Server, toy_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, name: str, remedy: str
) -> None:
    run = furnished(server, toy_checkpoint)
    uses = Uses(server, monkeypatch)
    (run.folder / name).write_bytes(b"damaged")
    part = uses.runs.evaluation
    said = part.on_part(NOBODY, {"opened": run.id}, "Evaluation", *FILTERS.values())[part.body]
    assert f"{Path(name).name} of run {run.id} is damaged" in said
    assert remedy in said
    view = uses.client.get(f"finetune/watch/{run.id}").json()
    assert "Finished" in str(view["bar"])
    assert uses(run) == []


def test_without_its_pairs_a_run_says_what_is_missing(
    server: Server, toy_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the line in its events that names the classes has none."""
    run = furnished(server, toy_checkpoint)
    lines = run.events_file.read_text(encoding="utf-8")
    run.events_file.write_text(
        lines.replace('"labels":["not_equivalent","equivalent"]', '"labels":[]')
    )
    forget_state(run)  # as another process would not know it
    uses = Uses(server, monkeypatch)
    part = uses.runs.evaluation
    said = part.on_part(NOBODY, {"opened": run.id}, "Evaluation", *FILTERS.values())[part.body]
    assert "is damaged: it does not say what was trained on" in said
    answer = uses.client.get(f"finetune/runs/{run.id}/corrected.csv")
    assert (answer.status_code, "Train it anew." in answer.text) == (404, True)
    assert uses(run) == []
