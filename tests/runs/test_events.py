"""Events survive a round trip through JSON; a damaged line hides no other."""

from __future__ import annotations

import json
from typing import Any

import pytest

from finetune.runs import events
from finetune.runs.events import Phase
from tests.support import toys

EXAMPLES: list[events.Event] = [
    *toys.story(),
    events.PhaseStarted(phase=Phase.DOWNLOAD, detail="bert \u00e9 \x00"),
    events.FirstBatch(
        shapes={"input_ids": [1, 2], "labels": [1]}, lengths=[1], padded=0.5, positions=[0, 1],
        tokens=[["[CLS]", "[PAD]"]], ids=[[2, 0]], attention_mask=[[1, 0]], labels=["yes"],
    ),
    events.BaselinesMeasured(baselines={"always the commonest answer": {"f1": 0.8}}),
    events.TestSetOpened(step=3, metrics={"f1": 0.7}, threshold=0.4, at_threshold={"f1": 0.71}),
    events.Stopped(step=3, seconds=1.0),
    events.Failed(error="a\nb", remedy="c"),
    events.Resumed(step=2),
    events.Progressed(done=10, total=20, detail="reading train"),
]  # fmt: skip
BY_KIND = {getattr(event, "event", ""): event for event in EXAMPLES}


def test_an_event_survives_its_line() -> None:
    for event in BY_KIND.values():
        line = event.model_dump_json()
        assert "\n" not in line
        assert events.from_json(line) == event
        later = {**json.loads(line), "field_of_a_later_version": 3}
        assert events.from_json(json.dumps(later)) == event


def test_numbers_that_are_not_finite_are_null_and_such_scores_left_out() -> None:
    """The evaluation still counts: its model may be the best one."""
    step = BY_KIND["step"].model_copy(update={"loss": float("nan")})
    assert json.loads(step.model_dump_json())["loss"] is None
    scores = {"f1": 0.8, "loss": float("inf")}
    event = events.Evaluated(step=1, epoch=1.0, metrics=scores, seconds=1, best=True)
    read = events.from_json(event.model_dump_json())
    assert isinstance(read, events.Evaluated)
    assert read.metrics == {"f1": 0.8}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("step", {"step": 1.5}), ("saved", {"step": "7"}), ("prepared", {"labels": [1, 2]}),
        ("evaluated", {"metrics": {"f1": "0.8"}}), ("evaluated", {"metrics": [0.8]}),
        ("first_batch", {"ids": [["2", 0]]}), ("saved", {"event": "unknown"}),
    ],
)  # fmt: skip
def test_a_line_of_wrong_types_is_skipped(kind: str, values: dict[str, Any]) -> None:
    record = {**json.loads(BY_KIND[kind].model_dump_json()), **values}
    assert events.from_json(json.dumps(record)) is None


def test_a_line_that_is_no_event_is_skipped() -> None:
    for line in ("", "{", "null", "[]", "7", '{"event": "saved"}'):
        assert events.from_json(line) is None
