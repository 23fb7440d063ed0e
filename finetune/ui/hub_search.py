"""A box that finds datasets or checkpoints of the Hub by name, if the Hub answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from finetune.data import hub_access
from finetune.hub_errors import Kind
from finetune.runs.store import RunStore
from finetune.ui import elements
from finetune.ui.html import macro
from finetune.ui.i18n import gettext
from finetune.ui.panel import Panel, Updates, handler


@dataclass
class HubSearch(Panel):
    """The search box, and its results as buttons."""

    kind: Kind

    def draw(self) -> None:
        """Draw the box in the current block."""
        label = gettext("Find a dataset on the Hub by name")
        if self.kind == "model":
            label = gettext("Find a checkpoint on the Hub by name")
        self.box = gr.Textbox(label=label, max_lines=1, elem_id=f"find-{self.kind}")
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
    def on_choose(self, store: RunStore, event: gr.EventData) -> Updates:
        """Choose the name that was pressed."""
        name = elements.event_data(event).get("value")
        emptied = dict.fromkeys((self.results, self.box), "")
        return {**dict.fromkeys(self.choosers, name), **self._blank, **emptied}
