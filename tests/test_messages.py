"""Texts that a page can translate."""

from __future__ import annotations

import pytest

from finetune.errors import ConfigError, DataError
from finetune.findings import Finding
from finetune.messages import message


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("broken", "a. cannot be read: broken."),
        ("It is broken.", "a. cannot be read: It is broken."),
        (ValueError("more of it..."), "a. cannot be read: more of it."),
    ],
)
def test_a_sentence_ends_in_one_stop_whatever_its_reason_ends_in(reason: object, said: str) -> None:
    error = DataError("{name} cannot be read: {reason}.", name="a.", reason=reason)
    assert str(error) == said
    assert (
        str(ConfigError({"seed": "is odd.", "name": "is empty."})) == "seed is odd.; name is empty."
    )


def test_values_before_no_end_of_a_sentence_keep_their_stops() -> None:
    assert message("{name}.onnx of {name} and {count}.", name="a.", count=1.5) == (
        "a..onnx of a. and 1.5."
    )


@pytest.mark.parametrize(
    ("title", "count", "said"),
    [
        ("There is one class.", 0, "There is one class."),
        ("Rows without a label", 1200, "Rows without a label (1,200 rows)."),
        ("Rows without a label.", 1, "Rows without a label (1 row)."),
        ("Is a row one text or a pair?", 0, "Is a row one text or a pair?"),
    ],
)
def test_a_finding_is_a_sentence(title: str, count: int, said: str) -> None:
    assert Finding("kind", "blocks", title, count, "Do this.").sentence == said
