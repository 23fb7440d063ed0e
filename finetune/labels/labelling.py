"""A labelling on disk: its texts, what to ask next, and the answers.

The folder has `texts.parquet` (each text once, with its file), what can be asked in `deck.json` and
the arrays it names, all written by its job; `answers.jsonl`, a line an answer; and `scores.npy`
once a trained model has answered what can be asked.
"""

import functools
import itertools
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from finetune import disk
from finetune.data import csv_cells
from finetune.errors import DataError
from finetune.inference import other_answers
from finetune.labels import learning
from finetune.labels.learning import Estimate, Labels, Learner
from finetune.metrics.intervals import Interval
from finetune.runs.job_folder import JobFolder

SAME, DIFFERENT = "same", "different"  # labels of pairs
RANDOM, CHOSEN = "random", "chosen"  # how a question was found
EVERY = 3  # of so many questions one is random, and only measures
LAST = 20  # answers by which agreement is told
_POOL = 20_000  # items among which the next question is looked for
_CUT = 4000  # characters of a text that are shown

Item = tuple[int, ...]  # indices of one text or two


class Answer(NamedTuple):
    """An answer; `labels` is None if the question was skipped."""

    item: Item
    labels: Labels | None
    who: str
    when: float  # seconds since the epoch
    how: str  # RANDOM or CHOSEN
    guess: Labels | None  # what the small model would have said


class Question(NamedTuple):
    """A question to one person."""

    item: Item
    texts: list[str]
    how: str
    number: int  # of this person's, from 1


class Deck(NamedTuple):
    """What can be asked."""

    items: NDArray[np.int32]  # shape (items, 1 or 2)
    random: NDArray[np.int64]  # items that only measure, in the order in which they are asked
    spread: NDArray[np.int64]  # other items, in the order before there is a model
    features: NDArray[np.float32] | None  # None while they are computed
    place_of: dict[Item, int]

    def places(self, items: Iterable[Item]) -> list[int]:
        """Return the indices of those items that the deck has."""
        return [self.place_of[item] for item in items if item in self.place_of]


