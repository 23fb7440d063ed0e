"""What is told of each phase, and how a first batch is drawn."""

from __future__ import annotations

import re

import pytest

from finetune.runs import events
from finetune.runs.events import Phase
from finetune.runs.summary import ENDED, RunSummary
from finetune.ui import live_updates

MARKUP = "<script>alert(1)</script>"
BATCH = events.FirstBatch(
    shapes={"input_ids": [2, 6], "token_type_ids": [2, 6], "attention_mask": [2, 6], "labels": [2]},
    lengths=[6, 4], padded=1 / 6, positions=[0, 1, 2, 3, 4, 5],
    tokens=[["[CLS]", "a", "[SEP]", "b", "c", "[SEP]"],
            ["[CLS]", "d", "[SEP]", "[SEP]", "[PAD]", "[PAD]"]],
    ids=[[2, 5, 3, 6, 7, 3], [2, 8, 3, 3, 0, 0]],
    attention_mask=[[1] * 6, [1, 1, 1, 1, 0, 0]],
    token_type_ids=[[0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 0, 0]],
    labels=["yes", "no"], special=["[CLS]", "[SEP]", "[PAD]"],
    form="[CLS] sentence1 [SEP] sentence2 [SEP]",
)  # fmt: skip


def test_every_phase_and_every_ending_has_a_lesson() -> None:
    running = [RunSummary(status="running", phase=phase) for phase in ("", "of later", *Phase)]
    ended = [RunSummary(status=status) for status in (*ENDED, "waiting")]  # type: ignore[arg-type]
    for summary in (*running, *ended):
        drawn = live_updates.lesson(live_updates.moment(summary))
        assert 'href="https://huggingface.co/learn/llm-course/chapter' in drawn
        assert 'target="_blank" rel="noopener"' in drawn
        assert drawn.count('aria-current="step"') == (summary.status == "running")
    assert live_updates.lesson("finished").count(", done") == 5
    for detail, lesson in (("glue/mrpc", "data"), ("bert-base-uncased", "checkpoint")):
        summary = RunSummary(status="running", phase=Phase.DOWNLOAD, detail=detail)
        assert live_updates.moment(summary, "glue/mrpc") == lesson


def cells(drawn: str, row: str) -> list[str]:
    rows = re.findall(rf"<code>{row}</code></th>(.*?)</tr>", drawn, re.DOTALL)
    return re.findall(r"<td[^>]*>(.*?)</td>", rows[1])  # the first is in the table of shapes


def test_the_batch_is_drawn_as_the_course_draws_one() -> None:
    drawn = live_updates.first_batch(BATCH)
    assert "<code>[CLS] sentence1 [SEP] sentence2 [SEP]</code>" in drawn
    assert "before padding: 6, 4. After: 6 each. 17% of the batch is padding." in drawn
    assert cells(drawn, "input_ids")[:6] == ["2", "5", "3", "6", "7", "3"]
    assert cells(drawn, "token_type_ids")[:6] == ["0", "0", "0", "1", "1", "1"]
    assert drawn.count('<td class="ft-pad">0</td>') == 6  # two of the second, in three tensors
    shapes = {name: size for name, size in BATCH.shapes.items() if name != "token_type_ids"}
    without = BATCH.model_copy(update={"shapes": shapes, "token_type_ids": []})
    assert "token_type_ids" not in live_updates.first_batch(without)
    few = {"positions": [0, 1, 2, 97, 98, 99], "lengths": [100, 98]}
    long = BATCH.model_copy(update=few)
    drawn = live_updates.first_batch(long)
    assert drawn.count('title="94 tokens are not shown"') == 2
    assert cells(drawn, "input_ids")[:7] == ["2", "5", "3", "\u2026", "6", "7", "3"]


@pytest.mark.parametrize("token", [MARKUP, "\u05e9\u05dc\u05d5\u05dd", "\u202e", " cat", "\n"])
def test_any_token_is_shown_and_never_obeyed(token: str) -> None:
    marks = {"labels": [MARKUP, MARKUP], "form": MARKUP, "special": [MARKUP]}
    odd = BATCH.model_copy(update={"tokens": [[token] * 6] * 2, **marks})
    drawn = live_updates.first_batch(odd)
    assert "<script" not in drawn
    assert "\u202e" not in drawn
    tokens = re.findall(r"<th scope=\"col\"[^>]*><bdi>(.*?)</bdi>", drawn)
    assert len(tokens) == 12
    assert "\n" not in tokens[0]
