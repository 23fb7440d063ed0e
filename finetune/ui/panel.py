"""A panel is a part of the page whose components and event handlers are members of one class."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gradio as gr
from gradio.blocks import Block

from finetune.runs.store import RunStore
from finetune.ui import auth
from finetune.ui.feedback import QUICK, show_errors

Updates = dict[Any, Any]  # component -> its new value or `gr.update`; others stay as they are
Handler = Callable[..., Updates]


class _Wiring(NamedTuple):
    events: Sequence[str]
    inputs: Sequence[str]  # attributes of the panel
    opens: str
    options: dict[str, Any]


@dataclass
class Panel:
    """Components as attributes, and methods marked by `handler` that answer their events."""

    store: RunStore

    def __post_init__(self) -> None:
        """Make the panels within this one."""

    def outputs(self) -> list[Any]:
        """Return the components that events may update: all those among the attributes."""
        blocks = [block for name in vars(self) for block in self._blocks(name)]
        return list(dict.fromkeys(blocks))

    def connect(self) -> dict[str, Any]:
        """Wire the handlers once everything is drawn. Returns their events by method."""
        names = [name for name, m in vars(type(self)).items() if hasattr(m, "wiring")]
        methods = [method for name in names if (method := getattr(self, name)).wiring.events]
        return {method.__name__: self.listen(method) for method in methods}

    def listen(self, method: Any, *triggers: Any, **options: Any) -> Any:
        """Let one handler answer events, by default to its own. Returns Gradio's dependency."""
        wiring: _Wiring = method.wiring
        own = [event.split(".") for event in wiring.events]
        events = [getattr(block, kind) for name, kind in own for block in self._blocks(name)]
        inputs = [block for name in wiring.inputs for block in self._blocks(name)]
        if wiring.opens:  # the function gets the values of the outputs too
            given = f"...values.slice(0, {len(inputs) - 1})"
            options["js"] = f"(...values) => [{given}, finetune.asked('{wiring.opens}')]"
        how = QUICK | {"outputs": self.outputs()} | wiring.options | options
        return gr.on(triggers or events, method, inputs, **how)

    def _blocks(self, name: str) -> list[Any]:
        """The components in an attribute, one or a list of them."""
        value = getattr(self, name)
        values = value if isinstance(value, list | tuple) else [value]
        return [block for block in values if isinstance(block, Block)]


def handler(
    *events: str, errors_in: str = "message", latest: bool = False, opens: str = "", **options: Any
) -> Callable[[Handler], Any]:
    """Make a method of a panel the handler of events, such as `start.click` for the attribute
    `start`. Without events, `Panel.listen` is called for it.

    The method gets the visitor's own store, then the values of the components that its parameters
    are named after (`*name` for a list of them), and whatever Gradio fills in by type
    (`gr.EventData`, `gr.OAuthToken`). It returns updates by component. An error is shown in the
    panel's component `errors_in`; everything else stays as it is.

    Args:
        latest: answer the last of several events that come at once, as `feedback.LATEST` does.
        opens: the tab that the event opens. The last input is then the tab's part of the page's
            address (`elements.address`).
        options: of Gradio's event, besides `feedback.QUICK`.
    """
    if latest:
        options["trigger_mode"] = "always_last"

    def decorate(method: Handler) -> Any:
        signature = inspect.signature(method)
        owner, store, *inputs = signature.parameters.values()
        special = {n: h for n, h in method.__annotations__.items() if str(h).startswith("gr.")}

        @functools.wraps(method)
        def handle(self: Any, request: gr.Request, *values: Any) -> Updates:
            try:
                updates = method(self, auth.visitor_store(self.store, request), *values)
            except Exception as error:
                updates = {getattr(self, errors_in): show_errors(error)}
            return updates or gr.skip()  # Gradio takes no empty dict

        # Gradio reads the signature to find by type what it fills in itself.
        handle.__annotations__ = {"request": gr.Request, **special}
        parameters = [owner, store.replace(name="request"), *inputs]
        names = [each.name for each in inputs if each.name not in special]
        wiring = _Wiring(events, names, opens, options)
        vars(handle).update(__signature__=signature.replace(parameters=parameters), wiring=wiring)
        return handle

    return decorate
