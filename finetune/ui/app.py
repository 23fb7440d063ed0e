"""The page whole: head, tabs, and the events that concern more than one of them."""

from __future__ import annotations

import contextlib
import html
import os
import socket
from typing import Any

import gradio as gr
from gradio import http_server

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
<header class="ft-head">{logo}<div><h1>Finetune</h1><p>{what}</p></div></header>
"""


_HOUR, _DAY = 3600, 24 * 3600


def build(store: RunStore) -> gr.Blocks:
    """The page over a store of runs. Imports no torch."""
    page = gr.Blocks(
        title="Finetune",
        analytics_enabled=False,
        fill_width=True,
        delete_cache=(_HOUR, _DAY),  # what was uploaded is kept by the store, not by Gradio
    )
    with page:
        claim = page_text("Teach a transformer when two sentences mean the same.")
        gr.HTML(HEAD.format(logo=_logo(), what=claim))
        for notice in _notices(store):
            gr.HTML(notice)
        train, predict, publish = TrainTab(store), PredictTab(store), PublishTab(store)
        data, runs = DataTab(store), RunsTab(store)
        predict.remember()
        data.listen()
        # Train is in front: two clicks from the page to a trained model.
        with gr.Tabs(elem_id="tabs", selected="train") as tabs:
            with gr.Tab("Data", id="data") as data_tab:
                drawn = data.draw()
            with gr.Tab("Train", id="train") as train_tab:
                train.draw(drawn)
            with gr.Tab("Runs", id="runs") as runs_tab:
                runs.draw()
            with gr.Tab("Predict", id="predict") as predict_tab:
                predict.draw()
            with gr.Tab("Publish", id="publish") as publish_tab:
                publish.draw()
        data.wire(train.form)
        # An examination has counted the pairs, or has ended. Not by a change of a `gr.State`, of
        # which Gradio tells nobody where an event is not queued.
        train.measured(data.pulse.change(**train.costing))
        Api(store, predict.loaded).wire()
        quick = feedback.QUICK
        page.load(**train.opening)
        train.measured(page.load(**train.costing))
        what = [train.form["dataset"], train.form["checkpoint"]]
        restored = [*train.form.values(), data.dataset]
        train.filled, runs.filled = restored, [*restored, tabs]
        page.load(train.on_restore, train.kept, [*restored, train.message], **quick).then(
            train.on_hub,
            None,
            train.hub,
            concurrency_limit=None,
            show_progress="hidden",
            api_visibility="private",
        ).then(
            None,
            [train.hub, train.kept, *what],
            [*what, data.dataset],
            js=train.choosing_default(),
            **quick,
        ).then(**{**data.asking, "fn": data.on_follow}, **quick)
        loaded = [*restored, train.message]
        train.load.upload(train.on_load, train.load, loaded, **quick)
        runs.clone.click(runs.on_clone, runs.view, [*restored, tabs, runs.message], **quick)
        runs.evaluation.start.click(
            runs.evaluation.on_start, runs.view, [*restored, tabs, runs.message],
            show_progress="minimal", concurrency_limit=2, api_visibility="private",
        )  # fmt: skip
        data_tab.select(**data.asking, **quick)
        runs_tab.select(**runs.opening(), **quick)
        train.measured(train_tab.select(**train.costing))
        train_tab.select(train.on_turn, train.runs, train.opening["outputs"], **quick)
        predict_tab.select(
            predict.on_open, [predict.run, predict.kept],
            [predict.run, predict.empty, predict.ask, predict.tried], **quick,
        ).then(
            predict.on_warm, predict.run, None,
            concurrency_limit=1, show_progress="hidden", api_visibility="private",
        )  # fmt: skip
        predict_tab.select(**predict.batch.opening, **quick)
        publish_tab.select(**publish.opening(), **quick)
    feedback.refuse_in_one_line(page)
    return page


def _logo() -> str:
    """The logo for the page itself; its name stands beside it."""
    return theme.LOGO.read_text(encoding="utf-8").replace("<svg", '<svg aria-hidden="true"', 1)


def _notices(store: RunStore) -> list[str]:
    """What a visitor of a Space should know of it, at the head of the page."""
    found = space.current_space(store.root)
    if found is None:
        return []
    name = f"{page_text('Hardware')}: {html.escape(found.hardware)}"
    said = [feedback.warning(text) for text in found.notices()]
    return [f'<p class="ft-facts" id="hardware">{name}</p>', *said]


def launch(page: gr.Blocks, store: RunStore, **options: Any) -> Any:
    """Serve the page, with what Gradio 6 takes at launch: theme, css, no call to outside.

    Args:
        store: what `build` was given; its downloads have routes of their own.
    """
    settings: dict[str, Any] = {
        "theme": theme.theme(),
        "css": theme.variables(),
        "css_paths": theme.CSS,
        "favicon_path": theme.FAVICON,
        "head": f"<script>{theme.SCRIPT.read_text(encoding='utf-8')}</script>{i18n.SCRIPT}",
        "ssr_mode": False,
        "run_history": False,
        "footer_links": ["api", "settings"],  # the endpoints, and the theme's switch
        "max_file_size": upload_limits.MOST,
        "num_workers": 0,  # processes that serve files beside the app, and ask nobody
        "mcp_server": True,
        "i18n": i18n.browser_translations(page),
    }
    settings |= options
    origins.proxies()  # wrong ones are said now
    # Uvicorn would believe what this machine says of a request, before `origins` sees who asks.
    os.environ["FORWARDED_ALLOW_IPS"] = ""
    bound = settings.get("server_name") or os.environ.get("GRADIO_SERVER_NAME") or "127.0.0.1"
    names = origins.Names(bound, lambda: page.share_url or "")
    settings["app_kwargs"] = routes.app_options(store, names)
    # Gradio looks into its queue a thousand times a second (twenty on Windows); each look takes a
    # core from a training step on a CPU for a moment, and both cores wait for the slower.
    page._queue.sleep_when_free = 0.02
    if settings.get("server_port"):
        return page.launch(**settings)
    return _on_a_free_port(page, settings)


def _on_a_free_port(page: gr.Blocks, settings: dict[str, Any]) -> Any:
    """Serve on the first free port from Gradio's own first on.

    Gradio would go on to the next port by itself when another program takes one just before it, or
    when its server takes more than five seconds to start, but with MCP's session manager of the
    first attempt, which runs only once: no further attempt could succeed.

    Raises:
        OSError: when no port is free.
    """
    first, count = http_server.INITIAL_PORT_VALUE, http_server.TRY_NUM_PORTS
    ports = range(first, first + count)
    for port in filter(_is_free, ports):
        kwargs = dict(settings["app_kwargs"])  # Gradio writes the manager's lifespan into it
        try:
            return page.launch(**settings | {"server_port": port, "app_kwargs": kwargs})
        except OSError as error:
            if "empty port" not in str(error):
                raise
    raise OSError(f"No port from {ports[0]} to {ports[-1]} is free; name another with --port.")


def _is_free(port: int) -> bool:
    with socket.socket() as tried, contextlib.suppress(OSError):
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tried.bind(("127.0.0.1", port))
        return True
    return False
