"""The whole page: head, tabs, the events that concern more than one of them, and its server."""

from __future__ import annotations

import contextlib
import copy
import html
import json
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
from gradio import http_server, route_utils, state_holder, utils
from gradio.state_holder import SessionState
from markupsafe import Markup

from finetune import owners
from finetune.environment import devices
from finetune.hub import client
from finetune.runs.store import RunStore
from finetune.ui import auth, elements, feedback, i18n, origins, routes, upload_limits
from finetune.ui.api import Api
from finetune.ui.html import ASSETS, asset, macro
from finetune.ui.i18n import number, page_text
from finetune.ui.tabs.data import DataTab
from finetune.ui.tabs.predict import PredictTab
from finetune.ui.tabs.publish import PublishTab
from finetune.ui.tabs.runs import RunsTab
from finetune.ui.tabs.train import TrainTab

ZERO_GPU = (
    "This Space runs on ZeroGPU, which lends a GPU to short functions only: a training is a "
    "process of its own and gets none. Training needs ordinary GPU hardware, such as t4-small; "
    "here it runs on the CPU, slowly."
)
NO_GPU = (
    "This Space has no GPU, so training runs on the CPU: fine for the bundled pairs, slow for "
    "more. Its owner can choose GPU hardware, such as t4-small, in its settings."
)
NOT_LASTING = (
    "Runs are lost when this Space restarts: publish what you want to keep. Its owner can mount a "
    "bucket and set FINETUNE_RUNS to a folder in it."
)
MOST_SESSIONS = 1000  # the least recently used is forgotten first
_QUIET = {"show_progress": "hidden", "api_visibility": "private"}


def build(store: RunStore) -> gr.Blocks:
    """Build the page over a store of runs. Imports no torch."""
    # Seconds between checks of the uploads; age at which those without a store copy are removed.
    delete_cache = (60, 3600) if owners.policy().several_people else (3600, 24 * 3600)
    page = Page(
        title="Finetune", analytics_enabled=False, fill_width=True, delete_cache=delete_cache
    )
    with page:
        nowhere = gr.Button(visible=False)
        # Hidden from screen readers: the name is beside it.
        logo = asset("logo.svg").replace("<svg", '<svg aria-hidden="true"', 1)
        claim = page_text("Teach a model to sort, compare or score your texts.")
        name = f"<div><h1>Finetune</h1><p>{claim}</p></div>"
        with gr.Row(elem_classes="ft-top"):
            gr.HTML(f'<header class="ft-head">{logo}{name}</header>')
            with gr.Row(elem_classes="ft-side"):
                side = gr.HTML(js_on_load=elements.TAB_LINKS)
                auth.sign_in_button()
        page.load(head_side, None, side, **feedback.QUICK)
        for notice in notices(store):
            gr.HTML(notice)
        tabs = _Tabs(store)
        tabs.draw()
        Api(store, tabs.predict.models).wire()
        tabs.wire(page)
        # At each stage of an event Gradio's script visits all components where it may show
        # progress, and counts time on each of them until it ends, for each frame of the screen.
        for event in page.fns.values():
            if event.show_progress == "hidden":
                event.show_progress_on = [nowhere]
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
                self.train.draw(data_controls, self.data.dataset)
            with gr.Tab("Runs", id="runs") as self.runs_tab:
                self.runs.draw()
            with gr.Tab("Predict", id="predict") as self.predict_tab:
                self.predict.draw()
            with gr.Tab("Publish", id="publish") as self.publish_tab:
                self.publish.draw()
        self.data.wire(self.train.form)

    def wire(self, page: gr.Blocks) -> None:
        """Connect what happens when the page is loaded, the form filled or a tab selected."""
        data, train, runs, predict = self.data, self.train, self.runs, self.predict
        quick = feedback.QUICK
        restored = train.filled
        filled = [*restored, self.tabs]
        for panel in (runs, runs.evaluation, predict.files.rows, data.label):
            panel.filled = filled

        # The newest run, the form as it was, and the Hub's default if the Hub answers.
        train.listen(train.on_arrival, page.load)
        page.load(**train.costing)
        default = [train.form["dataset"], train.form["checkpoint"]]
        marked = [train.hub, train.form["checkpoint"], train.probe.names]
        page.load(train.on_restore, train.stored, [*restored, train.message], **quick).then(
            train.on_hub, None, marked, concurrency_limit=None, **_QUIET
        ).then(
            None,
            [train.hub, train.stored, *default],
            [*default, data.dataset],
            js=train.choosing_default(),
            **quick,
        ).then(**data.examining(), **quick)

        # A file dropped on Train is kept as one dropped on Data, which shows what it holds.
        dropped = [train.drop, *(gr.State(None) for _ in data.files[1:])]
        boxes = [train.drop, *data.files]  # those of Data may hold an earlier file
        empty = json.dumps([None] * len(boxes))
        opened = "document.querySelector('#tabs [data-tab-id=data]').click()"
        train.drop.upload(data.on_upload, dropped, data.outputs(), **feedback.LATEST).then(
            None, None, boxes, js=f"() => {{ {opened}; return {empty}; }}", **quick
        )

        # The form from a file or a run, and its costs once the pairs are counted. A `gr.State`
        # would not do: Gradio reports its changes for queued events only.
        data.poller.change(**train.costing)
        loaded = [*restored, train.setup, train.message]
        train.load.upload(train.on_load, train.load, loaded, **quick)
        copied = runs.listen(runs.on_clone, runs.clone.click, outputs=[*filled, runs.message])
        opens_form = {"js": "() => document.querySelector('#new-run').click()", **quick}
        copied.then(None, None, None, **opens_form)
        for part in (runs.evaluation, predict.files.rows, data.label):
            part.listen(
                part.on_start, part.start.click, outputs=[*filled, part.message], queue=True,
                show_progress="minimal", concurrency_limit=2,
            ).then(None, None, None, **opens_form).then(**data.examining(), **quick)  # fmt: skip
        folds = [train.form["folds"], train.message]
        chosen = train.planned.select(train.on_folds, None, folds, **quick)
        chosen.then(**data.examining(), **quick)
        # Selecting a tab updates it.
        self.data_tab.select(**data.examining(), **quick)
        data.label.listen(data.label.on_turn, self.data_tab.select)
        runs.listen(runs.on_open, self.runs_tab.select)
        runs.evaluation.wire([runs.address.change, self.runs_tab.select])
        self.train_tab.select(**train.costing)
        train.listen(train.on_turn, self.train_tab.select)
        returns = [self.data_tab.select, self.train_tab.select, train.queue.select]
        gr.on(returns, train.on_restore, gr.State(None), data.datasets, **quick)  # to new uploads
        predict.files.listen(predict.files.on_open, self.predict_tab.select)
        opened = predict.listen(predict.on_open, self.predict_tab.select)
        opened.then(**predict.opened, concurrency_limit=1, **_QUIET)
        runs.confirmed.then(train.on_deletion, train.live, train.outputs(), **quick)
        opened = self.publish.listen(self.publish.on_open, self.publish_tab.select)
        opened.then(**self.publish.showing)


