"""Where runs are carried out, what that costs, and the consent to it: a part of the Train tab."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, NamedTuple

import gradio as gr

from finetune import owners
from finetune.engines import registry, spending
from finetune.engines.base import Ticket
from finetune.engines.options import HubJobOptions, make_ticket
from finetune.engines.registry import HUB_JOB, LOCAL, RAY
from finetune.errors import JobError
from finetune.jobs.cost import Estimate
from finetune.runs.store import RunStore
from finetune.ui import auth, elements, feedback
from finetune.ui.cost_view import rough_duration
from finetune.ui.feedback import Updates, reports_errors_in
from finetune.ui.html import macro
from finetune.ui.i18n import gettext

_USUAL = "t4-small"  # the flavor to begin with, where it is offered
_SHOWN, _HIDDEN = [["ft-engine"], ["ft-engine", "ft-unseen"]]


class Choice(NamedTuple):
    """The values of the controls, in the order of `EngineForm.inputs`."""

    engine: str = LOCAL
    flavor: str = ""
    minutes: Any = 0  # numbers as they were typed
    dollars_a_run: Any = 0
    dollars_a_day: Any = 0
    address: str = ""  # of a Ray cluster
    nodes: Any = 1
    agreed: bool = False
    prices: Mapping[str, float] = MappingProxyType({})  # US dollars an hour by flavor, as shown
    typed: str = ""  # a token

    def ticket(self, former: Ticket | None = None) -> Ticket:
        """The ticket that was chosen, with the options that the page does not show as they were in
        the `former` one; raises ConfigError for options that are wrong."""
        kept = former.options if former and former.engine == self.engine else {}
        if self.engine == RAY:
            return make_ticket(RAY, kept | {"address": self.address or "", "nodes": self.nodes})
        if self.engine != HUB_JOB:
            return make_ticket(self.engine or LOCAL, {})
        names = ("flavor", "minutes", "dollars_a_run", "dollars_a_day")
        values = kept | {name: elements.decimal(getattr(self, name)) for name in names}
        price = (self.prices or {}).get(self.flavor or "", 0.0)
        return make_ticket(HUB_JOB, values | {"flavor": self.flavor or "", "price": price})


@dataclass
class EngineForm:
    """The choice of an engine, and of a Hugging Face Job's machine and limits."""

    store: RunStore

    def draw(self) -> None:
        """Lay out the controls where it is called, and wire those that need no others."""
        offered = {**registry.LABELS}
        if owners.is_shared() and not os.environ.get("RAY_ADDRESS"):
            del offered[RAY]  # a visitor names no address
        labels = [(gettext(label), name) for name, label in offered.items()]
        self.engine = gr.Dropdown(
            labels, value=LOCAL, label=gettext("Train on"), elem_id="engine", interactive=True
        )
        self._draw_job()
        self._draw_cluster()
        self.warning = elements.notice("engine-warning")
        self.prices = gr.State({})
        self.inputs: list[Any] = [
            self.engine, self.flavor, self.minutes, self.a_run, self.a_day, self.address,
            self.nodes, self.agreed, self.prices, self.token,
        ]  # fmt: skip
        self.outputs = elements.components(self)
        self._wire()

    def _draw_job(self) -> None:
        usual = HubJobOptions()
        with gr.Column(elem_id="job-options", elem_classes=_HIDDEN) as self.options:
            with gr.Row():
                self.flavor = gr.Dropdown(
                    [], label=gettext("Machine"), elem_id="flavor", interactive=True,
                    allow_custom_value=True, min_width=200, scale=2,
                )  # fmt: skip
                self.minutes = elements.number_box(
                    usual.minutes, label=gettext("Minutes at most"), elem_id="job-minutes",
                    min_width=130,
                )  # fmt: skip
            with gr.Row():
                self.a_run = elements.number_box(
                    usual.dollars_a_run, label=gettext("Dollars a run at most"),
                    elem_id="dollars-run", min_width=130,
                )  # fmt: skip
                self.a_day = elements.number_box(
                    usual.dollars_a_day, label=gettext("Dollars a day at most"),
                    elem_id="dollars-day", min_width=130,
                )  # fmt: skip
            info = gettext("One that may run jobs; empty for that of `hf auth login`.")
            if auth.has_sign_in():
                info = gettext("One that may run jobs; empty for your sign-in.")
            self.token = gr.Textbox(
                label=gettext("Token for the job"), info=info, type="password",
                elem_id="job-token", max_lines=1,
            )  # fmt: skip
            self.price = elements.notice("job-price")
            self.agreed = gr.Checkbox(False, label=gettext("I agree to pay"), elem_id="job-agreed")

    def _draw_cluster(self) -> None:
        with gr.Row(elem_id="ray-options", elem_classes=_HIDDEN) as self.cluster:
            self.address = gr.Textbox(
                label=gettext("Address of the cluster"), placeholder="HOST:6379", max_lines=1,
                elem_id="ray-address", info=gettext("Empty for that of RAY_ADDRESS."),
                visible=not owners.is_shared(), min_width=200,
            )  # fmt: skip
            self.nodes = elements.number_box(
                1, label=gettext("Machines"), elem_id="ray-nodes", min_width=130,
                info=gettext("Over which its processes are spread."),
            )  # fmt: skip

    def _wire(self) -> None:
        updates = json.dumps([gr.update(elem_classes=classes) for classes in (_HIDDEN, _SHOWN)])
        own = f"(engine) => ['{HUB_JOB}', '{RAY}'].map((name) => ({updates})[+(engine === name)])"
        shown = [self.options, self.cluster]
        self.engine.change(None, self.engine, shown, js=own, **feedback.QUICK)
        asking = [self.engine.change, self.token.change]
        inputs = [self.engine, self.token, self.flavor]
        gr.on(asking, self.on_engine, inputs, self.outputs, **feedback.LATEST)
        boxes = (self.flavor, self.minutes, self.a_run, self.a_day, self.address, self.nodes)
        # What is agreed to is the price that is shown.
        self.changes = [self.engine.change, *(box.change for box in boxes)]
        gr.on(self.changes, None, None, self.agreed, js="() => false", **feedback.QUICK)

    @reports_errors_in("price")
    def on_engine(
        self,
        store: RunStore,
        engine: str,
        typed: str = "",
        chosen: str | None = None,
        oauth: gr.OAuthToken | None = None,
    ) -> Updates:
        """Another engine was chosen, or a token typed: its machines with their prices. The `chosen`
        machine stays."""
        shown = {self.price: "", self.warning: _missing_ray() if engine == RAY else ""}
        if engine != HUB_JOB:
            return shown
        try:
            from finetune.engines.hub_jobs import HubJobs

            flavors = HubJobs(auth.hub_token(store, typed, oauth)).flavors()
        except Exception as error:
            return shown | {self.price: feedback.show_errors(error)}
        names = [flavor.name for flavor in flavors]
        usual = _USUAL if _USUAL in names else next(iter(names), None)
        changed: dict[str, Any] = {} if chosen in names else {"value": usual}
        choices = [(f"{f.name} \u00b7 ${f.price:.2f}/h \u00b7 {f.label}", f.name) for f in flavors]
        return shown | {
            self.flavor: gr.update(choices=choices, **changed),
            self.prices: {flavor.name: flavor.price for flavor in flavors},
        }

    def priced(self, store: RunStore, choice: Choice, estimate: Estimate, runs: int) -> Updates:
        """What the chosen machine will take and cost for so many runs, and what one agrees to."""
        if choice.engine != HUB_JOB or choice.flavor not in (choice.prices or {}):
            return {}
        try:
            options = HubJobOptions(**choice.ticket().options)
        except Exception as error:
            return {self.price: feedback.show_errors(error)}
        seconds = estimate.time.seconds if estimate.time else None
        most = runs * options.most
        text = macro("engine.html", "price")(
            options,
            runs,
            most,
            seconds and rough_duration(seconds),
            (seconds or 0) / 3600,
            spending.spent_today(store.root, store.visitor.name),
        )
        agreed = gettext(
            "I agree that Train may cost up to ${most:.2f}, and Search its own limit",
            most=spending.rounded_up(most),
        )
        return {self.price: text, self.agreed: gr.update(label=agreed)}

    def checked(self, choice: Choice, former: Ticket | None = None) -> Ticket:
        """The chosen ticket, after the `former` one of the run if it has one; raises `JobError`
        where a price was not agreed to."""
        ticket = choice.ticket(former)
        if ticket.engine == HUB_JOB and not (choice.agreed and choice.flavor in choice.prices):
            raise JobError(
                "A Hugging Face Job is billed to your account.",
                "Choose a machine and tick that you agree to its price.",
            )
        return ticket


def _missing_ray() -> str:
    """What to do where Ray is not installed; empty where it is."""
    if find_spec("ray") is not None:
        return ""
    fact = gettext("Ray is not installed here.")
    return feedback.note(f"{fact} pip install -r finetune/engines/requirements-ray.txt")
