"""Tabs that are drawn on a page of their own, so that a test can call their handlers."""

import gradio as gr
from starlette.requests import Request

from finetune.config import BUNDLED_DATASET, RunConfig
from finetune.jobs import check
from finetune.ui import auth, form
from finetune.ui.tabs.data import DataTab
from finetune.ui.tabs.predict import PredictTab
from finetune.ui.tabs.publish import PublishTab
from finetune.ui.tabs.train import TrainTab

# Of the run that the fixture `hers` makes.
NAME = "Adas-secret-name"
LOG = "what-the-worker-printed"


def data_tab(store):
    tab = DataTab(store)
    with gr.Blocks():
        tab.draw_poller()
        tab.wire(form.draw_advanced(tab.draw() | form.draw_common()))
    return tab


def new_check(store, dataset=BUNDLED_DATASET):
    """The check of some pairs, before its process starts."""
    config = RunConfig(dataset=dataset)
    job = check.check_folder(store, config)
    job.folder.mkdir(parents=True)
    job.describe_job("check", "", config.to_dict())
    return job


def drawn(part):
    """A tab or a part of one, on a page of its own."""
    with gr.Blocks():
        part.draw()
    return part


def predict_tab(store):
    return drawn(PredictTab(store))


def publish_tab(store):
    return drawn(PublishTab(store))


def push_form(run_id):
    """What Check and Push are given: a run of ada's, to be pushed under a name."""
    return [run_id, "ada", "pairs", False, "", False, "cpu-basic", ""]


# Sends the requests of callbacks that are called from here.
NOBODY = gr.Request(Request({"type": "http", "headers": [], "session": {}}))


def form_values(config, **changes):
    """What the form's controls show for a configuration, some of them changed to anything."""
    return [changes.get(name, getattr(config, name)) for name in form.NAMES]


def draw_train(store):
    """The Train tab on a page of its own, with Data's chooser of pairs."""
    tab = TrainTab(store)
    with gr.Blocks():
        tab.draw(form.draw_data()[0], gr.Dropdown())
    return tab


def asks(secret):
    headers = [(auth.HEADER.encode(), secret.encode())]
    return gr.Request(Request({"type": "http", "headers": headers, "session": {}}))
