"""The memory that the app keeps for each open page and each program that calls it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gradio as gr
from gradio import route_utils, state_holder
from gradio.state_holder import SessionState

MOST = 1000  # sessions; the least recently used is forgotten first


class Session(SessionState):
    """A session without the settings and the last value of every component.

    Gradio keeps both for its deep links, which are closed here (`routes`). They take 0.8 MB and 33
    ms for each page and each call of a program, and hold texts that were sent. By default Gradio
    keeps 10,000 sessions.
    """

    def __init__(self, blocks: gr.Blocks) -> None:
        # Given no blocks, it copies no settings.
        super().__init__(SimpleNamespace(default_config=blocks.default_config, blocks=()))  # type: ignore[arg-type]

    def _update_config(self, key: int) -> None:
        pass

    def _update_value_in_config(self, key: int, value: Any) -> None:
        pass


def keep_little() -> None:
    """Make Gradio use `Session` from now on."""
    state_holder.SessionState = route_utils.SessionState = Session  # type: ignore[misc, attr-defined]
