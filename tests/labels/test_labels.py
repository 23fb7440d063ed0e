"""A labelling from its file to groups, through the functions that page and commands call."""

import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from finetune import api
from finetune.__main__ import main
from finetune.cli import label as cli
from finetune.config import RunConfig
from finetune.errors import ConfigError, DataError, JobError
from finetune.jobs import label, label_answers
from finetune.jobs.label import LabelJob
from finetune.labels import candidates, groups, learning
from finetune.labels.labelling import CHOSEN, RANDOM, Labelling, write_deck
from finetune.owners import Visitor
from finetune.runs.job_folder import JobFolder
from finetune.runs.store import RunStore
from tests.support.uploads import write_csv

THINGS = ("lamp", "chair", "kettle", "shelf", "towel", "clock")
COLOURS = ("red", "blue", "green", "white", "black", "grey")


def records():
    """Texts with the group of each: every product is spelled in three ways."""
    found = []
    for place, thing in enumerate(THINGS):
        for colour in COLOURS:
            name = f"{colour} {thing}"
            ways = (f"{colour} {thing} {place}1 cm", f"{thing}, {colour}, {place}1cm")
            found += [(way, name) for way in (*ways, f"The {colour} {thing} of {place}1 cm")]
    return found


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "products.csv"
    with path.open("w", newline="") as out:
        csv.writer(out).writerows([("id", "title"), *enumerate(text for text, _ in records())])
    return path


def prepared(folder, texts, **request):
    """A labelling whose features are the texts' lengths and whether they have an a."""
    folder.mkdir(parents=True)
    asked = {"pairs": False, "several": False, "names": ["a", "b"], "files": ["t.csv"]} | request
    JobFolder(folder).describe_job("label", "", {"columns": ["t"]} | asked)
    pq.write_table(pa.table({"text": texts}), folder / "texts.parquet")
    features = np.array([[len(text), 3.0 * ("a" in text)] for text in texts], np.float32)
    items = np.arange(len(texts), dtype=np.int32)[:, None]
    write_deck(folder, items, np.arange(4), features)
    return Labelling(folder)


@pytest.fixture
def labelling(tmp_path):
    words = [f"{word} {number}" for number in range(60) for word in ("bar", "cot", "zoo")]
    return prepared(tmp_path / "store" / "labels" / ("x" * 20), words)


def answer(labelling, count, who="me"):
    for _ in range(count):
        question = labelling.next(who)
        labelling.answer(question.item, ["a" if "a" in question.texts[0] else "b"], who)


def test_every_third_question_is_random_and_teaches_nothing(labelling):
    answer(labelling, 60)
    given = labelling.answers()
    assert [one.how for one in given[:7]] == [RANDOM, CHOSEN, CHOSEN] * 2 + [RANDOM]
    assert len({one.item for one in given}) == 60  # none is asked twice
    random = [labelling.deck.place_of[one.item] for one in given if one.how == RANDOM]
    assert random == labelling.deck.random[:20].tolist()  # whatever was answered
    found = labelling.estimate()
    assert (found.measured, found.learned) == (20, 40)
    assert found.now.value > 0.9
    assert found.now.low < found.now.value <= found.twice.value


def test_random_questions_that_had_to_wait_follow(labelling):
    for item in labelling.deck.items[labelling.deck.spread[:6]].tolist():
        labelling.answer(item, ["a" if "a" in labelling.texts[item[0]] else "b"], "me")
    answer(labelling, 6)
    assert [one.how for one in labelling.answers()[6:]] == [RANDOM] * 4 + [CHOSEN] * 2
    answer(labelling, 180 - 12)
    assert labelling.next("me") is None  # all is answered


def test_what_is_asked_next_is_what_the_model_doubts(labelling):
    answer(labelling, 31)
    labelling.add_name("rare", "me")  # which nothing has yet
    question, deck = labelling.next("me"), labelling.deck
    asked = {one.item for one in labelling.answers()}
    free = [place for place in deck.spread if tuple(deck.items[place].tolist()) not in asked]
    known = labelling.learner(CHOSEN).probabilities(deck.features[free])
    assert question.how == CHOSEN
    assert deck.place_of[question.item] == free[int(np.argmin(learning.margins(known, False)))]
    assert labelling.next("other").how == RANDOM  # whose first it is


def test_answers_are_kept_at_once_and_taken_back(labelling):
    answer(labelling, 3)
    last = labelling.answers()[-1]
    labelling.undo("me")
    again = Labelling(labelling.folder)  # another process
    assert len(again.answers()) == 2
    question = again.next("me")
    assert question.item == last.item
    with (labelling.folder / "answers.jsonl").open("ab") as file:
        file.write(b'{"item": [1], "ans')  # killed while it wrote
    answer(again, 1)
    assert len(Labelling(labelling.folder).answers()) == 3
    rows = list(csv.DictReader(again.export(".csv").splitlines()))
    assert list(rows[0]) == ["text", "label", "who", "when", "question"]
    assert [json.loads(line)["label"] for line in again.export(".jsonl").splitlines()] == [
        row["label"] for row in rows
    ]


