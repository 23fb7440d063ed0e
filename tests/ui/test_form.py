"""The form: what it shows is read back, whatever is automatic, typed with a comma, or in doubt."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from finetune import config as configs
from finetune.config import PRESETS, RunConfig, hyperparameters, preset
from finetune.engines.base import EngineSpec
from finetune.errors import ConfigError
from finetune.runs import grids
from finetune.runs.store import RunStore
from finetune.search.space import Budget
from finetune.ui import elements, form, train_plan
from finetune.ui.engine_form import Choice
from finetune.ui.tabs.train import TrainTab
from tests.support.browser import new_page
from tests.support.tabs import NOBODY, draw_train

FIELDS = [*[""] * (len(train_plan.FIELDS) - 1), "4, 8"]  # of a search


def shown(store: RunStore, config: RunConfig) -> dict[str, object]:
    values = form.filled(store, config)[:-1]
    return {
        name: value["value"] if isinstance(value, dict) else value
        for name, value in zip(form.NAMES, values, strict=True)
    }


@pytest.mark.parametrize("name", PRESETS)
def test_what_is_shown_is_read_back(store: RunStore, name: str) -> None:
    config = RunConfig(**preset(name), dataset="glue/mrpc", adam_beta1=0.8, padding="max_length")
    assert form.read(list(shown(store, config).values())) == config


def test_no_box_shows_a_number_that_stands_for_automatic(store: RunStore) -> None:
    values = shown(store, RunConfig(dropout=-1))
    automatic = ("learning_rate", "per_device_train_batch_size", "num_train_epochs",
                 "max_steps", "warmup_steps", "dropout", "eval_steps",
                 "save_steps", "early_stopping_patience", "pad_to_multiple_of")  # fmt: skip
    assert {values[name] for name in automatic} == {""}
    assert "-1" not in values.values()
    assert form.read(list(values.values())).dropout == -1
    for name, field in hyperparameters().items():
        if field.words:
            assert getattr(form.read([""], [name]), name) == next(iter(field.words))


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("0,0001", "0.0001"), ("0,001", "0.001"), (",5", ".5"), ("1,5", "1.5"),
        ("2,0e-5", "2.0e-5"), (" 0,05 ", "0.05"), ("0.0001", "0.0001"), ("1e-4", "1e-4"),
        (0.5, 0.5), (None, None),
        ("1,000", "1,000"), ("12,345", "12,345"), ("1,234.5", "1,234.5"), ("1.234,5", "1.234,5"),
        ("1,2,3", "1,2,3"), ("a,b", "a,b"), ("", ""),
    ],
)  # fmt: skip
def test_a_comma_is_a_decimal_sign_where_it_can_be_nothing_else(
    typed: object, read: object
) -> None:
    assert elements.decimal(typed) == read


@pytest.mark.parametrize("typed", ["1.000", "1,000", "1.5", "1e3", "1_000", "ten"])
def test_what_may_be_a_thousand_is_no_whole_number(typed: str) -> None:
    values = RunConfig().to_dict() | {"max_steps": typed, "seed": " 7 "}
    with pytest.raises(ConfigError) as caught:
        form.read(list(values.values()))
    assert caught.value.problems == {"max_steps": f"must be a whole number, got {typed!r}"}
    controls = ["", *[""] * len(grids.GRID)]
    with pytest.raises(ConfigError, match="seeds must be a whole number"):
        train_plan.plan(["seeds", typed, *controls[1:], *RunConfig().to_dict().values()])
    assert len(train_plan.plan(["seeds", *controls, *RunConfig().to_dict().values()])) == 1
    with pytest.raises(ConfigError, match="trials is"):
        train_plan.read_search([*FIELDS, typed, "0", "1", False], EngineSpec())
    with pytest.raises(ConfigError, match="minutes is"):
        Choice("hub-job", {"minutes": typed}).spec()


def test_fields_and_limits_are_read_with_both_signs_and_never_as_another_number() -> None:
    values = RunConfig().to_dict() | {"learning_rate": "0,0001", "dropout": "0,1"}
    assert form.read(list(values.values())) == RunConfig(learning_rate=1e-4, dropout=0.1)
    with pytest.raises(ConfigError, match=r"max_grad_norm.*'1,000'"):
        form.read(list((values | {"max_grad_norm": "1,000"}).values()))
    for limits, budget, parallel in (
        (("20", "1,5", " 2 "), Budget(20, 1.5), 2), (("3", None, "1"), Budget(3), 1)
    ):  # fmt: skip
        _, read, options = train_plan.read_search([*FIELDS, *limits, False], EngineSpec())
        assert (read, options["parallel"]) == (budget, parallel)
    with pytest.raises(ConfigError, match="minutes is '1,500'"):
        train_plan.read_search([*FIELDS, "20", "1,500", "1", False], EngineSpec())
    spec = Choice("hub-job", {"minutes": "20", "dollars_a_run": "1,5"}).spec()
    assert (spec.options["dollars_a_run"], spec.options["minutes"]) == (1.5, 20)
    with pytest.raises(ConfigError, match="dollars_a_run is '1,500'"):
        Choice("hub-job", {"dollars_a_run": "1,500"}).spec()


def test_the_page_chooses_defaults_and_presets_by_itself(browser: Browser, store: RunStore) -> None:
    blank = RunConfig()
    pairs, base = blank.dataset, blank.checkpoint
    page = new_page(browser)
    script = TrainTab(store).choosing_default()
    for answer, kept, dataset, checkpoint, expected in (
        ("<p data-answers>", None, pairs, base, ["glue/mrpc", "bert-base-uncased", "glue/mrpc"]),
        ("<p>", None, pairs, base, [pairs, base, pairs]),  # the Hub does not answer
        ("<p data-answers>", None, "upload/1", base, ["upload/1", base, "upload/1"]),
        ("<p data-answers>", None, pairs, "roberta-base", [pairs, "roberta-base", pairs]),
        # Who has trained on the bundled pairs before finds them again after a reload.
        ("<p data-answers>", blank.to_dict(), pairs, base, [pairs, base, pairs]),
    ):
        values = [answer, kept, dataset, checkpoint]
        assert page.evaluate(f"(values) => ({script})(...values)", values) == expected
    for name in PRESETS:
        filled = page.evaluate(f"(name) => ({form.choosing_preset()})(name)", name)
        names = list(configs.preset("As the course"))
        assert form.read(filled, names) == RunConfig(**preset(name))
    page.close()


def test_the_newest_ten_uploads_and_the_current_one_are_offered_after_a_reload(
    store: RunStore, tmp_path: Path
) -> None:
    def add(number: int, age: float = 0.0) -> str:
        path = tmp_path / f"{number}.csv"
        path.write_text(f"sentence1,sentence2,label\n{number},b,1\nc,d,0\n")
        name = store.uploads.add({"train": path})
        when = time.time() - age
        os.utime(store.root / "uploads" / name.removeprefix("upload/"), (when, when))
        return name

    def offered(choices: list[tuple[str, str]]) -> list[str]:
        return [name for _, name in choices if name.startswith("upload/")]

    tab, names = draw_train(store), [add(n, 100.0 - n) for n in range(12)]
    newest = names[:1:-1]
    for update in tab.on_restore(NOBODY, None).values():
        assert "value" not in update
        assert offered(update["choices"]) == newest
    assert offered(form.datasets(store, names[0])) == [*newest, names[0]]
    assert add(5) == names[5]  # brought again: the newest
    assert offered(form.datasets(store))[0] == names[5]
