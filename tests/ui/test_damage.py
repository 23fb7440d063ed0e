"""Any file of a run's folder may be damaged: a fact and a remedy are said, and nothing else."""

import json
import random
import re
import shutil
from functools import partial

import gradio as gr
import httpx
import pytest

from finetune.engines.base import EngineSpec, write_spec
from finetune.errors import FinetuneError
from finetune.evaluation import corrections
from finetune.inference import decision_rule
from finetune.runs import events
from finetune.runs.events import Phase
from finetune.runs.job_folder import JobFolder, forget_state
from finetune.runs.store import RunStore
from finetune.ui import feedback, form, live_updates
from finetune.ui.api import Api
from finetune.ui.run_view import blank
from finetune.ui.tabs.runs import RunsTab
from tests.support import toy_runs
from tests.support.damage import damages
from tests.support.made_runs import FILTERS
from tests.support.tabs import NOBODY, predict_tab, publish_tab, push_form

JOBS = {
    "evaluations/orders": "evaluate", "evaluations/test": "evaluate", "exports/onnx": "export",
    "pushes/latest": "push",
}  # fmt: skip
# What reads these loads the model or the pairs.
HEAVY = ("model.safetensors", "tokenizer.json", "config.json", "events.jsonl")


@pytest.fixture
def run(server, trained):
    """A trained run with every kind of file that one may have."""
    of = toy_runs.runs_by_name(RunStore(trained.folder / "runs"))[toy_runs.CLASSES]
    shutil.copytree(of.folder, server.store.root / of.id)
    run = server.store.get(of.id)
    run.append(events.TestSetOpened(step=30, metrics={"accuracy": 0.8, "f1": 0.8}))
    corrections.correct_label(run, 3, "yes", ["no", "yes"])
    decision_rule.write_rule(run.best, threshold=0.4, positive="yes")
    run.describe(name="a name", tags=("a", "b"), note="a note")
    write_spec(run, EngineSpec())
    run.process_file.write_text('{"pid": 1, "born": 2.0, "devices": []}')
    for folder, kind in JOBS.items():  # jobs that have ended, and what they left
        job = JobFolder(run.folder / folder)
        job.folder.mkdir(parents=True, exist_ok=True)
        job.describe_job(kind, "", {"step": 30, "push": {}, "approved": ["a"]})
        job.append(events.PhaseStarted(phase=Phase.EXPORT))
        job.append(events.Finished(step=0, seconds=0.0))
    (run.folder / "exports/onnx/files").mkdir()
    (run.folder / "exports/onnx/files/model.onnx").write_bytes(b"x")
    push = run.folder / "pushes/latest"
    (push / "progress.json").write_text('{"full": "ada/pairs", "sent": 3, "total": 5}')
    verified = {"problem": "", "difference": 0.0, "pairs": 3}
    pushed = {"url": "http://localhost/a/b", "commit": "abc", "created": True}
    (push / "result.json").write_text(json.dumps(pushed | {"verified": verified}))
    return run


