"""The whole page: head, tabs, the events that concern more than one of them, and its server."""

from __future__ import annotations

import contextlib
import html
import os
import socket
from typing import Any

import gradio as gr
from gradio import http_server

from finetune import owners
from finetune.environment import space
from finetune.runs.store import RunStore
from finetune.ui import feedback, i18n, origins, routes, theme, upload_limits
from finetune.ui.api import Api
from finetune.ui.i18n import page_text
from finetune.ui.tabs.data import DataTab
from finetune.ui.tabs.predict import PredictTab
from finetune.ui.tabs.publish import PublishTab
from finetune.ui.tabs.runs import RunsTab
from finetune.ui.tabs.train import TrainTab

HEAD = """
<header class="ft-head">{logo}<div><h1>Finetune</h1><p>{claim}</p></div></header>
"""
_QUIET = {"show_progress": "hidden", "api_visibility": "private"}


def build(store: RunStore) -> gr.Blocks:
    """The page over a store of runs. Imports no torch."""
    # How often uploads are looked at, and at what age those the store has no copy of are removed.
    delete_cache = (60, 3600) if owners.is_shared() else (3600, 24 * 3600)
    page = gr.Blocks(
        title="Finetune", analytics_enabled=False, fill_width=True, delete_cache=delete_cache
    )
    with page:
        # Hidden from screen readers: the name is beside it.
        logo = theme.asset("logo.svg").replace("<svg", '<svg aria-hidden="true"', 1)
        claim = page_text("Teach a transformer when two sentences mean the same.")
        gr.HTML(HEAD.format(logo=logo, claim=claim))
        for notice in _notices(store):
            gr.HTML(notice)
        tabs = _Tabs(store)
        tabs.draw()
        Api(store, tabs.predict.models).wire()
        tabs.wire_page_load(page)
        tabs.wire_form()
        tabs.wire_selection()
    feedback.refuse_in_one_line(page)
    return page


class _Tabs:
    """The five tabs and the events between them."""

    def __init__(self, store: RunStore) -> None:
        self.data, self.train, self.runs = DataTab(store), TrainTab(store), RunsTab(store)
        self.predict, self.publish = PredictTab(store), PublishTab(store)

    def draw(self) -> None:
        """Draw all tabs, Train in front: two clicks from the page to a trained model."""
        self.data.draw_poller()
        with gr.Tabs(elem_id="tabs", selected="train") as self.tabs:
            with gr.Tab("Data", id="data") as self.data_tab:
                data_controls = self.data.draw()
            with gr.Tab("Train", id="train") as self.train_tab:
                self.train.draw(data_controls)
            with gr.Tab("Runs", id="runs") as self.runs_tab:
                self.runs.draw()
            with gr.Tab("Predict", id="predict") as self.predict_tab:
                self.predict.draw()
            with gr.Tab("Publish", id="publish") as self.publish_tab:
                self.publish.draw()
        self.data.wire(self.train.form)
        self.restored = [*self.train.form.values(), self.data.dataset]

    def wire_page_load(self, page: gr.Blocks) -> None:
        """Show the newest run, restore the form, and prefer the Hub's default where it answers."""
        train, data, quick = self.train, self.data, feedback.QUICK
        page.load(**train.opening)
        train.measured(page.load(**train.costing))
        default = [train.form["dataset"], train.form["checkpoint"]]
        train.filled, self.runs.filled = self.restored, [*self.restored, self.tabs]
        page.load(train.on_restore, train.stored, [*self.restored, train.message], **quick).then(
            train.on_hub, None, train.hub, concurrency_limit=None, **_QUIET
        ).then(
            None,
            [train.hub, train.stored, *default],
            [*default, data.dataset],
            js=train.choosing_default(),
            **quick,
        ).then(**data.examining("restored"), **quick)

    def wire_form(self) -> None:
        """Fill the form from a file or a run, and keep its costs up to date."""
        train, runs, quick = self.train, self.runs, feedback.QUICK
        # When the pairs were counted. Not on the change of a `gr.State`: Gradio reports that for
        # queued events only.
        train.measured(self.data.poller.change(**train.costing))
        train.load.upload(train.on_load, train.load, [*self.restored, train.message], **quick)
        outputs = [*self.restored, self.tabs, runs.message]
        runs.clone.click(runs.on_clone, runs.view, outputs, **quick)
        runs.evaluation.filled = [*self.restored, self.tabs]
        runs.evaluation.start.click(
            runs.evaluation.on_start, runs.view,
            [*self.restored, self.tabs, runs.evaluation.message],
            show_progress="minimal", concurrency_limit=2, api_visibility="private",
        )  # fmt: skip

    def wire_selection(self) -> None:
        """Bring a tab up to date when it is selected."""
        train, predict, quick = self.train, self.predict, feedback.QUICK
        self.data_tab.select(**self.data.examining(), **quick)
        self.runs_tab.select(**self.runs.opening, **quick)
        train.measured(self.train_tab.select(**train.costing))
        self.train_tab.select(**train.opening)
        self.predict_tab.select(**predict.opening, **quick).then(
            predict.on_warm_up, predict.run, predict.answer, concurrency_limit=1, **_QUIET
        )
        self.predict_tab.select(**predict.files.opening, **quick)
        self.publish_tab.select(**self.publish.opening, **quick)


