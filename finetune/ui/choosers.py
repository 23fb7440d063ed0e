"""Choosers of a checkpoint (by size, by a probe), of a name on the Hub, and of a tuned model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gradio as gr

from finetune import owners
from finetune.config import BUNDLED_CHECKPOINT, DATA_FIELDS
from finetune.data import checkpoint_catalog, checkpoints, hub_access, model_cache
from finetune.errors import FinetuneError
from finetune.evaluation import report
from finetune.hub_errors import Kind
from finetune.jobs import memory, probe, service
from finetune.runs.run import Run
from finetune.runs.store import RunStore, bundles
from finetune.runs.summary import ENDED, ColumnNames
from finetune.ui import elements, feedback, form
from finetune.ui.html import fixed, in_words, macro, render
from finetune.ui.i18n import gettext
from finetune.ui.panel import Panel, Pressed, Updates, handler

if TYPE_CHECKING:
    from finetune.inference.predictor import ModelCache, Predictor

_PROBED = (*DATA_FIELDS, "checkpoint", "max_length")  # fields that a probe depends on


class CheckpointList(Panel):
    """Two filters, and a button for each checkpoint that they leave."""

    offline = False  # True if the Hub did not answer when the page was last opened

    def draw(self) -> gr.Accordion:
        """Draw the list in the current block. Returns the fold that it is in."""
        title, language = "Choose another model", "Language of the texts"
        sizes = [("Any size", ""), ("Small", "small"), ("Base", "base"), ("Large", "large")]
        those = [("Any language", ""), ("English", "english"), ("Other languages", "other")]
        self.box = gr.Accordion(title, open=False, elem_id="checkpoints")
        with self.box:
            with gr.Row():
                self.size = elements.dropdown(sizes, "Size", "checkpoint-size", 220, value="")
                self.languages = elements.dropdown(
                    those, language, "checkpoint-languages", 220, value=""
                )
            self.message = elements.notice("checkpoint-message")
            self.found = gr.HTML(elem_id="checkpoint-list", js_on_load=elements.CHOICES)
        return self.box

    def wire(self, chooser: Any) -> None:
        """Connect the events. A pressed name goes into the `chooser`."""
        self.chosen = chooser
        self.connect()

    @handler("box.expand", "chosen.change", "size.change", "languages.change", latest=True)
    def on_filter(self, store: RunStore, chosen: Any, size: str, languages: str) -> Updates:
        """List the checkpoints of a size and of some languages."""
        return {self.message: ""} | self._listed(store, chosen, size, languages)

    @handler("found.select")
    def on_press(
        self, store: RunStore, pressed: Pressed, chosen: Any, size: str, languages: str
    ) -> Updates:
        """Choose the checkpoint that was pressed, or remove it from this disk."""
        name = str(pressed.get("value"))
        if pressed.get("field") != "remove":
            return {self.chosen: name, self.message: ""}
        removed = memory.remove_model(store, name)
        text = gettext(
            "{name} is removed: {size:,.0f} MB are free. The Hub still has it.",
            name=removed.name, size=removed.bytes / 1e6,
        )  # fmt: skip
        return {self.message: feedback.good(text)} | self._listed(store, chosen, size, languages)

    def _listed(self, store: RunStore, chosen: Any, size: str, languages: str) -> Updates:
        entries = list(checkpoint_catalog.matching(str(size), str(languages)))
        found = render(
            "checkpoint_list.html",
            entries=entries,
            here={entry.name for entry in entries if memory.read_shape(entry.name)},
            offline=self.offline,
            chosen=chosen,
            cached=model_cache.list_models() if memory.may_remove(store) else [],
        )
        return {self.found: found}

    def choices(self) -> list[tuple[str, str]]:
        """The choices of all checkpoints as (label, name), with a mark on those that lie on the Hub
        alone."""
        mark = gettext("needs the Hub")
        return [
            (entry.label if memory.read_shape(entry.name) else f"{entry.label} \u00b7 {mark}",
             entry.name)
            for entry in checkpoint_catalog.CHECKPOINTS
        ]  # fmt: skip


class ProbeForm(Panel):
    """The choice of checkpoints to compare, and what came of it."""

    def draw(self) -> None:
        with gr.Accordion("Which one suits these texts?", open=False, elem_id="probe"):
            elements.note(
                "Each reads up to 1,000 of your training rows once, and a linear model learns "
                "from what it makes of them. That takes less time than training, and tells which "
                "one suits your texts. If two are close, training may rank them the other way "
                "round."
            )
            self.names = gr.Dropdown(
                [(entry.label, entry.name) for entry in checkpoint_catalog.CHECKPOINTS],
                value=[BUNDLED_CHECKPOINT], multiselect=True, elem_id="probe-names",
                max_choices=probe.MOST, allow_custom_value=owners.policy().any_checkpoint,
                label="Checkpoints to compare",
                info="Two or more. Those that are not on this machine are fetched first.",
            )  # fmt: skip
            self.start = gr.Button("Compare on these rows", elem_id="probe-start")
            self.message = elements.notice("probe-message")
            self.result = gr.HTML(elem_id="probe-result", js_on_load=elements.CHOICES)
        self.poller = elements.polling_element(1)
        self.job_id = gr.State("")

    def wire(self, controls: Mapping[str, Any]) -> None:
        """Connect the events; a button in the ranking fills `checkpoint` of the form's controls."""
        self.checkpoint = controls["checkpoint"]
        changes = [controls[name].change for name in _PROBED if name != "checkpoint"]
        shown = [self.result, self.poller]  # of other rows
        end = "(wait) => ['', `-${String(wait ?? '').slice(1)}`]"
        gr.on(changes, None, self.poller, shown, js=end, **feedback.QUICK)
        self.values = [controls[name] for name in _PROBED]
        self.connect()

    @handler("start.click")
    def on_start(self, store: RunStore, names: Any, *values: Any) -> Updates:
        """Begin the probe, or show the one that was made of the same."""
        names = [str(name) for name in names] if isinstance(names, list) else []
        job = probe.start_probe(store, form.read(values, _PROBED), names)
        return {self.message: "", self.job_id: job.id} | self._shown(job)

    @handler("poller.submit")
    def on_tick(self, store: RunStore, job_id: str) -> Updates:
        """Show the probe's progress, and its ranking once it has ended."""
        return self._shown(probe.ProbeJob.find(store, job_id))

    def _shown(self, job: probe.ProbeJob) -> Updates:
        state = job.state()
        shown = macro("probe.html", "shown")(state, job.report)
        return {self.result: shown, self.poller: state.status not in ENDED}

    @handler("result.select")
    def on_press(self, store: RunStore, job_id: str, pressed: Pressed) -> Updates:
        """Put the pressed checkpoint into the form, or stop the probe."""
        if pressed.get("field") == "stop":
            probe.ProbeJob.find(store, job_id).request_stop()
            return {self.message: feedback.note(gettext("Stopping after this one."))}
        text = gettext("The checkpoint is in the form. Press Train to start.")
        return {self.checkpoint: pressed.get("value"), self.message: feedback.note(text)}


