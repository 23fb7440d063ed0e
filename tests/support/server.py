"""The page served by the process of the tests."""

from contextlib import contextmanager
from dataclasses import dataclass

import gradio as gr
import httpx

from finetune.runs.store import RunStore
from finetune.ui import app, auth


@dataclass
class Server:
    """The page served by this process."""

    blocks: gr.Blocks
    store: RunStore
    url: str  # with a slash at the end

    def client(self, identity=""):
        """A browser that has an identity already, or none."""
        cookies = {auth.COOKIE: identity} if identity else {}
        return httpx.Client(base_url=self.url, cookies=cookies, timeout=240)

    def event(self, name):
        """The index of the page's first function of that name."""
        return next(index for index, fn in self.blocks.fns.items() if fn.name == name)

    def run(self, web, event, data, session="x"):
        """The answer to an event of the page, by its name or index, that a browser sends."""
        index = self.event(event) if isinstance(event, str) else event
        body = {"data": data, "fn_index": index, "session_hash": session}
        return web.post("gradio_api/run/predict", json=body)

    def call(self, web, name, *values):
        """What the stream of an endpoint's answer says to a program."""
        event = web.post(f"gradio_api/call/{name}", json={"data": values}).json()["event_id"]
        return web.get(f"gradio_api/call/{name}/{event}").text


@contextmanager
def serving(store):
    blocks = app.build(store)
    _, url, _ = app.launch(blocks, store, prevent_thread_lock=True, quiet=True)
    yield Server(blocks, store, url)
    blocks.close()
