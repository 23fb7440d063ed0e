"""Pairs are read in either order only if nothing tells the first sentence from the second."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from datasets import Dataset, DatasetDict

from finetune.data import symmetry
from finetune.data.splits import Pairs
from finetune.tasks.base import Target

WORDS = [f"word{n}" for n in range(60)]
Rows = list[tuple[str, str, int]]


def sentence(draw: random.Random, words: int) -> str:
    return " ".join(draw.choices(WORDS, k=words))


def alike(count: int = 400) -> Rows:
    """Two sentences of one kind; neither alone predicts the label."""
    draw = random.Random(0)
    lengths = [(draw.randint(5, 12), draw.randint(5, 12)) for _ in range(count)]
    return [(sentence(draw, m), sentence(draw, n), draw.randint(0, 1)) for m, n in lengths]


def inference() -> Rows:
    """The second sentence is the shorter one."""
    draw = random.Random(1)
    return [
        (sentence(draw, 12), sentence(draw, draw.randint(4, 9)), draw.randint(0, 1))
        for _ in range(400)
    ]


def questions() -> Rows:
    """The first sentence is a question."""
    return [(f"why {first}", second, label) for first, second, label in alike()]


def comparison() -> Rows:
    """The label says which sentence is the better one."""
    draw, rows = random.Random(2), []
    for first, second, _ in alike():
        good, bad = f"good {first}", f"bad {second}"
        rows.append((good, bad, 1) if draw.random() < 0.5 else (bad, good, 0))
    return rows


def pairs(rows: Rows, labels: tuple[str, ...] = ("no", "yes"), **names: str) -> Pairs:
    first, second, label = zip(*rows, strict=True)
    columns = {"sentence1": list(first), "sentence2": list(second), "label": list(label)}
    train = Dataset.from_dict(columns)
    facts: dict[str, Any] = {"columns": {"sentence1": "a", "sentence2": "b"} | names}
    return Pairs(DatasetDict(train=train), Target(tuple(labels)), facts=facts)


@pytest.mark.parametrize(
    ("first", "second"),
    [("sentence1", "sentence2"), ("question_a", "question_b"), ("#1 String", "#2 String"),
     ("left_title", "right_title"), ("Text A", "Text B"), ("satz1", "satz2")],
)  # fmt: skip
def test_two_columns_of_one_kind_have_no_order(first: str, second: str) -> None:
    assert symmetry.is_symmetric(pairs(alike(), sentence1=first, sentence2=second))


@pytest.mark.parametrize("rows", [inference(), questions(), comparison(), alike(40)],
                         ids=["inference", "questions", "comparison", "few"])  # fmt: skip
def test_what_tells_the_first_sentence_from_the_second_is_found(rows: Rows) -> None:
    assert not symmetry.is_symmetric(pairs(rows))


def test_names_of_columns_and_classes_tell_too() -> None:
    for first, second in (("premise", "hypothesis"), ("question", "answer"), ("text", "title")):
        assert not symmetry.is_symmetric(pairs(alike(), sentence1=first, sentence2=second))
    assert not symmetry.is_symmetric(pairs(alike(), ("entailment", "not_entailment")))


def test_chance_is_not_taken_for_order() -> None:
    """Of twenty tables without an order at most one is judged to have one."""
    told = [
        symmetry.tells_order(first, second, np.array(label))
        for first, second, label in (
            map(list, zip(*random.Random(seed).sample(alike(800), 300), strict=True))
            for seed in range(20)
        )
    ]
    assert sum(told) <= 1
