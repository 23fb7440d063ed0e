"""A panel is a part of the page whose components and event handlers are members of one class."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gradio as gr
from gradio.blocks import Block

from finetune.runs.store import RunStore
from finetune.ui import auth
from finetune.ui.feedback import QUICK, show_errors

Updates = dict[Any, Any]  # component -> its new value or `gr.update`; others stay as they are
Handler = Callable[..., Updates]


@dataclass
class Panel:
    """Components as attributes, and methods marked by `handler` that answer their events."""

    store: RunStore

    def __post_init__(self) -> None:
        """Make the panels within this one."""

    def outputs(self) -> list[Any]:
        """Return the components that events may update: all those among the attributes."""
        blocks: list[Any] = []
        for value in vars(self).values():
            values = value if isinstance(value, list | tuple) else [value]
            blocks += [block for block in values if isinstance(block, Block)]
        return list(dict.fromkeys(blocks))

    def connect(self) -> dict[str, Any]:
        """Wire the handlers once everything is drawn. Returns their events by method."""
        methods = vars(type(self)).items()
        return {name: m.connect(self) for name, m in methods if hasattr(m, "connect")}


def handler(
    *events: str, errors_in: str = "message", latest: bool = False, **options: Any
) -> Callable[[Handler], Handler]:
    """Make a method of a panel the handler of events, such as `start.click` for the attribute
    `start`. Without events, the caller wires it.

    The method gets the visitor's own store, then the values of the components that its parameters
    are named after (`*name` for a list of them), and whatever Gradio fills in by type
    (`gr.EventData`, `gr.OAuthToken`). It returns updates by component. An error is shown in the
    panel's component `errors_in`; everything else stays as it is.

    Args:
        latest: answer the last of several events that come at once, as `feedback.LATEST` does.
        options: of Gradio's event, besides `feedback.QUICK`.
    """

    def decorate(method: Handler) -> Handler:
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

        def connect(panel: Panel) -> Any:
            triggers = [trigger for event in events for trigger in _triggers(panel, event)]
            named = [getattr(panel, each.name) for each in inputs if each.name not in special]
            values = [box for each in named for box in (each if isinstance(each, list) else [each])]
            how = {"trigger_mode": "always_last"} if latest else {}
            every = QUICK | how | options
            return gr.on(
                triggers, getattr(panel, method.__name__), values, panel.outputs(), **every
            )

        # Gradio reads the signature to find by type what it fills in itself.
        handle.__annotations__ = {"request": gr.Request, **special}
        handle.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[owner, store.replace(name="request"), *inputs]
        )
        if events:
            handle.connect = connect  # type: ignore[attr-defined]
        return handle

    return decorate


def _triggers(panel: Panel, event: str) -> list[Any]:
    """The events of a panel's component, or of each in a list of them."""
    name, kind = event.split(".")
    blocks = getattr(panel, name)
    return [getattr(block, kind) for block in (blocks if isinstance(blocks, list) else [blocks])]