class Labelling:
    """The labels that people give to the texts, or pairs of texts, of a file."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.request = folder, JobFolder(folder).request
        if not self.request:
            raise DataError("There is no such labelling.", "Choose the file again.")
        self.pairs, self.several = self.request["pairs"], self.request["several"]

    @property
    def names(self) -> list[str]:
        """The labels, in the order of their keys."""
        if self.pairs:
            return [SAME, DIFFERENT]
        added = (line["add"] for line in self._lines if "add" in line)
        return list(dict.fromkeys([*self.request["names"], *added]))

    @property
    def used(self) -> list[str]:
        """The labels that were given to something; all while none was."""
        given = {name for labels in self.settled().values() for name in labels}
        return [name for name in self.names if name in given or not given]

    @property
    def ready(self) -> bool:
        """True once something can be asked."""
        return (self.folder / "deck.json").is_file()

    @property
    def _lines(self) -> list[dict[str, Any]]:
        path = self.folder / "answers.jsonl"
        return _read_lines(path, path.stat().st_size) if path.exists() else []

    @property
    def deck(self) -> Deck:
        return _read_deck(self.folder, disk.read_cached(self.folder / "deck.json", str))

    @property
    def texts(self) -> NDArray[Any]:
        """The texts of the file, or of both, each once."""
        return _read_texts(self.folder)

    def answers(self) -> list[Answer]:
        """Return all answers in their order, without those taken back. The last one of a person to
        an item counts."""
        kept: dict[tuple[str, Item], Answer] = {}
        for line in self._lines:
            own = [key for key in kept if key[0] == line["who"]] if "undo" in line else []
            if own:
                del kept[own[-1]]
            elif "item" in line:
                both = line["answer"], line.get("guess")
                labels, guess = (None if own is None else tuple(own) for own in both)
                who, item = line["who"], tuple(line["item"])
                kept.pop((who, item), None)
                kept[who, item] = Answer(item, labels, who, line["when"], line["how"], guess)
        return list(kept.values())

    def settled(self, how: str = "") -> dict[Item, Labels]:
        """Return the labels of each item on which all who answered it agree. `how`: only those of
        questions that were RANDOM or CHOSEN."""
        found: dict[Item, set[Labels]] = {}
        for answer in self.answers():
            if answer.labels is not None and how in ("", answer.how):
                found.setdefault(answer.item, set()).add(answer.labels)
        return {item: labels.copy().pop() for item, labels in found.items() if len(labels) == 1}

    def disputed(self) -> int:
        """Return the number of items that people answered differently."""
        answered = {one.item for one in self.answers() if one.labels is not None}
        return len(answered) - len(self.settled())

    def next(self, who: str) -> Question | None:
        """Return the next question to a person; None if all is answered.

        A third of the questions is random and only measures: those that could not be asked yet,
        because the texts were still compared, follow then. The others are far apart at first, then
        those that the model is least sure of.
        """
        answers, deck = self.answers(), self.deck
        own = [one for one in answers if one.who == who]
        asked, measured = {one.item for one in own}, sum(one.how == RANDOM for one in own)
        labelled = asked | {one.item for one in answers if one.labels is not None}
        done = set(deck.places(asked))
        random = (index for index in deck.random.tolist() if index not in done)
        turns = [(random, RANDOM), (self._chosen(deck, labelled), CHOSEN)]
        for found, how in turns if EVERY * measured <= len(asked) else turns[::-1]:
            if (index := next(found, None)) is not None:
                item = tuple(deck.items[index].tolist())
                texts = [text[:_CUT] for text in self.texts[[*item]]]
                return Question(item, texts, how, len(asked) + 1)
        return None

    def _chosen(self, deck: Deck, asked: set[Item]) -> Iterator[int]:
        pool = free = deck.spread[~np.isin(deck.spread, deck.places(asked))]
        if not len(free):
            return
        if len(free) > _POOL:
            pool = np.random.default_rng(len(asked)).choice(free, _POOL, replace=False)
        probabilities = self._probabilities(pool)
        if probabilities is not None:
            yield int(pool[np.argmin(learning.margins(probabilities, self.several))])
        yield from free.tolist()

    def _probabilities(self, rows: NDArray[np.int64]) -> NDArray[Any] | None:
        """Return the probabilities of items by the trained model, if one has answered them all, or
        by the small one. None until two labels were given twice; others may be rare, or new."""
        if (scores := self.scores()) is not None:
            return scores[rows]
        settled, features = self.settled(CHOSEN).values(), self.deck.features
        known = [name for name in self.names if sum(name in own for own in settled) >= 2]
        if features is None or len(known) < 2:
            return None
        return _fit(self.folder, len(self._lines)).probabilities(features[rows])

    def scores(self) -> NDArray[np.float32] | None:
        """Return a trained model's probabilities of `names` for all items, if it has answered."""
        path = self.folder / "scores.npy"
        scores = np.load(path, mmap_mode="r") if path.is_file() else None
        wanted = (len(self.deck.items), len(self.names))
        return scores if scores is not None and scores.shape == wanted else None

    def learner(self, how: str = "") -> Learner:
        """Return the small model of the answers; `how`: only of those to RANDOM or CHOSEN
        questions."""
        return Learner(*self._part(how), self.names, self.several)

    def _part(self, how: str) -> tuple[NDArray[np.float32], list[Labels]]:
        """Return features and labels of the settled answers to random or chosen questions."""
        deck = self.deck
        settled = {item: own for item, own in self.settled(how).items() if item in deck.place_of}
        assert deck.features is not None
        return np.asarray(deck.features[deck.places(settled)]), list(settled.values())

    def answer(self, item: Any, labels: Any, who: str) -> Answer:
        """Write an answer to disk. DataError if there is no such item or label, or not exactly one
        where one is needed. Any client can send anything.

        Args:
            item: of the question, a list of numbers.
            labels: a list of names; None skips the question.
        """
        texts, deck = item if isinstance(item, list | tuple) else [], self.deck
        own = tuple(text for text in texts if isinstance(text, int))
        if own not in deck.place_of and (self.folder / "items-1.npy").is_file():
            deck = _read_deck(self.folder, json.dumps({"stage": 1}))  # asked before the vectors
        if own not in deck.place_of:
            raise DataError("There is no such question.", "Ask for the next one.")
        place, guess = deck.place_of[own], None
        if labels is not None:
            sent = labels if isinstance(labels, list | tuple) else []
            labels = tuple(name for name in self.names if name in sent)
            if len(labels) != 1 and not self.several:
                names = ", ".join(self.names)
                raise DataError("One label is needed.", "Give one of {names}.", names=names)
            found = self._probabilities(np.array([place])) if deck is self.deck else None
            if found is not None:
                guess = learning.answers(found, self.names, self.several)[0]
        how = RANDOM if place in deck.random else CHOSEN
        given = Answer(own, labels, who, time.time(), how, guess)
        line = given._asdict()
        self._append(line | {"answer": line.pop("labels")})
        return given

    def undo(self, who: str) -> None:
        """Take back a person's last answer, or what they skipped last."""
        self._append({"undo": True, "who": who, "when": time.time()})

    def add_name(self, name: str, who: str) -> None:
        """Add a label. DataError if the labels are those of pairs, or it has no letters."""
        name = " ".join(name.split())[:100]
        if self.pairs or not name:
            raise DataError("No label can be added by that.", "Type its name.")
        self._append({"add": name, "who": who, "when": time.time()})

    def _append(self, line: dict[str, Any]) -> None:
        path = self.folder / "answers.jsonl"
        with disk.writing(path):
            disk.append_line(path, json.dumps(line, ensure_ascii=False).encode())

    def estimate(self) -> Estimate | None:
        """Estimate how good a model is now and with twice as many answers, from the random part."""
        if self.deck.features is None:
            return None
        learned, measured = (self._part(how) for how in (CHOSEN, RANDOM))
        return learning.estimate(learned, measured, self.names, self.several)

    def agreement(self, who: str) -> tuple[int, int]:
        """Return in how many of a person's last answers the model had said the same, and of how
        many it had said something."""
        told = [one for one in self.answers() if one.who == who and one.guess is not None][-LAST:]
        return sum(one.guess == one.labels for one in told), len(told)

    def people(self) -> list[tuple[str, str, int, Interval]]:
        """Return how far each two people agree: their names, the number of items that both
        answered, and Cohen's kappa."""
        own: dict[str, dict[Item, Labels]] = {}
        for one in self.answers():
            if one.labels is not None:
                own.setdefault(one.who, {})[one.item] = one.labels
        found = []
        for first, second in itertools.combinations(own, 2):
            if both := own[first].keys() & own[second].keys():
                given = [own[who][item] for who in (first, second) for item in both]
                kinds = sorted(set(given))
                classes = np.array([kinds.index(labels) for labels in given]).reshape(2, -1)
                found.append((first, second, len(both), other_answers.kappa(*classes)))
        return found

    def row(self, item: Item, labels: Labels) -> dict[str, Any]:
        """Return the row of a file to train on: the texts, and their label or labels."""
        names = ["text1", "text2"] if self.pairs else ["text"]
        texts = dict(zip(names, self.texts[[*item]], strict=True))
        return texts | {"label": list(labels) if self.several else labels[0]}

    def export(self, ending: str = ".csv") -> str:
        """Return all answers as `.csv` or `.jsonl`: texts, answer, who, when, and how each question
        was found. Skipped questions are left out."""
        if ending not in (".csv", ".jsonl"):
            raise DataError("{ending!r} cannot be written.", "Give .csv or .jsonl.", ending=ending)
        rows = []
        for one in self.answers():
            if one.labels is not None:
                when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(one.when))
                facts = {"who": one.who, "when": when, "question": one.how}
                rows.append(self.row(one.item, one.labels) | facts)
        if ending == ".jsonl":
            return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        for row in rows if self.several else []:
            row["label"] = json.dumps(row["label"], ensure_ascii=False)
        return csv_cells.to_csv([list(row) for row in rows[:1]] + [[*row.values()] for row in rows])


