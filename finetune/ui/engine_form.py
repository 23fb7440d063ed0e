"""The part of the Train tab that chooses an engine, shows its price and asks for consent to pay.

The controls are drawn from the options and the capabilities of the engines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import gradio as gr

from finetune import owners
from finetune.engines import registry, spending
from finetune.engines.base import HERE, EngineOptions, EngineSpec
from finetune.engines.hub_jobs import HubJobOptions
from finetune.errors import JobError
from finetune.jobs.cost import Estimate
from finetune.runs.store import RunStore
from finetune.ui import auth, elements, feedback
from finetune.ui.html import macro
from finetune.ui.i18n import gettext
from finetune.ui.panel import Panel, Updates, handler

_SHOWN, _HIDDEN = [["ft-engine"], ["ft-engine", "ft-unseen"]]
_BILLED = "job"  # owns the options of the engine that is billed


class Choice(NamedTuple):
    """The values chosen in the form."""

    engine: str = HERE
    values: Mapping[str, Any] = MappingProxyType({})  # by option, numbers as they were typed
    agreed: bool = False
    prices: Mapping[str, float] = MappingProxyType({})  # US dollars an hour by machine, as shown
    typed: str = ""  # a token

    @property
    def machine(self) -> str:
        """The kind of machine that is chosen, if the engine has several."""
        return str(self.values.get("flavor") or "")

    def spec(self, former: EngineSpec | None = None) -> EngineSpec:
        """Make the engine spec for this choice; options that the page does not show are copied from
        the `former` spec. Raises ConfigError for invalid ones."""
        engine = registry.find_engine(self.engine)
        values = dict(former.options) if former and former.engine == self.engine else {}
        for name, value in self.values.items():
            if engine.Options.model_fields[name].annotation is str:
                values[name] = value or ""
            else:
                values[name] = elements.decimal(value)
        if engine.is_billed:
            values["price"] = (self.prices or {}).get(self.machine, 0.0)
        return registry.make_spec(self.engine or HERE, values)


class EngineForm(Panel):
    """The choice of an engine, of its options, and the consent to its price."""

    def draw(self) -> None:
        """Draw the controls and wire the events that need only them."""
        offered = [engine for engine in registry.ENGINES.values() if engine.is_offered()]
        labels = [(gettext(engine.label), engine.name) for engine in offered]
        self.engine = gr.Dropdown(
            labels, value=HERE, label="Train on", elem_id="engine", interactive=True
        )
        self.elsewhere = next((engine.name for engine in offered if engine.is_remote), HERE)
        self.controls: dict[tuple[str, str], Any] = {}  # (engine, or _BILLED; option) -> control
        billed = [engine.name for engine in offered if engine.is_billed]
        group = self._draw_options(_BILLED, HubJobOptions, [*HubJobOptions.shown()])
        shown = {group: billed}  # part -> the engines that show it
        with gr.Column(elem_id="job-access", elem_classes=_HIDDEN) as group:
            info = "A token that may run jobs. If empty, that of `hf auth login` is used."
            if auth.has_sign_in():
                info = gettext("A token that may run jobs. If empty, your sign-in is used.")
            text = "Token for the job"
            self.token = elements.text_box(text, "job-token", info=info, type="password")
        shown[group] = [engine.name for engine in offered if engine.needs_token]
        with gr.Column(elem_id="job-consent", elem_classes=_HIDDEN) as group:
            self.price = elements.notice("job-price")
            self.agreed = gr.Checkbox(False, label="I agree to pay", elem_id="job-agreed")
        shown[group] = billed
        for engine in offered:
            if not engine.is_billed and (own := [*engine.Options.shown()]):
                shown[self._draw_options(engine.name, engine.Options, own)] = [engine.name]
        self.warning = elements.notice("engine-warning")
        self.prices = gr.State({})
        self.flavor = self.controls[_BILLED, "flavor"]
        self.boxes = [*self.controls.values()]
        self.inputs: list[Any] = [self.engine, *self.boxes, self.agreed, self.prices, self.token]
        self._wire(shown)

    def _draw_options(self, owner: str, options: type[EngineOptions], names: list[str]) -> Any:
        with gr.Column(elem_id=f"{owner}-options", elem_classes=_HIDDEN) as group:
            for name in elements.two_in_a_row(names):
                self.controls[owner, name] = _control(owner, options, name)
        return group

    def _wire(self, shown: dict[Any, list[str]]) -> None:
        updates = json.dumps([gr.update(elem_classes=classes) for classes in (_HIDDEN, _SHOWN)])
        engines = json.dumps([*shown.values()])
        own = f"(engine) => {engines}.map((names) => ({updates})[+names.includes(engine)])"
        self.engine.change(None, self.engine, [*shown], js=own, **feedback.QUICK)
        self.connect()
        # What is agreed to is the price that is shown.
        self.changes = [self.engine.change, *(box.change for box in self.boxes)]
        gr.on(self.changes, None, None, self.agreed, js="() => false", **feedback.QUICK)

    def read(self, values: Sequence[Any]) -> Choice:
        """Read the choice from the values of `inputs`."""
        engine, *typed, agreed, prices, token = values
        owners_of = {engine, _BILLED} if registry.find_engine(engine).is_billed else {engine}
        named = zip(self.controls, typed, strict=True)
        options = {name: value for (owner, name), value in named if owner in owners_of}
        return Choice(engine, options, agreed, prices, token)

    @handler("engine.change", "token.change", errors_in="price", latest=True)
    def on_engine(
        self, store: RunStore, engine: str, token: str, flavor: Any, oauth: gr.OAuthToken | None
    ) -> Updates:
        """Show an engine's machines and prices after the engine or the token has changed. Keeps the
        machine `flavor` if the engine has it."""
        kind = registry.find_engine(engine)
        fact, command = kind.missing()
        warning = feedback.note(f"{gettext(fact)} {command}") if fact else ""
        shown = {self.price: "", self.warning: warning}
        if not kind.is_billed:
            return shown
        try:
            machines = kind(auth.hub_token(store, token, oauth, kind.needs_token)).machines()
        except Exception as error:
            return shown | {self.price: feedback.show_errors(error)}
        names = [machine.name for machine in machines]
        usual = kind.usual_machine if kind.usual_machine in names else next(iter(names), None)
        changed: dict[str, Any] = {} if flavor in names else {"value": usual}
        choices = [(f"{m.name} \u00b7 ${m.price:.2f}/h \u00b7 {m.label}", m.name) for m in machines]
        return shown | {
            self.flavor: gr.update(choices=choices, **changed),
            self.prices: {machine.name: machine.price for machine in machines},
        }

    def priced(self, store: RunStore, choice: Choice, estimate: Estimate, runs: int) -> Updates:
        """Show the time and price of the runs, and name the most they can cost in the consent."""
        engine = registry.find_engine(choice.engine)
        if not engine.is_billed or choice.machine not in (choice.prices or {}):
            return {}
        try:
            options = HubJobOptions(**choice.spec().options)
        except Exception as error:
            return {self.price: feedback.show_errors(error)}
        most = runs * options.most
        spent = spending.spent_today(store.root, store.visitor.name)
        text = macro("engine.html", "price")(options, runs, most, estimate.time, spent)
        agreed = gettext(
            "I agree that Train may cost up to ${most:.2f}, and Search its own limit",
            most=spending.rounded_up(most),
        )
        return {self.price: text, self.agreed: gr.update(label=agreed)}

    def checked(self, choice: Choice, former: EngineSpec | None = None) -> EngineSpec:
        """Make the spec for a choice, as `Choice.spec` does. Raises `JobError` if the user has
        not agreed to the price."""
        spec, engine = choice.spec(former), registry.find_engine(choice.engine)
        if engine.is_billed and not (choice.agreed and choice.machine in choice.prices):
            raise JobError(
                "A {engine} is billed to your account.",
                "Choose a machine and tick that you agree to its price.",
                engine=engine.label,
            )
        return spec


def _control(owner: str, options: type[EngineOptions], name: str) -> Any:
    shown, field = options.shown()[name], options.model_fields[name]
    common: dict[str, Any] = {
        "label": gettext(shown.label),
        "info": gettext(shown.info) if shown.info else None,
        "elem_id": f"{owner}-{name}",
    }
    if (owner, name) == (_BILLED, "flavor"):
        common["elem_id"] = name
        return gr.Dropdown(
            [], interactive=True, allow_custom_value=True, min_width=200, scale=2, **common
        )
    if field.annotation in (int, float):
        return elements.number_box(field.default, min_width=130, **common)
    engine = registry.find_engine(owner)
    return gr.Textbox(
        field.default, placeholder=shown.placeholder or None, max_lines=1, min_width=200,
        visible=owners.policy().owner_asks or name not in engine.owners_options, **common,
    )  # fmt: skip
