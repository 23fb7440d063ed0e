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
Group = dict[str, str]
Pair = tuple[str, str, int]


def groups() -> list[Group]:
    """Every group, in the file's order."""
    lines = (HERE / "groups.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def pairs(group: Group) -> list[Pair]:
    """Four equivalent pairs and two that are not.

    Of each sort one pair shares most of its words and the rest share few, so that counting
    common words tells nothing; either sentence may come first.
    """
    draw = random.Random(_digest(group["a1"]))
    near_miss = (draw.choice(["a1", "a2"]), "b1")
    far_miss = min(
        [("a1", "b2"), ("a2", "b2"), ("a3", "b1"), ("a3", "b2")],
        key=lambda names: _shared(group[names[0]], group[names[1]]),
    )
    same = [("a1", "a2"), ("a1", "a3"), ("a2", "a3"), ("b1", "b2")]
    chosen = [(*names, 1) for names in same] + [(*near_miss, 0), (*far_miss, 0)]
    made = []
    for first, second, label in chosen:
        if draw.random() < 0.5:
            first, second = second, first
        made.append((group[first], group[second], label))
    return made


def split(found: list[Group]) -> dict[str, list[Pair]]:
    """Pairs by split; a group stands in one split only, topics spread evenly over all three."""
    by_topic: dict[str, list[Group]] = {}
    for group in sorted(found, key=lambda g: _digest(g["a1"])):
        by_topic.setdefault(group["topic"], []).append(group)
    splits: dict[str, list[Pair]] = {name: [] for name in SHARES}
    for members in by_topic.values():
        begin = 0.0
        for name, share in SHARES.items():
            first, last = round(begin * len(members)), round((begin + share) * len(members))
            for group in members[first:last]:
                splits[name] += pairs(group)
            begin += share
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
        "majority class": [1] * len(wanted),
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