def test_two_people_answer_the_same_random_questions(labelling):
    answer(labelling, 12, "ada")
    for number in range(12):
        question = labelling.next("ben")
        is_a = "a" in question.texts[0] and number != 0  # one answer differs
        labelling.answer(question.item, ["a" if is_a else "b"], "ben")
    ((*found, kappa),) = labelling.people()
    both = {one.item for one in labelling.answers() if one.who == "ada" and one.how == RANDOM}
    assert found == ["ada", "ben", len(both)]
    assert kappa.low < kappa.value < kappa.high
    first = [one for one in labelling.answers() if one.item == labelling.answers()[0].item]
    differ = len({one.labels for one in first}) == 2
    assert labelling.disputed() == differ
    assert (first[0].item in labelling.settled()) != differ


def test_labels_are_added_and_wrong_ones_refused(labelling):
    labelling.add_name(" new  one ", "me")
    assert labelling.names == ["a", "b", "new one"]
    question = labelling.next("me")
    with pytest.raises(DataError, match="One label is needed"):
        labelling.answer(question.item, ["a", "b"], "me")
    with pytest.raises(DataError, match="no such question"):
        labelling.answer([10**6], ["a"], "me")
    assert labelling.answer(question.item, None, "me").labels is None  # skipped
    assert labelling.next("me").item != question.item
    np.save(labelling.folder / "items-1.npy", [[500]])  # asked before there were vectors
    np.save(labelling.folder / "spread-1.npy", [0])
    assert labelling.answer([500], ["a"], "me").how == CHOSEN


def test_several_labels_or_none(tmp_path):
    labelling = prepared(tmp_path / "many", [f"text {n}" for n in range(40)], several=True)
    for labels in (["b", "a"], []):
        question = labelling.next("me")
        labelling.answer(question.item, labels, "me")
    assert [one.labels for one in labelling.answers()] == [("a", "b"), ()]


def test_all_texts_are_labelled_and_a_persons_answers_kept(labelling, tmp_path):
    out, texts = tmp_path / "out.csv", labelling.texts.tolist()
    rows = [("text", "label"), *((one, "") for one in texts), ("no label",)]
    write_csv(labelling.folder / "input-1.csv", rows)
    np.save(labelling.folder / "rows-1.npy", [-1, *range(1, len(texts)), -1])
    with pytest.raises(DataError, match="There are 0 answers"):
        label_answers.answer_all(labelling.folder, None, [out])
    answer(labelling, 21)
    item, *_ = labelling.answers()[1]
    labelling.answer(item, ["b" if "a" in texts[item[0]] else "a"], "me")  # as only they see it
    found = label_answers.answer_all(labelling.folder, None, [out])
    unread = ["t.csv, line 182 has 1 fields where the first line has 2"]
    told = {"run": "", "answers": 21, "labelled": len(texts) - 1, "columns": ["label_2"]}
    assert found == told | {"unread": unread}
    rows = list(csv.DictReader(out.open()))
    right = [*("a" if "a" in text else "b" for text in texts), ""]
    differ = [n for n, row in enumerate(rows) if row["label_2"] != right[n]]
    assert (rows[0]["label_2"], differ) == ("", [0, *item])


def test_the_interval_covers_what_a_model_is_worth():
    """Simulated: the share of right answers on all rows lies within 95% of the intervals."""
    random, covered = np.random.default_rng(1), 0.0
    for _ in range(60):
        truth = random.random(400) < 0.4
        features = np.stack([truth + random.normal(0, 0.8, 400), random.normal(0, 1, 400)], 1)
        answers = [("same",) if own else ("different",) for own in truth]
        names = ["same", "different"]
        found = learning.estimate(
            (features[:40], answers[:40]), (features[40:70], answers[40:70]), names, False
        )
        learner = learning.Learner(features[:40], answers[:40], names, False)
        right = np.mean([a == b for a, b in zip(learner.answers(features[70:]), answers[70:],
                                                strict=True)])  # fmt: skip
        covered += float(found.now.low <= right <= found.now.high)
    assert covered >= 52  # binomial: below with a probability of 1%


@pytest.mark.parametrize("exact", [candidates.EXACT, 10])
def test_candidates_are_near_and_none_occurs_twice(exact, monkeypatch):
    monkeypatch.setattr(candidates, "EXACT", exact)
    random = np.random.default_rng(0)
    centres = candidates.unit(random.normal(size=(40, 16)))
    vectors = candidates.unit(np.repeat(centres, 3, axis=0) + random.normal(0, 0.02, (120, 16)))
    pairs = candidates.candidate_pairs(vectors, np.zeros(120, np.int8), 5)
    assert (pairs[:, 0] < pairs[:, 1]).all()
    assert len(np.unique(pairs, axis=0)) == len(pairs)
    wanted = {(3 * n + a, 3 * n + b) for n in range(40) for a, b in ((0, 1), (0, 2), (1, 2))}
    # An index that several threads fill misses some when it is this small, now one, now nine.
    assert len(wanted & set(map(tuple, pairs.tolist()))) >= (100 if exact == 10 else 120)
    file_of = np.arange(120) % 2
    across = candidates.candidate_pairs(vectors, file_of, 5)
    assert (file_of[across[:, 0]] != file_of[across[:, 1]]).all()


