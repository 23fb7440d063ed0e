"""The page whole: head, tabs, and the events that concern more than one of them."""

from __future__ import annotations

from typing import Any

import gradio as gr

from finetune.store import RunStore
from finetune.ui import theme
from finetune.ui.data import DataTab
from finetune.ui.predict import PredictTab
from finetune.ui.publish import PublishTab
from finetune.ui.train import TrainTab

HEAD = """
<header class="ft-head"><h1>Finetune</h1>
<p>Teach a transformer when two sentences mean the same.</p></header>
"""


def build(store: RunStore, spare: bool = False) -> gr.Blocks:
    """The page over a store of runs. Imports no torch.

    Args:
        spare: keep a worker waiting that has imported already, so that Train begins at once.
    """
    page = gr.Blocks(title="Finetune", analytics_enabled=False, fill_width=True)
    with page:
        gr.HTML(HEAD)
        train, predict, publish = TrainTab(store, spare), PredictTab(store), PublishTab(store)
        data = DataTab(store)
        # Train is in front: two clicks from the page to a trained model.
        with gr.Tabs(elem_id="tabs", selected="train"):
            with gr.Tab("Data", id="data") as data_tab:
                drawn = data.draw()
            with gr.Tab("Train", id="train"):
                train.draw(drawn)
            with gr.Tab("Predict", id="predict") as predict_tab:
                predict.draw()
            with gr.Tab("Publish", id="publish") as publish_tab:
                publish.draw()
        data.wire(train.form)
        quick: dict[str, Any] = {
            "queue": False,
            "show_progress": "hidden",
            "api_visibility": "private",
        }
        page.load(train.on_open, None, [train.runs, train.seen], **quick)
        what = [train.form["dataset"], train.form["checkpoint"]]
        restored = [*train.form.values(), data.dataset]
        page.load(train.on_restore, train.kept, restored, **quick).then(
            train.on_hub,
            None,
            [train.hub, train.answers],
            concurrency_limit=None,
            show_progress="hidden",
            api_visibility="private",
        ).then(train.on_default, [train.answers, *what], [*what, data.dataset], **quick).then(
            **{**data.asking, "fn": data.on_follow}, **quick
        )
        data_tab.select(**data.asking, **quick)
        predict_tab.select(
            predict.on_open, predict.run, [predict.run, predict.empty, predict.ask], **quick
        ).then(
            predict.on_warm, predict.run, None,
            concurrency_limit=1, show_progress="hidden", api_visibility="private",
        )  # fmt: skip
        publish_tab.select(
            publish.on_open, publish.run, [publish.run, publish.empty, publish.push], **quick
        )
    return page


def launch(page: gr.Blocks, **options: Any) -> Any:
    """Serve the page, with what Gradio 6 takes at launch: theme, css, no call to outside."""
    settings: dict[str, Any] = {
        "theme": theme.theme(),
        "css_paths": theme.CSS,
        "ssr_mode": False,
        "run_history": False,
        "footer_links": ["settings"],  # its theme switch; no endpoint is public yet
        "max_file_size": "500mb",
    }
    # Gradio looks into its queue a thousand times a second (twenty on Windows); each look takes a
    # core from a training step on a CPU for a moment, and both cores wait for the slower.
    page._queue.sleep_when_free = 0.02
    return page.launch(**(settings | options))