@dataclass
class HubSearch(Panel):
    """The search box, and its results as buttons."""

    kind: Kind

    def draw(self) -> None:
        text = f"Find a {self.kind} on the Hub by name"
        self.box = elements.text_box(text, f"find-{self.kind}")
        self.results = gr.HTML(
            elem_id=f"hub-{self.kind}s", elem_classes="ft-if-hits", js_on_load=elements.CHOICES
        )

    def wire(self, choosers: Sequence[Any], cleared: Mapping[Any, Any]) -> Any:
        """Connect the events. A pressed name goes into the `choosers`, and the components of
        `cleared` get their values. Returns that event."""
        self.choosers, self.cleared = [*choosers], [*cleared]
        self._blank = dict(cleared)
        return self.connect()["on_choose"]

    @handler("box.input", errors_in="results", latest=True)
    def on_search(self, store: RunStore, box: str) -> Updates:
        """Show the repositories whose names contain the text."""
        text = str(box).strip()[:100]
        hits = hub_access.search(self.kind, text) if text else []
        return {self.results: macro("hub_search.html", "results")(self.kind, text, hits)}

    @handler("results.select", errors_in="results")
    def on_choose(self, store: RunStore, pressed: Pressed) -> Updates:
        """Choose the name that was pressed."""
        chosen = dict.fromkeys(self.choosers, pressed.get("value"))
        return chosen | self._blank | dict.fromkeys((self.results, self.box), "")