def test_groups_keep_what_a_person_said():
    assert candidates.twins(["A b", "Fine :)", "a  B", "Fine :("]) == [(0, 2)]
    pairs = np.array([[0, 1], [1, 2], [2, 3], [4, 5]], np.int32)
    sure = np.array([0.9, 0.95, 0.8, 0.3])
    assert groups.group(6, pairs, sure, {}).tolist() == [0, 0, 0, 0, 1, 2]
    known = {(0, 3): False, (4, 5): True}
    assert groups.group(6, pairs, sure, known).tolist() == [0, 0, 0, 1, 2, 2]
    assert groups.measure(np.array([0, 0, 1]), {(0, 1): True, (0, 2): True}) == {
        "precision": [1.0, pytest.approx(0.2065, abs=1e-4), 1.0],
        "recall": [0.5, pytest.approx(0.0945, abs=1e-4), pytest.approx(0.9055, abs=1e-4)],
    }


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"labels": ["one"]}, "needs two or more, not 1"),
        ({"labels": ["a", "b"], "files": 2}, "is only used with pairs"),
        ({"pairs": True, "columns": ["name"]}, "no column 'name'"),
    ],
)
def test_what_cannot_be_labelled_is_refused(file, tmp_path, options, told):
    files = [file] * options.pop("files", 1)
    with pytest.raises((ConfigError, DataError), match=told):
        label.start_labelling(RunStore(tmp_path / "runs"), files, **options)
    assert not (tmp_path / "runs" / "labels").exists()


def test_a_labelling_is_its_visitors_alone(labelling, file, monkeypatch):
    """Others find none. Its own may keep so many, and delete them."""
    monkeypatch.setenv("FINETUNE_MAX_RUNS", "1")
    store = RunStore(labelling.folder.parent.parent)
    JobFolder(labelling.folder).describe_job("label", "browser:ada", labelling.request)
    assert LabelJob.find(store, labelling.folder.name).title == "t.csv"
    other = store.for_visitor(Visitor(names=("browser:ben",)))
    assert LabelJob.newest(other) == []
    with pytest.raises(DataError, match="no such labelling"):
        LabelJob.find(other, labelling.folder.name)
    answer(labelling, 1)
    own = store.for_visitor(Visitor(names=("browser:ada",)))
    with pytest.raises(JobError, match="You have 1 labellings"):
        label.start_labelling(own, [file], pairs=True)
    label_answers.delete_labelling(*LabelJob.newest(own))
    assert not labelling.folder.exists()


@pytest.mark.long
def test_from_a_file_to_groups(file, tmp_path, toy_checkpoint, monkeypatch, capsys):
    """Pairs of a file: asked in a terminal, trained on, grouped; then questions by that model."""
    store, known = RunStore(tmp_path / "runs"), dict(records())
    asked = []

    def typed(prompt):
        labelling = label.LabelJob.newest(store)[0].labelling
        question = labelling.next("me")
        assert len(set(question.texts)) == 2
        first, second = map(known.__getitem__, question.texts)
        asked.append("1" if first == second else "2")
        return asked[-1] if len(asked) <= 60 else "q"

    monkeypatch.setattr("builtins.input", typed)
    words = ["--runs", str(store.root), "--checkpoint", str(toy_checkpoint), "--max_length", "32"]
    assert cli.label([*words, "--file", str(file)]) == 0
    assert "a model would be right in" in capsys.readouterr().out
    (job,) = label.LabelJob.newest(store)
    assert len(job.labelling.answers()) == 60
    assert asked.count("1") > 10
    assert job.request["columns"] == ["title"]

    config = RunConfig(checkpoint=str(toy_checkpoint), max_length=32, num_train_epochs=2)
    config = label.training_config(store, job, config)
    assert (config.folds, config.positive_label) == (5, "same")
    run = api.train(config.changed(folds=2, max_length=32), store, progress=False)
    out = tmp_path / "groups.csv"
    assert main(["groups", "--runs", str(store.root), "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["measured"], found["answers"]) == (len(job.labelling.settled(RANDOM)), 60)
    assert found["groups"] > 5
    assert main(["groups", "--run", run.id, "--runs", str(store.root), "--out", str(out)]) == 0
    rows = list(csv.DictReader(out.open()))
    assert [row["title"] for row in rows] == [text for text, _ in records()]
    number = {row["title"]: row["group"] for row in rows}
    for item, labels in job.labelling.settled().items():
        first, second = (number[job.labelling.texts[text]] for text in item)
        assert (first == second) >= (labels == ("same",))  # a person's yes is kept
    report = api.groups(job.labelling, run, tmp_path / "groups.jsonl")
    assert report["measured"] == len(job.labelling.settled(RANDOM))
    scores = job.labelling.scores()
    assert len(scores) == len(job.labelling.deck.items)
    assert job.labelling.next("me") is not None
