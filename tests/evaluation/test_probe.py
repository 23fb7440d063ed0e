"""Which checkpoint first: ranked without training, for each task, and only as sure as it can be."""

from __future__ import annotations

import csv
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from finetune.__main__ import main
from finetune.config import BUNDLED_CHECKPOINT, RunConfig
from finetune.errors import ConfigError, DataError
from finetune.evaluation import probe
from finetune.evaluation.probe import Probed, ProbeReport
from finetune.jobs import probe as jobs
from finetune.jobs import workers
from finetune.metrics import selection
from finetune.metrics.intervals import Interval
from finetune.metrics.shared_rows import SharedRows
from finetune.owners import Visitor
from finetune.runs import events
from finetune.runs.store import RunStore
from finetune.tasks.base import Target
from tests.support import graded, toys
from tests.support.waiting import until

SCORE = Interval(0.8, 0.7, 0.9)


@pytest.fixture(scope="module")
def sentence_encoder(toy_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy as a model that was no classifier, so that it reads sentences one by one."""
    folder = tmp_path_factory.mktemp("checkpoint") / "encoder"
    toys.copy_model(toy_checkpoint, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["BertModel"]}))
    return folder


def pairs_of(kind: str, folder: Path) -> Path:
    """A folder with a training and a validation file of a kind of answer."""
    rows: dict[str, tuple[str, list[tuple[object, ...]]]] = {
        "pairs": ("sentence1,sentence2,label", [*toys.rows(150)]),
        "scores": ("sentence1,sentence2,score", [*graded.graded_rows(150)]),
        "labels": ("text,labels", [*graded.labelled_rows(150)]),
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
def test_each_task_is_probed_and_what_cannot_be_read_is_said(
    kind: str, metric: str, sentence_encoder: Path, toy_checkpoint: Path, tmp_path: Path
) -> None:
    pairs = toys.load(pairs_of(kind, tmp_path))
    told: list[tuple[str, int, int]] = []
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
    assert report.words is not None
    scores = [one.score for one in probed if one.score is not None]
    assert scores[0].value >= scores[1].value > 0
    assert all(one.low <= one.value <= one.high for one in scores)
    # A toy reads whole pairs, if it is a classifier: then there are no two vectors to compare.
    compared = {one.checkpoint for one in probed if one.similarity is not None}
    assert compared == ({names[1]} if kind != "labels" else set())
    assert all(one.milliseconds > 0 and one.size > 1000 < one.parameters for one in probed)
    assert probed[0].may_be_best
    assert json.loads(report.to_json())["pairs"] == 120


def test_the_better_one_leads_and_equals_are_not_told_apart() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 400)

    def wrong_in(share: float) -> NDArray[np.int64]:
        return np.where(rng.random(400) < share, 1 - truth, truth)

    answers = {"good": wrong_in(0.2), "as good": wrong_in(0.2), "bad": wrong_in(0.4)}
    target = Target(("no", "yes"))
    found = [
        Probed(name, score=Interval(float((answers[name] == truth).mean()), 0, 1))
        for name in ("bad", "good", "as good")
    ]
    ranked = probe.rank(found, answers, truth, target)
    assert ranked[-1].checkpoint == "bad"
    assert [one.may_be_best for one in ranked] == [True, True, False]

    def verdict(candidates: list[Probed]) -> str:
        return ProbeReport(candidates, None, "f1", 2, 400).verdict

    assert "do not tell which" in verdict(ranked)
    alone = probe.rank([found[0], found[1]], answers, truth, target)
    assert verdict(alone).startswith("Train good first")
    assert "Only bad" in verdict([found[0], Probed("x", "no")])
    assert "None" in verdict([Probed("x", "no")])


def test_features_are_of_one_scale_and_know_how_sentences_differ() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(5, 3, (2, 300, 8)).astype(np.float32)
    joined = probe.join(first, second)
    assert joined.shape == (300, 33)
    assert joined.mean(axis=0) == pytest.approx(0, abs=1e-4)
    assert joined[:, :32].var(axis=0).sum() == pytest.approx(1, abs=0.01)
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    expected = (first * second).sum(axis=1) / norms
    assert np.corrcoef(joined[:, 32], expected)[0, 1] == pytest.approx(1, abs=1e-4)
    assert probe.join(1000 * first, second) == pytest.approx(joined, abs=1e-4)
    assert probe.join(first, None).shape == (300, 8)


def test_rows_that_share_a_sentence_share_a_fold() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 200, (2, 90))
    groups = SharedRows(first, second).fold_groups(5)
    fold_of = selection.assign_folds(rng.integers(0, 2, 90), 5, groups)
    for sentence in range(200):
        rows = (first == sentence) | (second == sentence)
        assert len(set(fold_of[rows])) <= 1
    # One sentence in nearly every row would make one fold of all.
    groups = SharedRows(np.minimum(first, 1), second).fold_groups(5)
    pairs = {frozenset(pair) for pair in zip(np.minimum(first, 1), second, strict=True)}
    assert len(np.unique(groups)) == len(pairs)


def test_too_few_pairs_are_refused(toy_checkpoint: Path, tmp_path: Path) -> None:
    pairs = toys.load(toys.write_pairs(tmp_path, train=40))
    with pytest.raises(DataError, match="only 40 training pairs"):
        probe.probe(pairs, RunConfig(), [str(toy_checkpoint)])


def test_a_stopped_probe_ranks_what_it_has_read(
    toy_pairs_folder: Path, sentence_encoder: Path, toy_checkpoint: Path
) -> None:
    told: list[tuple[str, int, int]] = []
    names = [str(sentence_encoder), str(toy_checkpoint)]
    pairs = toys.load(toy_pairs_folder)
    report = probe.probe(
        pairs,
        RunConfig(max_length=32),
        names,
        progress=lambda *values: told.append(values),
        stop=lambda: told[-1][0] == names[1],
    )
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


def test_a_probe_is_made_again_unless_all_were_compared(
    store: RunStore, toy_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    own = tmp_path / "own"
    shutil.copytree(toy_checkpoint, own)
    monkeypatch.setattr(jobs.ProbeJob, "begin", lambda job, *values: begun.append(job.id))
    config, names = RunConfig(max_length=32), [BUNDLED_CHECKPOINT, str(own)]
    job = jobs.probe_of(store, config, names)
    job.folder.mkdir(parents=True)
    job.append(events.Finished(step=0, seconds=1.0))
    half = Interval(0.5, 0.4, 0.6)
    for problem, score in (("the Hub does not answer", None), ("", half)):
        found = [Probed(names[0], score=half), Probed(names[1], problem, score)]
        report = ProbeReport(found, None, "f1", 2, 100)
        (job.folder / "report.json").write_text(report.to_json())
        assert jobs.start_probe(store, config, names).id == job.id
        assert begun == [job.id]  # at the first time only
    os.utime(own / "config.json", (2e9, 2e9))  # it was trained anew
    assert jobs.probe_of(store, config, names).id != job.id


def test_what_cannot_be_compared_says_why(
    tmp_path: Path, sentence_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = toys.load(toys.write_pairs(tmp_path, train=80))
    monkeypatch.setattr(selection, "assign_folds", lambda strata, *_: strata)
    (one,) = probe.probe(pairs, RunConfig(max_length=32), [str(sentence_encoder)]).candidates
    assert str(one.problem) == "Without a fifth of the pairs, only one answer is left."
    monkeypatch.setattr(probe, "encode", lambda *values: np.full((80, 4), np.nan, np.float32))
    (one,) = probe.probe(pairs, RunConfig(max_length=32), [str(sentence_encoder)]).candidates
    assert str(one.problem) == "Its answers are not numbers."


def test_what_is_compared_is_checked_before(
    store: RunStore, toy_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_its_worker_reads_the_pairs_and_every_checkpoint_and_no_more(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    names = [BUNDLED_CHECKPOINT, "bert-base-uncased", "roberta-base"]
    job = jobs.probe_of(store, RunConfig(), names)
    job.folder.mkdir(parents=True)
    request = {"config": RunConfig().to_dict(), "checkpoints": names}
    allowed = workers.job_files("probe", store.root, job, request)
    assert allowed is not None
    files = " ".join((*allowed.reads, *allowed.writes))
    for part in (job.id, "google-bert--bert-base-uncased", "FacebookAI--roberta-base", "/data/"):
        assert part in files
    assert not {str(store.root), str(store.root.resolve())} & {*allowed.reads, *allowed.writes}


def test_a_terminal_gets_the_ranking(
    toy_checkpoint: Path, sentence_encoder: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")  # as the command sets it, because no Hub is needed
    folder = pairs_of("pairs", tmp_path)
    words = ["probe", "--runs", str(tmp_path / "runs"), "--train_file", str(folder / "train.csv")]
    words += ["--max_length", "32"]
    assert main([*words, "--checkpoints", str(toy_checkpoint), str(sentence_encoder)]) == 0
    output = capsys.readouterr().out
    for text in ("F1 of a linear model on ", "cosine ", "ms a pair", "TF-IDF", " first"):
        assert text in output
    assert main([*words, "--checkpoints", str(toy_checkpoint)]) == 2
    assert "from 2 to 8" in capsys.readouterr().err


@pytest.mark.long
def test_a_probe_is_a_job_whose_report_is_kept(
    store: RunStore, toy_checkpoint: Path, sentence_encoder: Path
) -> None:
    names = [str(toy_checkpoint), str(sentence_encoder)]
    config = RunConfig(max_length=32)
    job = jobs.start_probe(store, config, names)
    until(lambda: not job.state().running)
    state = job.state()
    assert (state.status, state.error) == ("finished", "")
    assert state.report is not None
    assert state.report.complete
    before = job.events_file.stat().st_mtime
    again = jobs.start_probe(store, config, names[::-1])
    assert again.folder == job.folder
    assert again.events_file.stat().st_mtime == before
    assert jobs.probe_of(store, config.changed(max_length=16), names).folder != job.folder


@pytest.mark.long
def test_a_checkpoint_that_cannot_be_read_does_not_end_the_probe(
    store: RunStore, toy_checkpoint: Path, sentence_encoder: Path
) -> None:
    names = [str(toy_checkpoint), "no/such-checkpoint", str(sentence_encoder)]
    job = jobs.start_probe(store, RunConfig(max_length=32), names)
    until(lambda: not job.state().running)
    state = job.state()
    assert (state.status, state.error) == ("finished", "")
    assert state.report is not None
    assert not state.report.complete
    assert [one.score is None for one in state.report.candidates] == [False, False, True]
    assert state.report.candidates[-1].checkpoint == "no/such-checkpoint"
