"""A box that finds datasets or checkpoints of the Hub by name, if the Hub answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from finetune.data import hub_access
from finetune.hub_errors import Kind
from finetune.runs.store import RunStore
from finetune.ui import elements, feedback
from finetune.ui.feedback import Updates, reports_errors_in
from finetune.ui.html import macro
from finetune.ui.i18n import gettext


@dataclass
class HubSearch:
    """The search box, and its results as buttons."""

    store: RunStore
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
        self._choosers, self._cleared = choosers, dict(cleared)
        self.box.input(self.on_search, self.box, self.results, **feedback.LATEST)
        outputs = [self.box, self.results, *choosers, *cleared]
        return self.results.select(self.on_choose, None, outputs, **feedback.QUICK)

    @reports_errors_in("results")
    def on_search(self, store: RunStore, text: str) -> Updates:
        """Show the repositories whose names contain the text."""
        text = str(text).strip()[:100]
        hits = hub_access.search(self.kind, text) if text else []
        return {self.results: macro("hub_search.html", "results")(self.kind, text, hits)}

    @reports_errors_in("results")
    def on_choose(self, store: RunStore, event: gr.EventData) -> Updates:
        """Choose the name that was pressed."""
        name = elements.event_data(event).get("value")
        emptied = dict.fromkeys((self.results, self.box), "")
        return {**dict.fromkeys(self._choosers, name), **self._cleared, **emptied}
