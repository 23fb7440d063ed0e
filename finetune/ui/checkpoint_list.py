"""The catalogue of checkpoints by size and language, and what lies on this disk of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr
from markupsafe import Markup

from finetune.data import checkpoint_catalog, model_cache
from finetune.jobs import models
from finetune.runs.store import RunStore
from finetune.ui import elements, feedback
from finetune.ui.feedback import Updates, reports_errors_in
from finetune.ui.html import render
from finetune.ui.i18n import gettext


@dataclass
class CheckpointList:
    """Two filters, and a button for each checkpoint that they leave."""

    store: RunStore

    def draw(self) -> None:
        """Draw the list, folded away, in the current block."""
        title = gettext("Choose a checkpoint by size and language")
        sizes = gettext("Any size"), gettext("Small"), gettext("Base"), gettext("Large")
        languages = gettext("Any language"), gettext("English"), gettext("Other languages")
        with gr.Accordion(title, open=False, elem_id="checkpoints") as self.box:
            with gr.Row():
                self.size = gr.Dropdown(
                    list(zip(sizes, ("", "small", "base", "large"), strict=True)), value="",
                    label=gettext("Size"), elem_id="checkpoint-size", min_width=220,
                )  # fmt: skip
                self.languages = gr.Dropdown(
                    list(zip(languages, ("", "english", "other"), strict=True)), value="",
                    label=gettext("Language of the texts"), elem_id="checkpoint-languages",
                    min_width=220,
                )  # fmt: skip
            self.message = elements.notice("checkpoint-message")
            self.found = gr.HTML(elem_id="checkpoint-list", js_on_load=elements.CHOICES)

    def wire(self, chooser: Any) -> None:
        """Connect the events. A pressed name goes into the `chooser`."""
        self._chooser = chooser
        filters = [chooser, self.size, self.languages]
        outputs = [self.message, self.found, chooser]
        changes = [self.box.expand, *(control.change for control in filters)]
        gr.on(changes, self.on_filter, filters, outputs, **feedback.LATEST)
        self.found.select(self.on_press, filters, outputs, **feedback.QUICK)

    @reports_errors_in("message")
    def on_filter(self, store: RunStore, chosen: Any, size: str, languages: str) -> Updates:
        """List the checkpoints of a size and of some languages."""
        return {self.message: "", self.found: self._listed(store, chosen, size, languages)}

    @reports_errors_in("message")
    def on_press(
        self, store: RunStore, event: gr.EventData, chosen: Any, size: str, languages: str
    ) -> Updates:
        """Choose the checkpoint that was pressed, or remove it from this disk."""
        pressed = elements.event_data(event)
        name = str(pressed.get("value"))
        if pressed.get("field") != "remove":
            return {self._chooser: name, self.message: ""}
        removed = models.remove_model(store, name)
        text = gettext(
            "{name} is removed: {size:,.0f} MB are free. The Hub still has it.",
            name=removed.name, size=removed.bytes / 1e6,
        )  # fmt: skip
        return {
            self.message: feedback.good(text),
            self.found: self._listed(store, chosen, size, languages),
        }

    def _listed(self, store: RunStore, chosen: Any, size: str, languages: str) -> Markup:
        entries = list(checkpoint_catalog.matching(str(size), str(languages)))
        return render(
            "checkpoint_list.html",
            entries=entries,
            here={entry.name for entry in entries if models.is_downloaded(entry.name)},
            chosen=chosen,
            cached=model_cache.list_models() if models.may_remove(store) else [],
        )
