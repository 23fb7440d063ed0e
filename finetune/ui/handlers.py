"""The frame around every handler of a tab: whose request it is, and what becomes of an error."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import gradio as gr

from finetune.ui import auth, feedback

Updates = dict[Any, Any]  # component -> its new value or `gr.update`; others stay as they are
Handler = Callable[..., Updates]


def reports_errors_in(component: str) -> Callable[[Handler], Handler]:
    """Make a method of a tab a Gradio event handler.

    The method gets the visitor's own store, then the inputs and whatever Gradio fills in by type
    (`gr.EventData`, `gr.OAuthToken`). It returns updates by component. An error is shown in the
    tab's attribute `component`, one of the event's outputs; everything else stays as it is.
    """

    def decorate(method: Handler) -> Handler:
        @functools.wraps(method)
        def handle(self: Any, request: gr.Request, *inputs: Any) -> Updates:
            try:
                updates = method(self, auth.visitor_store(self.store, request), *inputs)
            except Exception as error:
                updates = {getattr(self, component): feedback.show_errors(error)}
            return updates or gr.skip()  # Gradio takes no empty dict

        # Gradio reads the signature, and finds in it by their types what it fills in itself.
        signature = inspect.signature(method)
        owner, store, *inputs = signature.parameters.values()
        parameters = [owner, store.replace(name="request"), *inputs]
        special = {n: h for n, h in method.__annotations__.items() if str(h).startswith("gr.")}
        handle.__annotations__ = {"request": gr.Request, **special}
        handle.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return handle

    return decorate


handler = reports_errors_in("message")
