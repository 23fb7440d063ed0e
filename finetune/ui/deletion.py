"""The question before runs or a search are deleted, and the deletion. A part of the Runs tab."""

from __future__ import annotations

import contextlib

import gradio as gr

from finetune.engines import registry
from finetune.errors import PublishError
from finetune.jobs import service
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.search import results
from finetune.search.study import Study, studies
from finetune.ui import auth
from finetune.ui.elements import button
from finetune.ui.feedback import QUICK
from finetune.ui.html import macro
from finetune.ui.i18n import gettext
from finetune.ui.panel import Panel, Updates


class Deletion(Panel):
    """The row with the question."""

    def draw(self) -> None:
        """Lay out the row, hidden, and wire what takes it away."""
        self.asked = gr.State("")  # ids of the runs, or of the search, that the question is about
        with gr.Row(visible=False, elem_id="delete-asked") as self.row:
            self.question = gr.HTML(elem_id="delete-question")
            text = gettext("Delete for good")
            self.confirm = button(text, "delete-sure", 130, variant="stop", size="md")
            self.keep = button(gettext("Keep it"), "delete-keep", 90, size="md")
        self.keep.click(lambda: gr.update(visible=False), None, self.row, **QUICK)

    def ask(self, store: RunStore, asked: str) -> Updates:
        """Ask to confirm deleting runs or a search.

        Args:
            asked: the id of a search, or those of runs with spaces between.
        """
        name = ""
        if study := _search(store, asked):
            runs = results.all_runs(store, study)
        else:
            runs = [store.get(run_id) for run_id in asked.split() or [asked]]
            name = ", ".join(run.title() for run in runs)
        kept = [engine.removal_note for run in runs for engine in registry.that_keep(run)]
        notes = dict.fromkeys(filter(None, kept))
        question = macro("run_details.html", "question")(name, len(runs), notes)
        return {self.row: gr.update(visible=True), self.question: question, self.asked: asked}

    def delete(self, store: RunStore, asked: str, oauth: gr.OAuthToken | None) -> None:
        """Delete what was asked about, whatever is open by now."""
        if study := _search(store, asked):
            runs = results.all_runs(store, study)
            results.delete_search(store, study, hub_token(store, runs, oauth))
            return
        for run in [store.get(run_id) for run_id in asked.split() or [asked]]:
            service.delete_run(store, run, hub_token(store, [run], oauth))


def _search(store: RunStore, asked: str) -> Study | None:
    return next((study for study in studies(store) if study.id == asked), None)


def hub_token(store: RunStore, runs: list[Run], oauth: gr.OAuthToken | None) -> str:
    """The visitor's Hub token for what runs have on the Hub. Empty if there is none: a token typed
    before may do."""
    with contextlib.suppress(PublishError):
        there = any(registry.is_remote(run) or registry.that_keep(run) for run in runs)
        return (there and auth.hub_token(store, "", oauth)) or ""
    return ""
