"""An engine is chosen in the form and by flags, with its options, prices and consent."""

from __future__ import annotations

import argparse

import gradio as gr
import pytest

from finetune import owners
from finetune.cli import options
from finetune.config import RunConfig
from finetune.engines import registry
from finetune.engines.base import EngineSpec, write_spec
from finetune.errors import ConfigError, JobError
from finetune.jobs import cost
from finetune.runs.store import RunStore
from finetune.ui import run_view
from finetune.ui.engine_form import Choice, EngineForm
from tests.support.engines import engine_values
from tests.support.hub import TOKEN, LoopbackHub
from tests.support.tabs import NOBODY


@pytest.fixture(autouse=True)
def signed_in(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)


@pytest.fixture
def engine_form(store: RunStore) -> EngineForm:
    form = EngineForm(store)
    with gr.Blocks():
        form.draw()
    return form


def test_the_form_has_its_machines_prices_and_consent(engine_form: EngineForm) -> None:
    form = engine_form
    assert ("Hugging Face Job", "hub-job") in form.engine.choices
    told = form.on_engine(NOBODY, "hub-job")
    machine = told[form.controls["job", "flavor"]]
    label = "a10g-small \u00b7 $1.00/h \u00b7 Nvidia A10G - small, 4 vCPU, 15 GB"
    assert machine["choices"][3] == (label, "a10g-small")
    assert machine["value"] == "t4-small"
    typed = {"flavor": "a10g-small", "minutes": "1,5"}
    choice = Choice("hub-job", typed, prices=told[form.prices])
    with pytest.raises(ConfigError, match=r"minutes is '1\.5'"):
        choice.spec()
    choice = form.read(engine_values(form, choice._replace(values=typed | {"minutes": "20"})))
    with pytest.raises(JobError, match="A Hugging Face Job is billed to your account"):
        form.checked(choice)
    spec = form.checked(choice._replace(agreed=True))
    assert spec.place == "hub-job a10g-small"
    assert spec.options["price"] == pytest.approx(1.0, abs=1e-4)
    assert (spec.options["minutes"], spec.options["dollars_a_run"]) == (20, 1.0)
    text = str(form.priced(form.store, choice, cost.Estimate(), 2)[form.price])
    assert "after 20 minutes, at most $0.34" in text
    assert "All 2 runs: at most $0.67" in text


def parsed(words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    options.add_engine(parser)
    return parser.parse_args(words.split())


def test_the_command_line_has_its_flags(capsys: pytest.CaptureFixture[str]) -> None:
    args = parsed("--engine hub-job --flavor a10g-small --namespace ada --minutes 10 --nodes 2")
    spec = options.engine_spec(args)
    assert spec is not None
    assert spec.options["namespace"] == "ada"
    assert "nodes" not in spec.options
    with pytest.raises(JobError, match="The price was not agreed to"):
        options.agree(args, spec)
    told = "hub-job a10g-small: $1.00 an hour; it stops by itself after 10 minutes, at most $0.17."
    assert told in capsys.readouterr().err
    options.agree(parsed("--yes"), spec)
    unknown = parsed("--engine hub-job --flavor huge")
    with pytest.raises(JobError, match=r"there is no machine 'huge'\. Choose one of: cpu-basic,"):
        options.engine_spec(unknown)


def test_a_run_shows_its_engine_and_machine_also_where_the_engine_is_gone(store: RunStore) -> None:
    run = store.create(RunConfig())
    write_spec(run, registry.make_spec("hub-job", {"flavor": "t4-small", "price": 0.4}))
    assert "Hugging Face Job t4-small" in run_view.bar(run, run.state())
    write_spec(run, EngineSpec(engine="gone", options={"flavor": "huge"}))
    assert "gone huge" in run_view.bar(run, run.state())
    assert registry.is_remote(run)
    with pytest.raises(JobError, match=r"no engine 'gone'\. Choose one of: local, .*ray"):
        registry.open_engine(EngineSpec(engine="gone"))


@pytest.mark.parametrize("named", ["", "10.0.0.2:6379"])
def test_visitors_are_offered_a_cluster_that_the_owner_has_named(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    monkeypatch.setenv("RAY_ADDRESS", named)
    form = EngineForm(store)
    with gr.Blocks():
        form.draw()
    assert owners.policy().several_people
    assert [name for _, name in form.engine.choices] == [
        "local", "hub-job", *(["ray"] if named else [])
    ]  # fmt: skip
    if named:
        assert not form.controls["ray", "address"].visible
    with pytest.raises(ConfigError, match="address cannot be named here"):
        registry.check_visitors_options(registry.make_spec("ray", {"address": "10.0.0.1:1"}))
    registry.check_visitors_options(registry.make_spec("ray", {"nodes": 2}))