def head_side() -> Markup:
    """The right end of the head, for the visitor who opens the page."""
    alone = not owners.policy().several_people
    signed_in = bool(client.stored_token()) if alone else None
    return macro("head.html", "side")(signed_in, *map(number, ",."))


def notices(store: RunStore) -> list[str]:
    """Return the notices for visitors of a Space, for the head of the page: its hardware, and
    whether its storage persists. None outside a Space.

    Source of the variables: https://huggingface.co/docs/hub/spaces-overview and
    https://huggingface.co/docs/hub/spaces-zerogpu.
    """
    if not os.environ.get("SPACE_ID"):
        return []
    lasting = [] if is_mounted(store.root) else [NOT_LASTING]
    hardware, notices = os.environ.get("ACCELERATOR", "").replace("none", ""), lasting
    if os.environ.get("SPACES_ZERO_GPU", "").lower() in {"1", "t", "true"}:
        hardware, notices = "ZeroGPU", [ZERO_GPU, *lasting]
    elif gpus := len(devices.list_accelerators()):
        hardware = hardware or f"{gpus} GPU"
    else:
        hardware, notices = hardware or "CPU", [NO_GPU, *lasting]
    label = page_text("Hardware")
    text = f"{label}: {html.escape(hardware)}"
    address = html.escape(f"https://huggingface.co/spaces/{os.environ['SPACE_ID']}?duplicate=true")
    label = page_text("Duplicate this Space")
    copy = f'<a href="{address}" target="_blank">{label}</a>'
    warnings = map(macro("feedback.html", "warning"), notices)
    facts = (f'<p class="ft-facts" id="hardware">{text}</p>', f'<p class="ft-facts">{copy}</p>')
    return [*facts, *warnings]


