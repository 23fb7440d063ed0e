"""A model's answer to one pair as HTML: what it is, why, what would change it; the ones before."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from finetune.data import safe_csv
from finetune.ui.html import macro

if TYPE_CHECKING:
    from finetune.inference.explain import Explanation
    from finetune.inference.perturbations import Flip
    from finetune.inference.predictor import Prediction

COLUMNS = ("when", "model", "sentence1", "sentence2", "prediction", "probability", "label")
MAX_QUESTIONS = 200  # remembered
MAX_CLASSES = 50  # with a bar of their own


def answer(prediction: Prediction) -> Markup:
    """Label, a bar for each class's probability, and what a person should know of it."""
    return macro("answer.html", "answer")(prediction, MAX_CLASSES)


def why(
    explanation: Explanation, flips: Sequence[Flip], tried: int, label: str, question_id: str
) -> Markup:
    """Both sentences with each word's weight, and the small edits that change the answer.

    Args:
        tried: how many edits were tried.
        label: the answer.
        question_id: of the question that is explained.
    """
    return macro("answer.html", "why")(explanation, flips, tried, label, question_id)


def history(questions: Sequence[dict[str, Any]]) -> Markup:
    """Earlier questions, the newest first, with a place for the person's own verdict.

    Args:
        questions: as a browser remembers them: `COLUMNS`, `labels` to choose the verdict from, and
            `n`, by which the browser knows it.
    """
    shown = []
    for index, question in enumerate(questions):
        texts = {name: str(question.get(name, "")) for name in COLUMNS}
        n, labels = question.get("n"), question.get("labels")
        labels = [str(label) for label in labels] if isinstance(labels, list) else []
        n = n if isinstance(n, int) else index
        shown.append({**texts, "n": n, "number": index + 1, "labels": list(dict.fromkeys(labels))})
    text = "\ufeff" + _csv(questions)
    data = base64.b64encode(text.encode("utf-8", "replace")).decode()
    address = f"data:text/csv;charset=utf-8;base64,{data}"
    return macro("answer.html", "history")(shown[::-1], address)


def _csv(questions: Sequence[dict[str, Any]]) -> str:
    """Earlier questions as a CSV to train on: without `sentence2` where there is none, and single
    sentences under the name that is known for those."""
    paired = any(str(question.get("sentence2") or "").strip() for question in questions)
    columns = [name for name in COLUMNS if paired or name != "sentence2"]
    names = [name if paired or name != "sentence1" else "sentence" for name in columns]
    rows = ([question.get(name, "") for name in columns] for question in questions)
    return safe_csv.to_csv([names, *rows])
