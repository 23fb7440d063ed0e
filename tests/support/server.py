"""The page served by the process of the tests."""

from __future__ import annotations

from dataclasses import dataclass

import gradio as gr
import httpx

from finetune.runs.store import RunStore
from finetune.ui import auth


@dataclass
class Server:
    """The page served by this process."""

    blocks: gr.Blocks
    store: RunStore
    url: str  # with a slash at the end

    def client(self, identity: str = "") -> httpx.Client:
        """A browser that has an identity already, or none."""
        cookies = {auth.COOKIE: identity} if identity else {}
        return httpx.Client(base_url=self.url, cookies=cookies, timeout=60)

    def event(self, name: str) -> int:
        """The index of the page's first function of that name."""
        return next(index for index, fn in self.blocks.fns.items() if fn.name == name)