def no_model(elem_id: str) -> gr.HTML:
    """Hint in place of a model's controls while there is no model; filled by `choices`."""
    return gr.HTML(elem_id=elem_id, js_on_load=elements.TAB_LINKS, visible=False)


def choices(
    store: RunStore, current: str | None, asked: str | None = None, ended: bool = False
) -> tuple[list[dict[str, Any]], str | None]:
    """Return the updates of a dropdown of the models, one for each bundle, and of `no_model`, and
    the run that is selected: the one `asked` for by an address, else `current`, else the newest. An
    unchanged selection is not sent, since the person may choose another meanwhile. With `ended`,
    one that is still worked on is offered but not selected by default; without, a bundle's other
    run that is wanted is, too. Raises NoSuchRun if `asked` is no run."""
    wanted = store.get(asked).id if asked else current
    at_work = {
        each.bundle() or each.id for each in store.runs() if each.state().status not in ENDED
    }
    options, settled = [], []
    for name, run in models(store, "" if ended else wanted):
        summary = run.state()
        if (run.bundle() or run.id) not in at_work:
            settled.append(run.id)
        metric, score = summary.task.headline.name, gettext("not scored")
        kept = report.kept_metrics(run, summary).get(metric)
        if kept is not None:
            score = f"{in_words(metric, summary.classes)} {fixed(kept)}"
        options.append((f"{name} \u00b7 {score}", run.id))
    ids = [run_id for _, run_id in options]
    value = wanted if wanted in ids else next(iter(settled if ended else ids), None)
    changed = {} if value == current else {"value": value}
    chooser = gr.update(choices=options, visible=bool(ids), **changed)
    hint = macro("model_chooser.html", "empty")()
    return [chooser, gr.update(value=hint, visible=not ids)], value


def models(store: RunStore, besides: str | None = None) -> Iterator[tuple[str, Run]]:
    """Yield the name and the run of each model that can be chosen, the newest first; and the run
    with the id `besides`, if its bundle has another model."""
    for bundle in bundles(store.runs()):
        if (model := bundle.model()) is not None:
            own = gettext("{name}, its best run", name=bundle.name)
            yield own if bundle.is_picked else bundle.name, model
        for run in bundle.runs:
            if run.id == besides and run.has_model() and run is not model:
                yield run.title(), run


def columns(store: RunStore, run_id: str | None) -> ColumnNames:
    """The columns a visitor's run was trained on; default names if it is gone."""
    with suppress(FinetuneError):
        return store.get(run_id).state().columns
    return ColumnNames()


class Models:
    """Loaded models of all runs of a store, shared by the tab and the endpoints."""

    def __init__(self, store: RunStore) -> None:
        self.store = store
        self._cache: ModelCache | None = None

    def using(self, store: RunStore, run_id: str | None) -> AbstractContextManager[Predictor]:
        """Lend the model of a run in the visitor's `store` to a `with` block."""
        import torch

        from finetune.inference.predictor import ModelCache

        if self._cache is None:
            self._cache = ModelCache()
        # A training has the accelerator to itself.
        training = torch.cuda.is_available() and service.active_run(self.store.everyone)
        device = "cpu" if training else ""
        run = store.get(run_id)
        paired = run.state().paired
        return self._cache.using(run.best, checkpoints.length_of(run.folder), paired, device)
