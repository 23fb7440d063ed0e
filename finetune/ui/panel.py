"""A panel is a part of the page whose components and event handlers are members of one class."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import gradio as gr
from gradio.blocks import Block

from finetune.runs.store import RunStore
from finetune.ui import auth, elements
from finetune.ui.feedback import QUICK, show_errors

Updates = dict[Any, Any]  # component -> its new value or `gr.update`; others stay as they are
Pressed = dict[str, Any]  # what our script sent with an event; any client can send anything
Handler = Callable[..., Updates]


class _Wiring(NamedTuple):
    events: Sequence[str]
    inputs: Sequence[str]  # attributes of the panel
    opens: str
    options: dict[str, Any]


@dataclass
class Panel:
    """Components as attributes, and methods marked by `handler` that answer their events. `draw`
    lays them out in the current block. The page gives those that fill the form its components as
    `filled`: the controls, Data's chooser of pairs, the tabs."""

    store: RunStore
    filled: list[Any] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        """Make the panels within this one."""

    def outputs(self) -> list[Any]:
        """Return the components that events may update: all those among the attributes, and those
        of panels among these."""
        blocks = [block for name in vars(self) for block in self._blocks(name)]
        inner = [value.outputs() for value in vars(self).values() if isinstance(value, Panel)]
        return list(dict.fromkeys(chain(blocks, *inner)))

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
    (`Pressed`, `gr.OAuthToken`). It returns updates by component; that of the panel's `poller`
    is True to begin a wait, and False to end the one whose question `poller.submit` answers. An
    error is shown in the panel's component `errors_in`, and ends the wait; everything else stays as
    it is.

    Args:
        latest: answer the last of several events that come at once, as `feedback.LATEST` does.
        opens: the tab that the event opens. The last input is then the tab's part of the page's
            address (`elements.address`).
        options: of Gradio's event, besides `feedback.QUICK`.
    """
    if latest:
        options["trigger_mode"] = "always_last"
    asks = events == ("poller.submit",)

    def decorate(method: Handler) -> Any:
        @functools.wraps(method)
        def handle(self: Any, request: gr.Request, *values: Any) -> Updates:
            given = [_sent(each) if isinstance(each, gr.EventData) else each for each in values]
            question = given.pop() if asks else None
            try:
                updates = method(self, auth.visitor_store(self.store, request), *given)
            except Exception as error:
                updates = {getattr(self, errors_in): show_errors(error)}
                if asks:
                    updates[self.poller] = False
            if (poller := getattr(self, "poller", None)) in updates:
                updates[poller] = elements.polling_value(updates[poller], question)
            return updates or gr.skip()  # Gradio takes no empty dict

        ask_for_request(handle, method, question=asks)
        _, _, *inputs = inspect.signature(method).parameters
        hints = method.__annotations__
        filled = ("gr.", "Pressed")  # by Gradio
        names = [name for name in inputs if not str(hints.get(name)).startswith(filled)]
        vars(handle)["wiring"] = _Wiring(events, names, opens, options)
        return handle

    return decorate


def _sent(event: gr.EventData) -> Pressed:
    return event._data if isinstance(event._data, dict) else {}


def ask_for_request(wrapper: Any, method: Callable[..., Any], question: bool = False) -> None:
    """Let Gradio give the `wrapper` of a method the request in place of its `store`, and at the end
    the `question` of a poller. Gradio reads types and signature to find what it fills in itself."""
    signature = inspect.signature(method)
    parameters = [
        each.replace(name="request") if each.name == "store" else each
        for each in signature.parameters.values()
    ]
    hints: dict[str, Any] = {
        name: gr.EventData if hint == "Pressed" else hint
        for name, hint in method.__annotations__.items()
        if name != "store"
    }
    if question:
        hints["question"] = gr.EventData
        parameters.append(inspect.Parameter("question", inspect.Parameter.POSITIONAL_OR_KEYWORD))
    wrapper.__annotations__ = {"request": gr.Request, **hints}
    wrapper.__signature__ = signature.replace(parameters=parameters)
