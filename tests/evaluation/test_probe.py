"""Which checkpoint first: ranked without training, for each task, and only as sure as it can be;
and what a model must beat."""

import csv
import json

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score

from finetune.__main__ import main
from finetune.config import BUNDLED_CHECKPOINT, RunConfig
from finetune.data import checkpoints
from finetune.errors import ConfigError
from finetune.evaluation import baselines, probe
from finetune.evaluation.baselines import COSINE, TFIDF
from finetune.evaluation.probe import Probed
from finetune.jobs import probe as jobs
from finetune.jobs import workers
from finetune.metrics import classification
from finetune.metrics.intervals import Interval
from finetune.owners import Visitor
from finetune.tasks.base import Target
from finetune.tasks.single_label import SingleLabel
from tests.support import toys


@pytest.fixture(scope="module")
def sentence_encoder(toy_checkpoint, tmp_path_factory):
    """The toy as a model that was no classifier, so that it reads sentences one by one."""
    folder = tmp_path_factory.mktemp("checkpoint") / "encoder"
    toys.copy_model(toy_checkpoint, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["BertModel"]}))
    return folder


def pairs_of(kind, folder):
    """A folder with a training and a validation file of a kind of answer."""
    rows = {
        "pairs": ("sentence1,sentence2,label", [*toys.rows(150)]),
        "scores": ("sentence1,sentence2,score", [*toys.graded_rows(150)]),
        "labels": ("text,labels", [*toys.labelled_rows(150)]),
    }
    head, written = rows[kind]
    for split, part in (("train", written[:120]), ("validation", written[120:])):
        with (folder / f"{split}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([head.split(","), *part])
    return folder


@pytest.mark.parametrize(
    ("kind", "metric"),
    [
        ("pairs", "f1"),
        pytest.param("scores", "pearson", marks=pytest.mark.long),
        pytest.param("labels", "micro_f1", marks=pytest.mark.long),
    ],
)
def test_each_task_is_probed(kind, metric, sentence_encoder, toy_checkpoint, tmp_path):
    pairs = toys.load(pairs_of(kind, tmp_path))
    told = []
    names = [str(tmp_path / "nowhere"), str(sentence_encoder), str(toy_checkpoint)]
    report = probe.probe(
        pairs, RunConfig(max_length=32), names, lambda *progress: told.append(progress)
    )
    *probed, absent = report.candidates
    assert list(dict.fromkeys(name for name, _, _ in told)) == names
    assert (absent.checkpoint, absent.score) == (names[0], None)
    assert "cannot be loaded" in absent.problem
    assert {one.checkpoint for one in probed} == {*names[1:]}
    assert report.metric.startswith(metric)
    assert report.pairs == 120
    scores = [one.score for one in probed if one.score is not None]
    assert scores[0].value >= scores[1].value > 0
    assert all(one.low <= one.value <= one.high for one in scores)
    # A toy reads whole pairs, if it is a classifier: then there are no two vectors to compare.
    compared = {one.checkpoint for one in probed if one.similarity is not None}
    assert compared == ({names[1]} if kind != "labels" else set())
    assert all(one.milliseconds > 0 and one.size > 1000 < one.parameters for one in probed)
    assert probed[0].may_be_best
    assert json.loads(report.to_json())["pairs"] == 120


def test_the_better_one_leads_and_equals_are_not_told_apart():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 400)
    answers = {
        name: np.where(rng.random(400) < wrong, 1 - truth, truth)
        for name, wrong in (("good", 0.2), ("as good", 0.2), ("bad", 0.4))
    }
    found = [
        Probed(name, score=Interval(float((answers[name] == truth).mean()), 0, 1))
        for name in ("bad", "good", "as good")
    ]
    ranked = probe.rank(found, answers, truth, Target(("no", "yes")))
    assert ranked[-1].checkpoint == "bad"
    assert [one.may_be_best for one in ranked] == [True, True, False]


def test_a_stopped_probe_ranks_what_it_has_read(toy_pairs_folder, sentence_encoder, toy_checkpoint):
    told = []
    names = [str(sentence_encoder), str(toy_checkpoint)]
    pairs = toys.load(toy_pairs_folder)
    report = probe.probe(
        pairs, RunConfig(max_length=32), names, progress=lambda *values: told.append(values),
        stop=lambda: told[-1][0] == names[1],
    )  # fmt: skip
    read = [done for name, done, _total in told if name == names[0]]
    assert read == sorted(read)
    assert 0 in read
    assert max(read) >= report.pairs // 2  # the second sentences count, too
    assert {total for _name, _done, total in told} == {2 * report.pairs}
    assert told[-1][1] == report.pairs
    assert [one.checkpoint for one in report.candidates] == names
    assert [one.score is not None for one in report.candidates] == [True, False]
    assert report.candidates[1].problem == "not looked at"
    assert report.verdict == "Stopped: 1 of 2 checkpoints were compared."
    assert not report.complete


def test_what_is_compared_is_checked_before(store, toy_checkpoint, monkeypatch):
    config = RunConfig()
    for names in ([], [BUNDLED_CHECKPOINT], [BUNDLED_CHECKPOINT] * 2, [f"a/{n}" for n in range(9)]):
        with pytest.raises(ConfigError, match="from 2 to 8"):
            jobs.check_request(store, config, names)
    both = [BUNDLED_CHECKPOINT, str(toy_checkpoint)]
    with pytest.raises(ConfigError, match="reads at most 64 tokens"):
        jobs.check_request(store, config, both)
    assert jobs.check_request(store, config.changed(max_length=32), both) == both
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    visitor = store.for_visitor(Visitor(names=("browser:ada",)))
    with pytest.raises(ConfigError, match="which visitors cannot use"):
        jobs.check_request(visitor, config.changed(max_length=32), both)