def is_mounted(path: Path) -> bool:
    """True if a folder is on a mounted disk, and not on the machine's own disk or in memory."""
    if Path(tempfile.gettempdir()) in path.parents:
        return False
    return any(map(os.path.ismount, [path, *path.parents][:-1]))


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


class Page(gr.Blocks):
    """Blocks in which an output that stays as it is takes no time. A panel's handlers have all of
    its components as outputs, and Gradio would make each anew."""

    async def postprocess_data(self, block_fn: Any, predictions: Any, state: Any) -> list[Any]:
        updates = isinstance(predictions, dict) and len(block_fn.outputs) > 1
        if not updates or predictions.keys() - {*block_fn.outputs, *gr.skip()}:
            return await super().postprocess_data(block_fn, predictions, state)
        answers = [None if block.stateful else gr.skip() for block in block_fn.outputs]
        for place, block in enumerate(block_fn.outputs):
            if block in predictions:
                one = copy.copy(block_fn)
                one.outputs = [block]
                [answers[place]] = await super().postprocess_data(one, predictions[block], state)
        return answers


def _theme() -> gr.themes.Base:
    """Fonts that need no network. Weights 400 and 700 only: the bundled SemiBold lacks letters."""
    sans = gr.themes.LocalFont("IBM Plex Sans", weights=(400, 700))
    mono = gr.themes.LocalFont("IBM Plex Mono", weights=(400, 700))
    return gr.themes.Default(
        font=[sans, "ui-sans-serif", "system-ui", "sans-serif"],
        font_mono=[mono, "ui-monospace", "monospace"],
    )


def launch(page: gr.Blocks, store: RunStore, **options: Any) -> Any:
    """Serve the page; `options` override our arguments of Gradio's `launch`."""
    origins.trusted_proxies()  # a wrong one is reported now
    # Uvicorn would believe the proxy headers of this machine's programs before `origins` looks.
    os.environ["FORWARDED_ALLOW_IPS"] = ""
    # Gradio would import matplotlib for the first event, which takes a second.
    utils.MatplotlibBackendMananger = contextlib.nullcontext  # type: ignore[assignment, misc]
    # Gradio polls its queue a thousand times a second (twenty on Windows). Each poll briefly takes
    # a core from a training step on a CPU, and both cores wait for the slower one.
    page._queue.sleep_when_free = 0.02
    state_holder.SessionState = Session  # type: ignore[misc]
    route_utils.SessionState = Session  # type: ignore[attr-defined]
    name = options.get("server_name") or os.environ.get("GRADIO_SERVER_NAME") or "127.0.0.1"
    hosts = origins.AllowedHosts(name, lambda: page.share_url or "")
    # Colours, what gives them to Gradio's parts; page.css has the rest.
    style = asset("palette.css") + asset("gradio.css")
    scripts = "".join(map(asset, ("page.js", "charts.js", "address.js", "news.js")))
    settings: dict[str, Any] = {
        "theme": _theme(),
        "css_paths": ASSETS / "page.css",
        "favicon_path": ASSETS / "favicon.svg",
        "head": f"<style>{style}</style><script>{scripts}</script>",
        "ssr_mode": False,
        "_frontend": False,  # Gradio would give up if the first page took 3 s (a busy machine)
        "run_history": False,
        "enable_monitoring": False,
        "footer_links": ["api", "settings"],
        "max_file_size": upload_limits.MAX_FILE_BYTES,
        "state_session_capacity": MOST_SESSIONS,
        "num_workers": 0,  # more would serve files from processes that ask nobody who they are
        "mcp_server": True,
        "i18n": i18n.browser_translations(page),
        **options,
        "app_kwargs": routes.app_options(store, hosts),
    }
    if settings.get("server_port"):
        return page.launch(**settings)
    # Gradio tries further ports by itself, but with the MCP session manager of the first attempt,
    # which runs only once; so each attempt here is a launch of its own.
    first = http_server.INITIAL_PORT_VALUE
    for port in range(first, first + http_server.TRY_NUM_PORTS):
        kwargs = dict(settings["app_kwargs"])  # Gradio writes into it
        try:
            return page.launch(**settings | {"server_port": port, "app_kwargs": kwargs})
        except OSError as error:
            if "empty port" not in str(error):
                raise
    raise OSError(f"No port from {first} to {port} is free; name another with --port.")