class Uses:
    """All that reads a run's folder. Call it with a run: what is said to be our fault comes back,
    none if all is well."""

    def __init__(self, server, monkeypatch):
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

    def _note(self, error):
        self.faults.append(f"{self.use}: {error!r:.200}")
        return "Our fault."

    def __call__(self, run, heavy=False):
        self.faults = []
        for use, ask in self._asked(run, heavy):
            self.use = use
            try:
                answer = ask()
            except (FinetuneError, gr.Error):
                continue
            except Exception as error:
                self._note(error)
                continue
            if isinstance(answer, httpx.Response) and answer.status_code >= 500:
                self.faults.append(f"{self.use}: {answer.status_code}")
        return self.faults

    def _asked(self, run, heavy):
        kinds = ["model.zip", "onnx.zip", "events.csv", "config.json", "corrected.csv"]
        kinds += ["script.zip"] * heavy
        for address in (
            f"watch/{run.id}",
            f"news/{run.id}",
            *(f"runs/{run.id}/{k}" for k in kinds),
        ):
            yield address, partial(self.client.get, f"finetune/{address}")
        tab, view = self.runs, blank() | {"opened": run.id}
        for asked in ("", f"run={run.id}", f"compare={run.id},{run.id}"):
            yield asked, partial(tab.on_open, NOBODY, blank(), {}, "", asked)
        yield "runs' tick", lambda: tab.on_tick(NOBODY, view, {}, "")
        yield "delete?", lambda: tab.on_delete(NOBODY, view)
        yield "copy into the form", lambda: tab.on_clone(NOBODY, view)
        part, filters = tab.evaluation, FILTERS.values()
        for name in ("Evaluation", "Errors"):
            yield name, partial(part.on_part, NOBODY, view, name, *filters)
        suspected = ("suspected labels", "yes", "cat")
        yield "suspected", lambda: part.on_filter(NOBODY, view, *suspected)
        save = gr.EventData(None, {"do": "save", "what": "0.5", "run": run.id})
        yield "save", lambda: part.on_choice(NOBODY, save, view)
        label = gr.EventData(None, {"what": "3", "label": "no", "run": run.id})
        yield "correct", lambda: part.on_table(NOBODY, label, view, *filters)
        publish, tick = self.publish, gr.EventData(None, {"wait": "+1"})
        pushed = push_form(run.id)
        yield "publish", lambda: publish.on_open(NOBODY, None, f"run={run.id}")
        yield "card", lambda: publish.on_card(NOBODY, *pushed)
        yield "push?", lambda: publish.on_check(NOBODY, None, *pushed)
        yield "cancel", lambda: publish.on_action(NOBODY, run.id, "cancel")
        yield "publish's tick", lambda: publish.on_tick(NOBODY, run.id, tick)
        yield "predict", lambda: self.predict.on_open(NOBODY, None, f"run={run.id}")
        yield "predict's run", lambda: self.predict.on_run(NOBODY, run.id, None)
        for endpoint in map(self.api.answering, (self.api.run_status, self.api.stop_run)):
            yield endpoint.__name__, partial(endpoint, NOBODY, run.id)
        yield "list_runs", lambda: self.api.answering(self.api.list_runs)(NOBODY)
        if heavy:
            pair = ("the cat", "a dog", True, True, True)
            yield "ask", lambda: self.predict.on_ask(NOBODY, run.id, *pair)


@pytest.mark.long
def test_any_damage_is_a_fact_with_a_remedy(server, run, tmp_path, monkeypatch):
    """Never a fault of ours, and no route that fails: to each file some kinds of damage."""
    whole, uses = tmp_path / "whole", Uses(server, monkeypatch)
    faults = {}
    assert uses(run, heavy=True) == []
    shutil.copytree(run.folder, whole)
    for path in sorted(path for path in whole.rglob("*") if path.is_file()):
        name = path.relative_to(whole).as_posix()
        kinds = list(damages(path))
        for what, content in random.Random(name).sample(kinds, min(len(kinds), 3)):
            shutil.rmtree(run.folder)
            shutil.copytree(whole, run.folder)
            if content is None:
                (run.folder / name).unlink()
            else:
                (run.folder / name).write_bytes(content)
            if said := uses(run, heavy=path.name in HEAVY):
                faults[f"{name}, {what}"] = said
    assert faults == {}


def test_what_is_damaged_is_named(server, run, monkeypatch):
    uses = Uses(server, monkeypatch)

    def said():
        part, view = uses.runs.evaluation, {"opened": run.id}
        return str(part.on_part(NOBODY, view, "Evaluation", *FILTERS.values())[part.body])

    logits = sorted((run.folder / "predictions").glob("step-*.npz"))
    for files, remedy in (
        ([run.folder / "predictions/validation.parquet"], "Delete it to see the figures without"),
        (logits, "Train the run again to get them."),
    ):
        before = {file: file.read_bytes() for file in files}
        for file in files:
            file.write_bytes(b"damaged")
        assert f"of run {run.id} is damaged" in said()
        assert remedy in said()
        for file, content in before.items():
            file.write_bytes(content)
    lines = run.events_file.read_text(encoding="utf-8")
    run.events_file.write_text(re.sub('"labels": ?."no", ?"yes".', '"labels":[]', lines))
    forget_state(run)  # as another process would not know it
    assert "is damaged: it does not say what was trained on" in said()
    answer = uses.client.get(f"finetune/runs/{run.id}/corrected.csv")
    assert (answer.status_code, "Train it anew." in answer.text) == (404, True)
    assert uses(run) == []
