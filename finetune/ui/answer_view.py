"""The questions that a person has asked, as HTML and as a CSV to train on."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from finetune.data import safe_csv
from finetune.ui.html import macro

COLUMNS = ("when", "model", "sentence1", "sentence2", "prediction", "probability", "label")
MAX_QUESTIONS = 200  # remembered


def history(questions: Sequence[dict[str, Any]]) -> Markup:
    """Earlier questions, the newest first, with a place for the person's own verdict.

    Args:
        questions: as a browser remembers them: `COLUMNS`, `labels` to choose the verdict from, and
            `n`, by which the browser knows it.
    """
    rows = []
    for index, question in enumerate(questions):
        texts = {name: str(question.get(name, "")) for name in COLUMNS}
        n, labels = question.get("n", index), question.get("labels")
        labels = [*dict.fromkeys(map(str, labels))] if isinstance(labels, list) else []
        rows.append({**texts, "n": n, "number": index + 1, "labels": labels})
    data = base64.b64encode(_csv(questions).encode("utf-8-sig", "replace")).decode()
    address = f"data:text/csv;charset=utf-8;base64,{data}"
    return macro("answer.html", "history")(rows[::-1], address)


def _csv(questions: Sequence[dict[str, Any]]) -> str:
    """Earlier questions as a CSV to train on: without `sentence2` where there is none, and single
    sentences under the name that is known for those."""
    paired = any(str(question.get("sentence2") or "").strip() for question in questions)
    columns = [name for name in COLUMNS if paired or name != "sentence2"]
    names = [name if paired or name != "sentence1" else "sentence" for name in columns]
    rows = ([question.get(name, "") for name in columns] for question in questions)
    return safe_csv.to_csv(names, rows)
