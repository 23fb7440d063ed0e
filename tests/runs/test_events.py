from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune.phases import Phase
from finetune.runs import events

EXAMPLES: list[events.Event] = [
    events.Started(time=1.0, device="CPU", versions={"torch": "2"}),
    events.PhaseStarted(time=1.0, phase=Phase.DOWNLOAD, detail="bert \u00e9"),
    events.Prepared(
        time=2.0,
        train_examples=5,
        validation_examples=2,
        steps_per_epoch=1,
        total_steps=3,
        labels=["no", "yes"],
        parameters=10,
        precision="no",
        majority={"accuracy": 0.5},
    ),
    events.FirstBatch(
        time=2.5,
        shapes={"input_ids": [1, 2], "labels": [1]},
        lengths=[1],
        padded=0.5,
        positions=[0, 1],
        tokens=[["[CLS]", "[PAD]"]],
        ids=[[2, 0]],
        attention_mask=[[1, 0]],
        token_type_ids=[[0, 0]],
        labels=["yes"],
    ),
    events.Stepped(time=3.0, step=1, epoch=0.3, loss=0.5, learning_rate=1e-5, samples_per_second=9),
    events.Evaluated(time=4.0, step=3, epoch=1.0, metrics={"f1": 0.8}, seconds=0.1, best=True),
    events.BaselinesMeasured(time=4.5, baselines={"majority class": {"f1": 0.8}}),
    events.TestSetOpened(
        time=4.6, step=3, metrics={"f1": 0.7}, threshold=0.4, at_threshold={"f1": 0.71}
    ),
    events.Saved(time=5.0, step=3),
    events.Stopped(time=6.0, step=3, seconds=1.0),
    events.Failed(time=7.0, error="a\nb", remedy="c"),
    events.Finished(time=8.0, step=3, seconds=2.0),
    events.Resumed(time=8.5, step=2),
    events.Progressed(time=9.0, done=10, total=20, detail="reading train"),
]


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda e: e.event)
def test_an_event_survives_its_line(event: events.Event) -> None:
    line = events.to_json(event)
    assert "\n" not in line
    assert events.from_json(line) == event


def test_nan_is_written_as_null() -> None:
    event = dataclasses.replace(EXAMPLES[4], loss=float("nan"))  # type: ignore[call-arg]
    assert json.loads(events.to_json(event))["loss"] is None


@pytest.mark.parametrize(
    "line",
    ["", "{", "null", "[]", "7", '{"event": "unknown"}', '{"event": "saved"}', '{"event": []}'],
)
def test_a_line_that_is_no_event_is_skipped(line: str) -> None:
    assert events.from_json(line) is None


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("step", {"step": None}),
        ("step", {"loss": None}),
        ("step", {"step": 1.5}),
        ("step", {"step": True}),
        ("step", {"time": "now"}),
        ("step", {"grad_norm": []}),
        ("saved", {"step": "7"}),
        ("phase", {"phase": 3}),
        ("failed", {"error": None}),
        ("started", {"versions": []}),
        ("prepared", {"labels": [1, 2]}),
        ("prepared", {"total_steps": {}}),
        ("evaluated", {"best": 1}),
        ("evaluated", {"metrics": {"f1": "0.8"}}),
        ("evaluated", {"metrics": [0.8]}),
        ("baselines", {"baselines": {"words": 0.5}}),
        ("first_batch", {"ids": [["2", 0]]}),
    ],
)
def test_a_line_of_wrong_types_is_skipped(kind: str, wrong: dict[str, Any]) -> None:
    event = next(one for one in EXAMPLES if getattr(one, "event", "") == kind)
    record = {**json.loads(events.to_json(event)), **wrong}
    assert events.from_json(json.dumps(record)) is None


def test_a_score_that_is_no_number_is_not_there() -> None:
    """The evaluation counts all the same: its model may be the one that is kept."""
    event = events.Evaluated(
        step=1, epoch=1.0, metrics={"f1": 0.8, "loss": float("inf")}, seconds=1, best=True
    )
    read = events.from_json(events.to_json(event))
    assert isinstance(read, events.Evaluated)
    assert read.metrics == {"f1": 0.8}


def test_a_field_of_a_later_version_is_ignored() -> None:
    assert events.from_json('{"event": "saved", "time": 1, "step": 2, "new": 3}') == events.Saved(
        time=1, step=2
    )


@given(st.text(max_size=80), st.floats())
def test_any_text_and_number_can_be_written(text: str, number: float) -> None:
    line = events.to_json(events.Failed(time=number, error=text))
    record: dict[str, Any] = json.loads(line)
    assert record["error"] == text
