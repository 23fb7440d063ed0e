"""Columns are guessed by their cells, then by names; a doubt becomes a question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from finetune.config import NO_COLUMN
from finetune.data import columns
from finetune.data.column_guess import Role, guess_columns
from finetune.runs.summary import ColumnNames

Cell = Callable[[int], Any]
_NOUNS = ["river", "lamp", "choir", "garden", "ferry", "violin", "bakery"]
_ADJECTIVES = ["old", "green", "silent", "broken", "narrow"]


def long(n: int) -> str:
    return f"The {_ADJECTIVES[n % 5]} {_NOUNS[n % 7]} of house {n} was seen again in town"


def other(n: int) -> str:
    return f"In town somebody saw the {_NOUNS[n % 7]} that belongs to house {n}"


def number(n: int) -> str:
    return str(1000 + n)


def code(n: int) -> str:
    return f"T-{n:05d}"


def pick(*values: Any) -> Cell:
    return lambda n: values[(n * 7 + n // 3) % len(values)]


def hub(n: int) -> str:
    return f"One of five sentences that stand in many rows, number {n % 5}"


def address(n: int) -> str:
    return f"https://news.example/{n}/the-{_NOUNS[n % 7]}-of-the-year.html"


def day(n: int) -> str:
    return f"2024-03-{1 + n % 28:02d}"


def tweet_time(n: int) -> str:
    return f"Mon Apr {1 + n % 28:02d} 22:{n % 60:02d}:45 PDT 2019"


def empty(n: int) -> None:
    return None


def score(n: int) -> str:
    return f"{n % 50 / 10 + 0.05:.2f}"


def place(n: int) -> str:
    return ["Lisbon", "Ulm", "New York", ""][n % 4] + str(n % 9 or "")


def chinese(n: int) -> str:
    return f"\u8fd9\u662f\u7b2c{n}\u4e2a\u5f88\u957f\u7684\u53e5\u5b50"


YES = pick(0, 1)
NLI = pick("entailment", "neutral", "contradiction", "-")

PLAIN: list[tuple[str, Sequence[Cell], str]] = [
    ("id,document,label", [number, long, YES], "document,,label"),
    ("id,label,tweet", [number, YES, long], "tweet,,label"),
    ("qid,question_text,target", [code, long, YES], "question_text,,target"),
    ("article_link,headline,is_sarcastic", [address, long, YES], "headline,,is_sarcastic"),
    ("Headline,Body ID,Stance", [long, pick(*range(40)), pick("agree", "discuss", "unrelated")],
     "Headline,,Stance"),
    ("Quality,#1 ID,#2 ID,#1 String,#2 String", [YES, number, number, long, other],
     "#1 String,#2 String,Quality"),
    ("id,qid1,qid2,question1,question2,is_duplicate", [number, number, number, long, other, YES],
     "question1,question2,is_duplicate"),
    ("gold_label,sentence1_binary_parse,sentence2_binary_parse,sentence1,sentence2,captionID,pairID,"
     "label1,label2", [NLI, long, other, long, other, code, code, NLI, NLI],
     "sentence1,sentence2,gold_label"),
    ("index,promptID,pairID,genre,sentence1,sentence2,label1,gold_label",
     [number, number, code, pick("travel", "fiction"), long, other, NLI, NLI],
     "sentence1,sentence2,gold_label"),
    ("id,verifiable,label,claim,evidence", [number, pick("VERIFIABLE", "NOT VERIFIABLE"),
     pick("SUPPORTS", "REFUTES"), long, other], "claim,evidence,label"),
    ("uid,premise,hypothesis,label,reason", [code, long, other, pick("e", "n", "c"), hub],
     "premise,hypothesis,label"),
    ("word,sentence1,sentence2,idx,label,start1", [pick(*_NOUNS), long, other, number, YES, number],
     "sentence1,sentence2,label"),
    (",count,hate_speech,offensive_language,neither,class,tweet",
     [number, pick(3, 6), pick(0, 1, 2), pick(0, 1, 2), pick(0, 1, 3), pick(0, 1, 2), long],
     "tweet,,class"),
    ("v1,v2,Unnamed: 2,Unnamed: 3", [pick("ham", "spam"), long, empty, empty], "v2,,v1"),
    ("column 1,column 2", [pick("ham", "spam"), long], "column 2,,column 1"),
    ("column 1,column 2", [pick("ham", "spam"), lambda n: f"{_NOUNS[n % 7]} {n}"],
     "column 2,,column 1"),
    ("column 1,column 2,column 3", [pick(1, 2, 3, 4), long, other], "column 2,column 3,column 1"),
    ("column 1,column 2,column 3", [number, long, pick("pos", "neg")], "column 2,,column 3"),
    ("column 1,column 2,column 3,column 4", [pick("gj04", "ks08"), YES, pick("*", None), long],
     "column 4,,column 2"),
    ("date,message,sentiment", [day, long, pick("pos", "neg")], "message,,sentiment"),
    ("polarity,id,date,query,user,text", [pick(0, 4), number, tweet_time, pick("NO_QUERY"),
     lambda n: f"user{n}", long], "text,,polarity"),
    ("id,comment_text,toxic", [code, long, YES], "comment_text,,toxic"),
    ("utterance,intent", [long, pick("book", "cancel", "ask")], "utterance,,intent"),
    ("id,keyword,location,text,target", [number, pick("flood", "fire"), place, long, YES],
     "text,,target"),
    ("ltable_id,rtable_id,left_title,right_title,label", [number, number, long, other, YES],
     "left_title,right_title,label"),
    ("id_left,title_left,id_right,title_right,match", [number, long, number, other, YES],
     "title_left,title_right,match"),
    ("question,passage,answer,title", [long, other, pick("true", "false"), long],
     "question,passage,answer"),
    ("query,passage,label", [hub, long, YES], "query,passage,label"),
    ("context,hypothesis,label", [hub, other, YES], "context,hypothesis,label"),
    ("review,sentiment", [long, pick("positive", "negative")], "review,,sentiment"),
    ("tweet_id,airline_sentiment,airline_sentiment_confidence,airline,name,text,tweet_created",
     [number, pick("negative", "neutral", "positive"), score, pick("A Air", "B Air", "C Air"),
      lambda n: f"user{n}", long, tweet_time], "text,,airline_sentiment"),
    ("Text A,Text B,Score", [long, other, score], "Text A,Text B,Score"),
    ("first_name,gender", [lambda n: f"Ann{'abcdefghij'[n % 10]}{'klmnopqrst'[n // 10 % 10]}",
     pick("f", "m")], "first_name,,gender"),
    ("url,label", [address, pick("good", "bad")], "url,,label"),
    ("\u7f16\u53f7,\u6587\u672c,\u6807\u7b7e", [number, chinese, pick("\u662f", "\u5426")],
     "\u6587\u672c,,\u6807\u7b7e"),
    ("one,two,three", [long, other, pick("x", "y")], "one,two,three"),
    ("prediction,reference,label", [long, other, YES], "prediction,reference,label"),
]  # fmt: skip


def guessed(head: str, cells: Sequence[Cell], chosen: dict[Role, str] | None = None) -> Any:
    names = [name or f"column {n}" for n, name in enumerate(head.split(","), 1)]
    table = {name: [cell(n) for n in range(120)] for name, cell in zip(names, cells, strict=True)}
    return guess_columns(names, table, chosen)


@pytest.mark.parametrize(("head", "cells", "columns"), PLAIN, ids=[case[0] for case in PLAIN])
def test_columns_are_plain(head: str, cells: Sequence[Cell], columns: str) -> None:
    guess = guessed(head, cells)
    assert dict(guess.doubts) == {}
    assert f"{guess.sentence1},{guess.sentence2},{guess.label}" == columns


DOUBTS: list[tuple[str, Sequence[Cell], dict[str, str]]] = [
    ("Ticket ID,Ours,Theirs,Verdict", [code, long, other, pick("yes", "no")],
     {"sentence2": "Ours Theirs"}),
    ("id,title,text,label", [number, long, other, YES], {"sentence2": "title text"}),
    ("id,text", [number, long], {"label": "id"}),
    ("text,topic,sentiment", [long, pick("a", "b"), pick("good", "bad")],
     {"label": "topic sentiment"}),
    ("text,mood,tone", [long, pick("glad", "sad"), pick("loud", "low")], {"label": "mood tone"}),
    ("n,m,label", [number, number, YES], {"sentence1": "n m"}),
    ("Case,Ours,Theirs,Mood,Tone", [code, long, other, pick("u", "v"), pick("w", "x")],
     {"sentence2": "Ours Theirs", "label": "Mood Tone"}),
    ("a,b", [number, number], {"sentence1": "a b", "label": "a b"}),
]  # fmt: skip


@pytest.mark.parametrize(("head", "cells", "doubts"), DOUBTS, ids=[case[0] for case in DOUBTS])
def test_what_is_not_plain_is_asked(
    head: str, cells: Sequence[Cell], doubts: dict[str, str]
) -> None:
    guess = guessed(head, cells)
    assert {role: " ".join(names) for role, names in guess.doubts.items()} == doubts


@pytest.mark.parametrize(
    ("chosen", "columns", "doubts"),
    [
        ({"sentence2": "Theirs"}, "Ours,Theirs,Verdict", []),
        ({"sentence2": "Ours"}, "Theirs,Ours,Verdict", []),
        ({"sentence2": NO_COLUMN}, ",,Verdict", ["sentence1"]),
        ({"sentence2": NO_COLUMN, "sentence1": "Theirs"}, "Theirs,,Verdict", []),
        ({"sentence1": "Ours"}, "Ours,,Verdict", ["sentence2"]),
        ({"sentence1": "Ticket ID", "sentence2": "Ours", "label": "Theirs"},
         "Ticket ID,Ours,Theirs", []),
    ],
)  # fmt: skip
def test_an_answer_is_not_asked_again(
    chosen: dict[Role, str], columns: str, doubts: list[str]
) -> None:
    guess = guessed("Ticket ID,Ours,Theirs,Verdict", [code, long, other, YES], chosen)
    assert f"{guess.sentence1},{guess.sentence2},{guess.label}" == columns
    assert list(guess.doubts) == doubts


@pytest.mark.parametrize(
    ("head", "columns"),
    [
        ("sentence1,sentence2,label,idx", "sentence1,sentence2,label"),
        ("premise,hypothesis,gold_label", "premise,hypothesis,gold_label"),
        ("Text A,Text B,Score", "Text A,Text B,Score"),
        ("text,label", "text,,label"),
        ("question1,question2,verdict", "question1,question2,verdict"),
        ("text,note,mood", "text,,"),
        ("one,two,three", "one,two,three"),
        ("a1,a2,a3,a4", ",,"),
        ("question,other question,same", "question,other question,same"),
        ("id,Ticket,Zweites Ticket,Ticket2,class", "Ticket,Ticket2,class"),
    ],
)
def test_columns_without_cells_are_guessed_by_name(head: str, columns: str) -> None:
    guess = guess_columns(head.split(","))
    assert f"{guess.sentence1},{guess.sentence2},{guess.label}" == columns


@pytest.mark.timeout(120)  # it took longer
def test_a_hundred_thousand_columns_are_matched() -> None:
    """A search of all columns for each one would take minutes for a file of 200 KB."""
    names = [f"c ({n})" for n in range(100_000)]
    names += ["cat_left", "cat_right"]
    assert columns.match_columns(names, ColumnNames())[:2] == ("cat_left", "cat_right")
