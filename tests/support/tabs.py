"""Tabs that are drawn on a page of their own, so that a test can call their handlers."""

from __future__ import annotations

import gradio as gr

from finetune.runs.store import RunStore
from finetune.ui import form
from finetune.ui.tabs.data import DataTab
from finetune.ui.tabs.predict import PredictTab
from finetune.ui.tabs.publish import PublishTab


def data_tab(store: RunStore) -> DataTab:
    tab = DataTab(store)
    with gr.Blocks():
        tab.draw_poller()
        tab.wire(form.draw(tab.draw()))
    return tab


def predict_tab(store: RunStore) -> PredictTab:
    tab = PredictTab(store)
    with gr.Blocks():
        tab.draw_memory()
        tab.draw()
    return tab


def publish_tab(store: RunStore) -> PublishTab:
    tab = PublishTab(store)
    with gr.Blocks():
        tab.draw()
    return tab
