"""Which checkpoint first: the form of a probe, its progress and its ranking."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr

from finetune import owners
from finetune.config import BUNDLED_CHECKPOINT, DATA_FIELDS
from finetune.data import checkpoint_catalog
from finetune.jobs import probe
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED
from finetune.ui import elements, feedback, form
from finetune.ui.feedback import Updates, reports_errors_in
from finetune.ui.html import macro
from finetune.ui.i18n import gettext

_FIELDS = (*DATA_FIELDS, "checkpoint", "max_length")  # that a probe depends on


@dataclass
class ProbeForm:
    """The choice of checkpoints to compare, and what came of it."""

    store: RunStore

    def draw(self) -> None:
        """Draw the controls in the current block, folded away."""
        title = gettext("Which checkpoint first?")
        with gr.Accordion(title, open=False, elem_id="probe"):
            text = gettext(
                "Each reads up to 1,000 of your training pairs once, and a linear model learns "
                "from what it makes of them. That takes less time than training, and tells which "
                "one suits your pairs. If two are close, training may rank them the other way "
                "round."
            )
            elements.note(text)
            self.names = gr.Dropdown(
                [(entry.label, entry.name) for entry in checkpoint_catalog.CHECKPOINTS],
                value=[BUNDLED_CHECKPOINT], multiselect=True, elem_id="probe-names",
                max_choices=probe.MOST, allow_custom_value=owners.policy().any_checkpoint,
                label=gettext("Checkpoints to compare"),
                info=gettext("Two or more. Those that are not on this machine are fetched first."),
            )  # fmt: skip
            self.start = gr.Button(gettext("Compare on these pairs"), elem_id="probe-start")
            self.message = elements.notice("probe-message")
            self.result = gr.HTML(elem_id="probe-result", js_on_load=elements.CHOICES)
        self.poller = elements.polling_element(1)
        self.job = gr.State("")

    def wire(self, controls: Mapping[str, Any]) -> None:
        """Connect the events; a button in the ranking fills `checkpoint` of the form's controls."""
        self._checkpoint, quick = controls["checkpoint"], feedback.QUICK
        everything = elements.components(self)
        chosen = [self.names, *(controls[name] for name in _FIELDS)]
        self.start.click(self.on_start, chosen, everything, **quick)
        self.poller.submit(self.on_tick, self.job, everything, **quick)
        pressed = [*everything, self._checkpoint]
        self.result.select(self.on_press, self.job, pressed, **quick)

    @reports_errors_in("message")
    def on_start(self, store: RunStore, names: Any, *values: Any) -> Updates:
        """Begin the probe, or show the one that was made of the same."""
        names = [str(name) for name in names] if isinstance(names, list) else []
        job = probe.start_probe(store, form.read(values, _FIELDS), names)
        return {
            self.message: "",
            self.job: job.id,
            self.result: macro("probe.html", "shown")(job.state()),
            self.poller: elements.start_polling(),
        }

    @reports_errors_in("message")
    def on_tick(self, store: RunStore, job_id: str, event: gr.EventData) -> Updates:
        """Show the probe's progress, and its ranking once it has ended."""
        state = probe.get_probe(store, job_id).state()
        updates: Updates = {self.result: macro("probe.html", "shown")(state)}
        if state.status in ENDED:
            updates[self.poller] = elements.stop_polling(event)
        return updates

    @reports_errors_in("message")
    def on_press(self, store: RunStore, job_id: str, event: gr.EventData) -> Updates:
        """Put the pressed checkpoint into the form, or stop the probe."""
        choice = elements.event_data(event)
        if choice.get("field") == "stop":
            probe.get_probe(store, job_id).request_stop()
            return {self.message: feedback.note(gettext("Stopping after this one."))}
        text = gettext("The checkpoint is in the form. Press Train to start.")
        return {self._checkpoint: choice.get("value"), self.message: feedback.note(text)}