def _notices(store: RunStore) -> list[str]:
    """What a visitor of a Space should know of it, for the head of the page."""
    described = space.describe_space(store.root)
    if described is None:
        return []
    hardware, notices = described
    label = page_text("Hardware")
    text = f"{label}: {html.escape(hardware)}"
    return [f'<p class="ft-facts" id="hardware">{text}</p>', *map(feedback.warning, notices)]


def launch(page: gr.Blocks, store: RunStore, **options: Any) -> Any:
    """Serve the page over its store, with `options` of Gradio's `launch` in place of ours."""
    origins.trusted_proxies()  # a wrong one is reported now
    # Uvicorn would believe the proxy headers of this machine's programs before `origins` looks.
    os.environ["FORWARDED_ALLOW_IPS"] = ""
    name = options.get("server_name") or os.environ.get("GRADIO_SERVER_NAME") or "127.0.0.1"
    hosts = origins.AllowedHosts(name, lambda: page.share_url or "")
    script, palette = theme.asset("page.js"), theme.asset("palette.css")
    settings: dict[str, Any] = {
        "theme": theme.theme(),
        "css_paths": theme.CSS,
        "favicon_path": theme.FAVICON,
        "head": f"<style>{palette}</style><script>{script}</script>",
        "ssr_mode": False,
        "_frontend": False,  # Gradio would give up if the first page took 3 s (a busy machine)
        "run_history": False,
        "enable_monitoring": False,
        "footer_links": ["api", "settings"],
        "max_file_size": upload_limits.MAX_FILE_BYTES,
        "num_workers": 0,  # more would serve files from processes that ask nobody who they are
        "mcp_server": True,
        "i18n": i18n.browser_translations(page),
        **options,
        "app_kwargs": routes.app_options(store, hosts),
    }
    # Gradio looks into its queue a thousand times a second (twenty on Windows); each look takes a
    # core from a training step on a CPU for a moment, and both cores wait for the slower.
    page._queue.sleep_when_free = 0.02
    if settings.get("server_port"):
        return page.launch(**settings)
    return _launch_on_free_port(page, settings)


def _launch_on_free_port(page: gr.Blocks, settings: dict[str, Any]) -> Any:
    """Serve on the first free port, beginning with Gradio's own first.

    Gradio tries further ports by itself, but with the MCP session manager of the first attempt,
    which runs only once; so each attempt here is a launch of its own.
    """
    first, count = http_server.INITIAL_PORT_VALUE, http_server.TRY_NUM_PORTS
    for port in filter(_is_free, range(first, first + count)):
        kwargs = dict(settings["app_kwargs"])  # Gradio writes into it
        try:
            return page.launch(**settings | {"server_port": port, "app_kwargs": kwargs})
        except OSError as error:  # another app was faster
            if "empty port" not in str(error):
                raise
    raise OSError(f"No port from {first} to {first + count - 1} is free; name another with --port.")


def _is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        return True
    return False