@functools.lru_cache(16)
def _read_lines(path: Path, size: int) -> list[dict[str, Any]]:
    """Read all lines of a file that only grows; the last one may still be written."""
    lines = disk.read_part(path, 0, size).split(b"\n")
    return [own for line in lines if (own := disk.parse_object(line))]


@functools.lru_cache(4)
def _read_texts(folder: Path) -> NDArray[Any]:
    return np.array(pq.read_table(folder / "texts.parquet").column("text").to_pylist(), object)


@functools.lru_cache(4)
def _read_deck(folder: Path, facts: str) -> Deck:
    stage = disk.parse_object(facts)["stage"]
    items, spread = (np.load(folder / f"{name}-{stage}.npy") for name in ("items", "spread"))
    features = np.load(folder / "features-2.npy", mmap_mode="r") if stage == 2 else None
    order = np.random.default_rng(0).permutation(len(items))
    # The first pairs are neighbours by their letters, and no random part of the candidates.
    random = order[: len(order) // EVERY if stage == 2 or items.shape[1] == 1 else 0]
    spread = np.concatenate([spread, order[~np.isin(order, spread)]]).astype(np.int64)
    place_of = {tuple(item): place for place, item in enumerate(items.tolist())}
    return Deck(items, random, spread[~np.isin(spread, random)], features, place_of)


@functools.lru_cache(4)
def _fit(folder: Path, lines: int) -> Learner:
    """Fit the small model of the answers given by now; only chosen ones teach it."""
    return Labelling(folder).learner(CHOSEN)


def write_deck(
    folder: Path, items: NDArray[np.int32], spread: NDArray[Any],
    features: NDArray[np.float32] | None = None,
) -> None:  # fmt: skip
    """Write what can be asked: first without `features`, then with them. `spread` has the indices
    of items in the order before there is a model; others follow at random."""
    stage = 1 if features is None else 2
    np.save(folder / f"items-{stage}.npy", items)
    np.save(folder / f"spread-{stage}.npy", spread)
    if features is not None:
        np.save(folder / f"features-{stage}.npy", features)
    disk.write_atomically(folder / "deck.json", json.dumps({"stage": stage}))
