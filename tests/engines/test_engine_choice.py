"""An engine is chosen with its options, its price and consent; what jobs may cost and have cost."""

import argparse
from concurrent.futures import ThreadPoolExecutor

import gradio as gr
import pytest

from finetune import disk
from finetune.cli import options
from finetune.config import RunConfig
from finetune.engines import registry, spending
from finetune.errors import ConfigError, FinetuneError, JobError, StoreError
from finetune.jobs import cost
from finetune.owners import SharedApp, Visitor
from finetune.ui.engine_form import Choice, EngineForm
from tests.support.hub import TOKEN
from tests.support.running import engine_values
from tests.support.tabs import NOBODY


@pytest.fixture(autouse=True)
def signed_in(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)


def drawn(store):
    form = EngineForm(store)
    with gr.Blocks():
        form.draw()
    return form


def test_the_form_has_its_machines_prices_and_consent(store):
    form = drawn(store)
    assert ("Hugging Face Job", "hub-job") in form.engine.choices
    told = form.on_engine(NOBODY, "hub-job", "", None, None)
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


def parsed(words):
    parser = argparse.ArgumentParser()
    options.add_engine(parser)
    return parser.parse_args(words.split())


def test_the_command_line_has_its_flags(capsys):
    args = parsed("--engine hub-job --flavor a10g-small --namespace ada --minutes 10 --nodes 2")
    spec = options.engine_spec(args)
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


@pytest.mark.parametrize(
    ("engine", "values", "said"),
    [
        ("hub-job", {"minutes": 0, "color": "red"}, r"minutes is 0.*color is"),
        ("hub-job", {"minutes": True}, "minutes is True: "),
        ("hub-job", {"minutes": "1.000"}, r"minutes is '1\.000': "),
        ("hub-job", {"dollars_a_run": float("nan")}, "dollars_a_run is nan: "),
        ("hub-job", {"dollars_a_run": "1,5"}, "dollars_a_run is '1,5': "),
        ("cloud", {}, "engine is 'cloud'; choose one of: local, hub-job"),
        ("local", {"minutes": 5}, "minutes is of another engine"),
    ],
    ids=str,
)
def test_options_that_are_wrong_are_all_named(engine, values, said):
    with pytest.raises(FinetuneError, match=said):
        registry.make_spec(engine, values)


@pytest.mark.parametrize("named", ["", "10.0.0.2:6379"])
def test_visitors_are_offered_a_cluster_that_the_owner_has_named(store, monkeypatch, named):
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    monkeypatch.setenv("RAY_ADDRESS", named)
    form = drawn(store)
    offered = [name for _, name in form.engine.choices]
    assert offered == ["local", "hub-job", *["ray"] * bool(named)]
    if named:
        assert not form.controls["ray", "address"].visible
    with pytest.raises(ConfigError, match="address cannot be named here"):
        registry.check_options(registry.make_spec("ray", {"address": "10.0.0.1:1"}), SharedApp())
    registry.check_options(registry.make_spec("ray", {"nodes": 2}), SharedApp())


def test_no_reservation_is_lost_and_none_is_made_without_a_note(store, monkeypatch):
    """A process may be killed while it writes one, and a disk full; owners have any names."""

    def write_half(path, line):
        with path.open("ab") as torn:
            torn.write(line[: len(line) // 2])

    visitor = store.for_visitor(Visitor(("a\u2028b\x85c",)))
    runs = [visitor.create(RunConfig()) for _ in range(3)]
    spending.reserve(runs[0], 1, most=2.5, a_run=5.0, a_day=5.0)
    with monkeypatch.context() as patch:
        patch.setattr(disk, "append_line", write_half)
        with pytest.raises(StoreError, match=r"spending.jsonl does not keep what the job may cost"):
            spending.reserve(runs[1], 1, most=2.5, a_run=5.0, a_day=5.0)
    spending.reserve(runs[1], 1, most=2.5, a_run=5.0, a_day=5.0)
    assert [spending.spent_in(run) for run in runs] == [2.5, 2.5, 0.0]
    with pytest.raises(JobError, match=r"may cost \$2.50; \$5.00 of the \$5.00 for 24 hours are"):
        spending.reserve(runs[2], 1, most=2.5, a_run=5.0, a_day=5.0)
    assert spending.spent_today(store.root, runs[0].owner) == 5.0


def test_jobs_that_begin_at_once_see_each_others_cost(store):
    runs = [store.create(RunConfig()) for _ in range(8)]

    def reserve(run):
        try:
            spending.reserve(run, 1, most=1.0, a_run=2.0, a_day=3.0)
        except JobError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(reserve, runs)) == 3
    assert spending.spent_today(store.root, "") == 3.0
    begun = next(run for run in runs if spending.spent_in(run))
    spending.reserve(begun, 1, most=1.0, a_run=1.0, a_day=3.0)  # the same attempt once more
    spending.note(begun, 1, 0.25)
    assert spending.spent_today(store.root, "") == 2.25


@pytest.mark.parametrize(
    ("dollars", "most", "left"),
    [(0.015, 0.02, 0.01), (0.0001, 0.01, 0.0), (0.29, 0.29, 0.29), (1.1, 1.1, 1.1), (0.0, 0.0, 0.0),
     (0.1 + 0.2, 0.3, 0.3), (12.341, 12.35, 12.34)],
)  # fmt: skip
def test_bounds_are_rounded_to_the_side_on_which_they_hold(dollars, most, left):
    assert spending.rounded_up(dollars) == most
    assert spending.rounded_down(dollars) == left
