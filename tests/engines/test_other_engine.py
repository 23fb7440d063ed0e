"""An engine that an installed package brings has its place in the form, the flags and Python."""

from __future__ import annotations

import argparse

import gradio as gr
import pytest

from finetune import owners
from finetune.cli import engine_arguments
from finetune.config import RunConfig
from finetune.engines import registry
from finetune.engines.base import EngineSpec, write_spec
from finetune.errors import ConfigError, JobError
from finetune.jobs import cost
from finetune.runs.store import RunStore
from finetune.search import limits
from finetune.search.space import Budget
from finetune.ui import run_view
from finetune.ui.engine_form import Choice, EngineForm
from tests.support.engines import engine_values
from tests.support.tabs import NOBODY

pytestmark = pytest.mark.usefixtures("other")
SMALL = {"flavor": "small", "price": 0.36}


@pytest.fixture
def engine_form(store: RunStore) -> EngineForm:
    form = EngineForm(store)
    with gr.Blocks():
        form.draw()
    return form


def test_the_form_has_its_options_machines_prices_and_consent(engine_form: EngineForm) -> None:
    form = engine_form
    assert ("Other machine", "other") in form.engine.choices
    queue, niceness = form.controls["other", "queue"], form.controls["other", "niceness"]
    assert (queue.label, queue.info, queue.value) == ("Queue", "Where the process waits.", "short")
    assert niceness.value == "0"
    told = form.on_engine(NOBODY, "other")
    machine = told[form.controls["job", "flavor"]]
    assert machine["choices"][1] == ("large \u00b7 $1.44/h \u00b7 2 cores", "large")
    assert machine["value"] == "large"
    typed = {"flavor": "large", "minutes": "20", "queue": "long", "niceness": "1,5"}
    choice = Choice("other", typed, prices=told[form.prices])
    with pytest.raises(ConfigError, match=r"niceness is '1\.5'"):
        choice.spec()
    choice = form.read(engine_values(form, choice._replace(values=typed | {"niceness": "3"})))
    with pytest.raises(JobError, match="A Other machine is billed to your account"):
        form.checked(choice)
    spec = form.checked(choice._replace(agreed=True))
    assert spec.place == "other large"
    assert spec.options == {
        "flavor": "large", "minutes": 20, "price": 1.44, "dollars_a_run": 1.0,
        "dollars_a_day": 5.0, "queue": "long", "niceness": 3,
    }  # fmt: skip
    text = str(form.priced(form.store, choice, cost.Estimate(), 2)[form.price])
    assert "after 20 minutes, at most $0.48" in text
    assert "All 2 runs: at most $0.96" in text


def test_what_is_typed_for_one_engine_is_not_sent_to_another(engine_form: EngineForm) -> None:
    values = engine_values(engine_form, Choice("other", {"queue": "long", "nodes": "2"}))
    for name, options in (("ray", {"address", "nodes"}), ("local", set())):
        choice = engine_form.read([name, *values[1:]])
        assert choice.values.keys() == options
        assert engine_form.checked(choice).engine == name


def parsed(words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    engine_arguments.add_arguments(parser)
    return parser.parse_args(words.split())


def test_the_command_line_has_its_flags(capsys: pytest.CaptureFixture[str]) -> None:
    args = parsed("--engine other --flavor large --queue long --minutes 10 --nodes 2")
    spec = engine_arguments.spec_from_arguments(args)
    assert spec is not None
    assert (spec.options["queue"], spec.options["price"]) == ("long", 1.44)
    assert "nodes" not in spec.options
    with pytest.raises(JobError, match="The price was not agreed to"):
        engine_arguments.agree(args, spec)
    told = "other large: $1.44 an hour; it stops by itself after 10 minutes, at most $0.24."
    assert told in capsys.readouterr().err
    engine_arguments.agree(parsed("--yes"), spec)
    unknown = parsed("--engine other --flavor huge")
    with pytest.raises(JobError, match=r"there is no machine 'huge'\. Choose one of: small, large"):
        engine_arguments.spec_from_arguments(unknown)


def test_a_search_on_it_needs_a_number_of_trials() -> None:
    spec = registry.make_spec("other", SMALL)
    assert limits.trial_price(spec) == pytest.approx(0.18)
    with pytest.raises(ConfigError, match="each trial is billed"):
        limits.check_price(Budget(trials=0, minutes=5), spec)


def test_its_run_shows_its_name_and_machine_and_an_engine_that_is_gone_its_own(
    store: RunStore,
) -> None:
    run = store.create(RunConfig())
    write_spec(run, registry.make_spec("other", SMALL))
    assert "Other machine small" in run_view.bar(run, run.state())
    write_spec(run, EngineSpec(engine="gone", options={"flavor": "huge"}))
    assert "gone huge" in run_view.bar(run, run.state())
    assert registry.is_remote(run)
    with pytest.raises(JobError, match=r"no engine 'gone'\. Choose one of: local, .*other"):
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
        "local", "hub-job", *(["ray"] if named else []), "other"
    ]  # fmt: skip
    if named:
        assert not form.controls["ray", "address"].visible
    with pytest.raises(ConfigError, match="address cannot be named here"):
        registry.check_visitors_options(registry.make_spec("ray", {"address": "10.0.0.1:1"}))
    registry.check_visitors_options(registry.make_spec("ray", {"nodes": 2}))
