"""The frame around every handler of a tab: whose request it is, and what becomes of an error."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import gradio as gr

from finetune.runs.store import RunStore
from finetune.ui import auth, feedback

P = ParamSpec("P")
Updates = dict[Any, Any]  # component -> its new value or `gr.update`; others stay as they are


class Tab(Protocol):
    """What a tab has for its handlers: all runs, and the component that shows errors."""

    store: RunStore
    message: gr.HTML


T = TypeVar("T", bound=Tab)


def handler(
    method: Callable[Concatenate[T, RunStore, P], Updates],
) -> Callable[..., Updates]:
    """Make a method a Gradio event handler.

    The method gets the visitor's own store, then the inputs; it returns updates by component. The
    tab's `message` must be among the event's outputs: an error is shown there in words, and
    everything else stays as it is.
    """

    def handle(self: T, request: gr.Request, *inputs: Any) -> Updates:
        try:
            return method(self, auth.visitor_store(self.store, request), *inputs)  # type: ignore[call-arg, arg-type]
        except Exception as error:
            return {self.message: feedback.show_errors(error)}

    functools.update_wrapper(handle, method)
    del handle.__wrapped__  # type: ignore[attr-defined]  # Gradio reads the signature
    handle.__annotations__ = {"request": gr.Request}
    return handle
