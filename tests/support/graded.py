"""Toy pairs with a score of how alike they are, and toy texts with several labels."""

from __future__ import annotations

import random

from tests.support import toys

LABELS = ["hears", "likes", "sees"]


def graded_rows(count: int, seed: int = 0) -> list[tuple[str, str, float]]:
    """Pairs whose score, from 0 to 5, is lower for each word that differs."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        animals, verb = draw.sample(toys.ANIMALS, 2), draw.choice(toys.VERBS)
        kept = draw.randrange(4)  # of the three words
        words = [animals[0], verb, animals[1]]
        others = [draw.choice(toys.ANIMALS), draw.choice(toys.CONTRARY), draw.choice(toys.ANIMALS)]
        changed = [*words[:kept], *others[kept:]]
        same = sum(a == b for a, b in zip(words, changed, strict=True))
        score = round(5 * same / 3 + draw.uniform(-0.2, 0.2), 2)
        first, second = (f"the {a} {b} a {c} ." for a, b, c in (words, changed))
        rows.append((first, second, min(5.0, max(0.0, score))))
    return rows


def labelled_rows(count: int, seed: int = 0, mark: str = ";") -> list[tuple[str, str]]:
    """Texts, and those of their verbs that are labels; some have none."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        verbs = draw.sample([*LABELS, "finds", "helps"], draw.choice([1, 2, 2]))
        text = " . ".join(f"the {draw.choice(toys.ANIMALS)} {verb} a fox" for verb in verbs)
        rows.append((text, mark.join(sorted(set(verbs) & set(LABELS)))))
    return rows