def test_its_worker_reads_the_pairs_and_every_checkpoint_and_no_more(store, monkeypatch):
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    names = [BUNDLED_CHECKPOINT, "bert-base-uncased", "roberta-base"]
    job = jobs.probe_of(store, RunConfig(), names)
    job.folder.mkdir(parents=True)
    request = {"config": RunConfig().to_dict(), "checkpoints": names}
    allowed = workers.job_files("probe", store.root, job, request)
    files = " ".join((*allowed.reads, *allowed.writes))
    for part in (job.id, "google-bert--bert-base-uncased", "FacebookAI--roberta-base", "/data/"):
        assert part in files
    assert not {str(store.root), str(store.root.resolve())} & {*allowed.reads, *allowed.writes}


def test_a_terminal_gets_a_ranking(toy_checkpoint, sentence_encoder, tmp_path, capsys, monkeypatch):
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")  # as the command sets it, because no Hub is needed
    folder = pairs_of("pairs", tmp_path)
    words = ["probe", "--runs", str(tmp_path / "runs"), "--train_file", str(folder / "train.csv")]
    words += ["--max_length", "32"]
    assert main([*words, "--checkpoints", str(toy_checkpoint), str(sentence_encoder)]) == 0
    output = capsys.readouterr().out
    for text in ("F1 of a linear model on ", "cosine ", "ms a row", "TF-IDF", " first"):
        assert text in output


@pytest.mark.parametrize(("size", "positive"), [(1, 1), (7, 0), (40, 1)])
def test_the_threshold_is_the_one_most_often_right(size, positive):
    draw = np.random.default_rng(0)
    similarity = draw.normal(0, 1, size).astype(np.float32).round(1)
    labels = draw.integers(0, 2, size)
    answers = classification.predict_by_threshold(similarity, labels, similarity, positive)
    best = max(
        accuracy_score(labels, np.where(similarity >= edge, side, 1 - side))
        for edge in [*similarity, np.inf]
        for side in (0, 1)  # the positive class may be that of unlike sentences
    )
    assert accuracy_score(labels, answers) == pytest.approx(best)


def test_words_in_common_are_learned_and_of_many_pairs_the_same_are_drawn(tmp_path, monkeypatch):
    """The toy pairs differ by one contrary verb, which TF-IDF sees."""
    pairs = toys.load(toys.write_pairs(tmp_path, train=400, validation=100))
    scores = baselines.measure_baselines(pairs, "some/checkpoint-that-is-not-there", 32)
    assert set(scores) == {TFIDF}
    assert set(scores[TFIDF]) == {"accuracy", "f1", "examples"}
    assert scores[TFIDF]["accuracy"] > 0.9
    assert scores[TFIDF]["examples"] == 100
    monkeypatch.setattr(baselines, "MOST", 50)
    first, second = (baselines.measure_baselines(pairs, "none/none", 32) for _ in range(2))
    assert first == second
    assert first[TFIDF]["examples"] == 50


@pytest.mark.slow
def test_the_bundled_encoder_is_measured_as_it_comes(tmp_path):
    pairs = toys.load(toys.write_pairs(tmp_path, train=40, validation=16))
    before = torch.get_rng_state()
    scores = baselines.measure_baselines(pairs, BUNDLED_CHECKPOINT, 32)
    assert torch.equal(torch.get_rng_state(), before), "the run's random numbers were touched"
    assert set(scores) == {TFIDF, COSINE}
    again = baselines.measure_baselines(pairs, BUNDLED_CHECKPOINT, 32, stop=lambda: True)
    assert again == scores  # they are kept
    stopped = baselines.measure_baselines(pairs, BUNDLED_CHECKPOINT, 16, stop=lambda: True)
    assert set(stopped) == {TFIDF}  # and this one is none


@pytest.mark.parametrize(
    ("cosine", "constant", "words"),
    [
        ({"accuracy": 0.96, "f1": 0.2}, {"accuracy": 0.6}, "accuracy 0.960"),
        ({"accuracy": 0.94, "f1": 0.951}, {"f1": 0.8}, "F1 0.951"),
        ({"accuracy": 0.9, "f1": 0.96}, {"f1": 0.96}, ""),  # no more than one answer for all
    ],
)
def test_where_the_similarity_alone_is_enough_it_is_said(cosine, constant, words):
    measured = {COSINE: cosine, SingleLabel.constant: constant, TFIDF: {"f1": 1.0}}
    text = baselines.why_no_training(measured, SingleLabel(), 2, 30)
    assert not baselines.why_no_training(measured, SingleLabel(), 2, 29)  # can be chance
    assert bool(text) == bool(words)
    assert words in text


@pytest.mark.slow
def test_similarities_are_those_of_the_formula():
    """Mean of the token states, length 1, as the checkpoint's `modules.json` says."""
    from transformers import AutoModel, AutoTokenizer

    folder = checkpoints.bundled_folder()
    first, second = ["the cat sat .", "a dog"], ["a cat was sitting on the mat .", "the bird flies"]
    encoder, reader, first_token = baselines.load_encoder(folder)
    encoded = baselines.encode(encoder, reader, [first + second], 32, False, first_token)
    cosine = baselines.cosine(*np.split(encoded, 2))
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    with torch.inference_mode():
        vectors = [
            model.eval()(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
            for text in first + second
        ]
    expected = torch.cosine_similarity(torch.stack(vectors[:2]), torch.stack(vectors[2:]))
    np.testing.assert_allclose(cosine, expected, atol=1e-5)
