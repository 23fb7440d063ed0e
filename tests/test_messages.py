"""Texts that a page can translate."""

from __future__ import annotations

import pytest

from finetune.errors import DataError
from finetune.findings import Finding
from finetune.messages import message


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        *(
            (DataError("{name} cannot be read: {reason}.", name="a.", reason=reason), told)
            for reason, told in (
                ("broken", "a. cannot be read: broken."),
                (ValueError("more of it..."), "a. cannot be read: more of it."),
            )
        ),
        (message("{name}.onnx of {name} and {count}.", name="a.", count=1.5),
         "a..onnx of a. and 1.5."),
        (Finding("kind", "blocks", "There is one class.", 0, "").sentence, "There is one class."),
        (Finding("kind", "blocks", "Rows without a label", 1200, "Do.").sentence,
         "Rows without a label (1,200 rows)."),
        (Finding("kind", "blocks", "Rows without a label.", 1, "Do.").sentence,
         "Rows without a label (1 row)."),
    ],
)  # fmt: skip
def test_a_sentence_ends_in_one_stop_whatever_its_parts_end_in(said: object, expected: str) -> None:
    assert str(said) == expected
