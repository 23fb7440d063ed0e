"""Columns are guessed by their cells, then by names; a doubt becomes a question. Pairs are read in
either order only if nothing tells the first sentence from the second.

`columns.jsonl` has a line for each table: the names of its columns, the kinds of their cells (or
the values that they take), and what is guessed: the columns of both sentences and of the label, or
the doubts. Without cells, names alone tell.
"""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset, DatasetDict

from finetune.config import NO_COLUMN
from finetune.data import columns, symmetry
from finetune.data.column_guess import guess_columns
from finetune.data.splits import Pairs
from finetune.runs.summary import ColumnNames
from finetune.tasks.base import Target

TABLES = [
    json.loads(line)
    for line in Path(__file__).with_name("columns.jsonl").read_text("utf-8").splitlines()
]
NOUNS = ["river", "lamp", "choir", "garden", "ferry", "violin", "bakery"]
ADJECTIVES = ["old", "green", "silent", "broken", "narrow"]
# Of a kind of cells the one in a row.
KINDS = {
    "long": lambda n: f"The {ADJECTIVES[n % 5]} {NOUNS[n % 7]} of house {n} was seen again in town",
    "other": lambda n: f"In town somebody saw the {NOUNS[n % 7]} that belongs to house {n}",
    "hub": lambda n: f"One of five sentences that stand in many rows, number {n % 5}",
    "chinese": lambda n: f"\u8fd9\u662f\u7b2c{n}\u4e2a\u5f88\u957f\u7684\u53e5\u5b50",
    "number": lambda n: str(1000 + n),
    "code": lambda n: f"T-{n:05d}",
    "word": lambda n: f"{NOUNS[n % 7]} {n}",
    "address": lambda n: f"https://news.example/{n}/the-{NOUNS[n % 7]}-of-the-year.html",
    "day": lambda n: f"2024-03-{1 + n % 28:02d}",
    "tweet_time": lambda n: f"Mon Apr {1 + n % 28:02d} 22:{n % 60:02d}:45 PDT 2019",
    "score": lambda n: f"{n % 50 / 10 + 0.05:.2f}",
    "place": lambda n: ["Lisbon", "Ulm", "New York", ""][n % 4] + str(n % 9 or ""),
    "user": lambda n: f"user{n}",
    "name": lambda n: f"Ann{'abcdefghij'[n % 10]}{'klmnopqrst'[n // 10 % 10]}",
    "empty": lambda n: None,
}


def guess(head, cells, chosen=None):
    names = [name or f"column {n}" for n, name in enumerate(head.split(","), 1)]
    if not cells:
        return guess_columns(names, chosen=chosen)
    table = {}
    for name, kind in zip(names, cells, strict=True):
        draw = KINDS[kind] if isinstance(kind, str) else None
        table[name] = [draw(n) if draw else kind[(n * 7 + n // 3) % len(kind)] for n in range(120)]
    return guess_columns(names, table, chosen)


def triple(found):
    return f"{found.sentence1},{found.sentence2},{found.label}"


@pytest.mark.parametrize("table", TABLES, ids=[table["head"] for table in TABLES])
def test_columns_are_plain_or_asked_about(table):
    found, asked = guess(table["head"], table.get("cells", []))
    if "columns" in table:
        assert triple(found) == table["columns"]
    if "cells" in table:
        doubts = {role: " ".join(names) for role, names in asked.items()}
        assert doubts == table.get("doubts", {})


@pytest.mark.parametrize(
    ("chosen", "columns", "doubts"),
    [
        ({"sentence2": "Theirs"}, "Ours,Theirs,Verdict", []),
        ({"sentence2": NO_COLUMN}, ",,Verdict", ["sentence1"]),
        ({"sentence1": "Ours"}, "Ours,,Verdict", ["sentence2"]),
        ({"sentence1": "Ticket ID", "sentence2": "Ours", "label": "Theirs"},
         "Ticket ID,Ours,Theirs", []),
    ],
)  # fmt: skip
def test_an_answer_is_not_asked_again(chosen, columns, doubts):
    cells = ["code", "long", "other", [0, 1]]
    found, asked = guess("Ticket ID,Ours,Theirs,Verdict", cells, chosen)
    assert triple(found) == columns
    assert list(asked) == doubts


@pytest.mark.timeout(120)  # it took longer
def test_many_thousand_columns_are_matched():
    """A search of all columns for each one would take minutes for a file of 40 KB."""
    names = [f"c ({n})" for n in range(20_000)]
    names += ["cat_left", "cat_right"]
    assert columns.match_columns(names, ColumnNames())[:2] == ("cat_left", "cat_right")


WORDS = [f"word{n}" for n in range(60)]
Rows = list[tuple[str, str, int]]


def sentence(draw, words):
    return " ".join(draw.choices(WORDS, k=words))


def alike(count=400):
    """Two sentences of one kind; neither alone predicts the label."""
    draw = random.Random(0)
    lengths = [(draw.randint(5, 12), draw.randint(5, 12)) for _ in range(count)]
    return [(sentence(draw, m), sentence(draw, n), draw.randint(0, 1)) for m, n in lengths]


def inference():
    """The second sentence is the shorter one."""
    draw = random.Random(1)
    return [
        (sentence(draw, 12), sentence(draw, draw.randint(4, 9)), draw.randint(0, 1))
        for _ in range(400)
    ]


def questions():
    """The first sentence is a question."""
    return [(f"why {first}", second, label) for first, second, label in alike()]


def comparison():
    """The label says which sentence is the better one."""
    draw, rows = random.Random(2), []
    for first, second, _ in alike():
        good, bad = f"good {first}", f"bad {second}"
        rows.append((good, bad, 1) if draw.random() < 0.5 else (bad, good, 0))
    return rows


def pairs(rows, labels=("no", "yes"), **names):
    first, second, label = zip(*rows, strict=True)
    columns = {"sentence1": list(first), "sentence2": list(second), "label": list(label)}
    train = Dataset.from_dict(columns)
    facts = {"columns": {"sentence1": "a", "sentence2": "b"} | names}
    return Pairs(DatasetDict(train=train), Target(tuple(labels)), facts=facts)


def test_two_columns_of_one_kind_have_no_order():
    for names in (
        "question_a,question_b", "#1 String,#2 String", "left_title,right_title", "satz1,satz2",
    ):  # fmt: skip
        first, second = names.split(",")
        assert symmetry.is_symmetric(pairs(alike(), sentence1=first, sentence2=second)), names


def test_what_tells_the_first_sentence_from_the_second_is_found():
    """Also by the names of columns and classes."""
    for rows in (inference(), questions(), comparison(), alike(40)):
        assert not symmetry.is_symmetric(pairs(rows))
    for first, second in (("premise", "hypothesis"), ("question", "answer"), ("text", "title")):
        assert not symmetry.is_symmetric(pairs(alike(), sentence1=first, sentence2=second))
    assert not symmetry.is_symmetric(pairs(alike(), ("entailment", "not_entailment")))


def test_chance_is_not_taken_for_order():
    """Of twenty tables without an order at most one is judged to have one."""
    told = [
        symmetry.tells_order(first, second, np.array(label))
        for first, second, label in (
            map(list, zip(*random.Random(seed).sample(alike(400), 150), strict=True))
            for seed in range(20)
        )
    ]
    assert sum(told) <= 1
