"""Make the bundled pairs from the sentences written for them: `python assets/pairs/build.py`.

`groups.jsonl` holds what was written: a line a group, with three sentences of one meaning (a1,
a2, a3) and two of another that looks like it (b1, b2). This file only pairs and splits them, the
same way each time, and prints what baselines score; it writes no words of its own.
"""

from __future__ import annotations

import csv
import hashlib
import json
import random
from pathlib import Path

import numpy as np
from scipy.sparse import hstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score

HERE = Path(__file__).resolve().parent
SHARES = {"train": 0.70, "validation": 0.15, "test": 0.15}
SENTENCES = ("a1", "a2", "a3", "b1", "b2")
Group = dict[str, str]
Pair = tuple[str, str, int]


def groups() -> list[Group]:
    """Every group, in the file's order."""
    lines = (HERE / "groups.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def pairs(members: list[Group]) -> list[Pair]:
    """Eight pairs a group: four equivalent, three near misses, another statement on the topic; of
    every second group an equivalent pair and a near miss less.

    A near miss says nearly what it denies, and the other statement is the one, of the same topic
    and split, that has most words in common: counting common words tells little. Either sentence
    may come first.
    """
    made: list[Pair] = []
    taken: set[frozenset[str]] = set()
    for number, group in enumerate(members):
        draw = random.Random(_digest(group["a1"]))
        same = [("a1", "a2"), ("a1", "a3"), ("a2", "a3"), ("b1", "b2")][: 4 - number % 2]
        near_misses = [("a1", "b1"), ("a3", "b2"), ("a2", "b1")][: 3 - number % 2]
        asked = group[draw.choice(SENTENCES)]
        rows = [(group[one], group[two], 1) for one, two in same]
        rows += [(group[one], group[two], 0) for one, two in near_misses]
        rows.append((asked, _other_statement(asked, group, members, taken), 0))
        for first, second, label in rows:
            swap = draw.random() < 0.5
            made.append((second, first, label) if swap else (first, second, label))
    return made


def _other_statement(
    asked: str, group: Group, members: list[Group], taken: set[frozenset[str]]
) -> str:
    """The sentence of another group of the topic that shares most words; no pair twice."""
    candidates = [
        other[name]
        for other in members
        if other is not group and other["topic"] == group["topic"]
        for name in SENTENCES
        if frozenset((asked, other[name])) not in taken
    ]
    found = max(candidates, key=lambda text: (_shared(asked, text), text))
    taken.add(frozenset((asked, found)))
    return found


def split(found: list[Group]) -> dict[str, list[Pair]]:
    """Pairs by split; a group stands in one split only, topics spread evenly over all three."""
    by_topic: dict[str, list[Group]] = {}
    for group in sorted(found, key=lambda g: _digest(g["a1"])):
        by_topic.setdefault(group["topic"], []).append(group)
    shared: dict[str, list[Group]] = {name: [] for name in SHARES}
    for members in by_topic.values():
        begin = 0.0
        for name, share in SHARES.items():
            first, last = round(begin * len(members)), round((begin + share) * len(members))
            shared[name] += members[first:last]
            begin += share
    splits = {name: pairs(members) for name, members in shared.items()}
    for name, rows in splits.items():
        random.Random(name).shuffle(rows)
    return splits


def write(splits: dict[str, list[Pair]]) -> None:
    """One CSV a split."""
    for name, rows in splits.items():
        with (HERE / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["sentence1", "sentence2", "label"])
            writer.writerows(rows)


def baselines(splits: dict[str, list[Pair]], scored: str) -> dict[str, tuple[float, float]]:
    """Accuracy and F1 of what needs no language model, by name.

    Args:
        scored: the split that is scored; training is always on `train`.
    """
    wanted = [label for *_, label in splits[scored]]
    known = [label for *_, label in splits["train"]]
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    vectorizer.fit([text for row in splits["train"] for text in row[:2]])
    shared = {
        name: np.array([[_shared(*row[:2])] for row in rows]) for name, rows in splits.items()
    }

    def bag(name: str) -> object:
        first, second = (
            vectorizer.transform([row[side] for row in splits[name]]) for side in (0, 1)
        )
        return hstack([abs(first - second), first.multiply(second), shared[name]]).tocsr()

    by_words = LogisticRegression(max_iter=2000).fit(bag("train"), known)
    by_count = LogisticRegression().fit(shared["train"], known)
    guesses = {
        "always the commonest answer": [1] * len(wanted),
        "share of common words": by_count.predict(shared[scored]),
        "bag of words": by_words.predict(bag(scored)),
    }
    return {
        name: (float(accuracy_score(wanted, guess)), float(f1_score(wanted, guess)))
        for name, guess in guesses.items()
    }


def _shared(sentence1: str, sentence2: str) -> float:
    """Jaccard similarity of the two sets of words."""
    first, second = set(sentence1.lower().split()), set(sentence2.lower().split())
    return len(first & second) / len(first | second)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def main() -> None:
    splits = split(groups())
    write(splits)
    for name, rows in splits.items():
        share = sum(label for *_, label in rows) / len(rows)
        print(f"{name}: {len(rows)} pairs, {share:.1%} equivalent")
    for name, (accuracy, f1) in baselines(splits, "validation").items():
        print(f"{name}: accuracy {accuracy:.3f}, F1 {f1:.3f} on validation")


if __name__ == "__main__":
    main()
