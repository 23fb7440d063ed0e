"""What the app keeps in memory for each page that is open, and for each program that calls it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gradio as gr
from gradio import route_utils, state_holder
from gradio.state_holder import SessionState

MOST = 1000  # sessions; the one used longest ago is forgotten first


class Session(SessionState):
    """A session without the settings and the last value of every component.

    Gradio keeps them for its deep links, which are closed here (`routes`): 0.8 MB and 33 ms for
    each page and for each call of a program, and texts that were sent. By default it keeps 10,000
    sessions.
    """

    def __init__(self, blocks: gr.Blocks) -> None:
        # Of no blocks it copies no settings.
        super().__init__(SimpleNamespace(default_config=blocks.default_config, blocks=()))  # type: ignore[arg-type]

    def _update_config(self, key: int) -> None:
        pass

    def _update_value_in_config(self, key: int, value: Any) -> None:
        pass


def keep_little() -> None:
    """Let Gradio make such sessions from now on."""
    state_holder.SessionState = route_utils.SessionState = Session  # type: ignore[misc, attr-defined]
