"""A small model learns from a larger one's answers too, for each task, and only from one's own."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from finetune.config import RunConfig, preset
from finetune.data import catalog, splits
from finetune.engines.hub_jobs import HubJobs
from finetune.errors import ConfigError, JobError, ModelError
from finetune.jobs import check, teachers, worker_files
from finetune.jobs.train import carry_out_run
from finetune.owners import Visitor
from finetune.runs import events, pair_index
from finetune.runs.events import Phase
from finetune.runs.store import RunStore
from finetune.tasks.base import MULTI_LABEL, REGRESSION, SINGLE_LABEL, Target
from finetune.tasks.registry import find_task
from finetune.training import dataloaders
from finetune.training.token_batches import TEACHER
from tests.support import toys
from tests.support.hub import LoopbackHub
from tests.support.training import fit, losses, prepared, work_in_this_process

LOGITS = torch.tensor([[0.3, -1.2], [2.0, 0.5], [-0.7, 0.1]])
TEACHERS = torch.tensor([[1.3, -0.2], [-1.0, 0.5], [0.4, 0.4]])


def test_the_distance_to_a_teacher_is_the_published_one() -> None:
    """Hinton's for classes, written out; zero, or the teacher's own entropy, if they agree."""
    soft = find_task(SINGLE_LABEL).soft_loss(LOGITS, TEACHERS)
    own, aims = ((each / 2).softmax(dim=1) for each in (LOGITS, TEACHERS))
    assert soft.item() == pytest.approx(4 * (aims * (aims / own).log()).sum(dim=1).mean().item())
    assert find_task(SINGLE_LABEL).soft_loss(LOGITS, LOGITS + 3).item() == pytest.approx(
        0, abs=1e-6
    )
    labels = find_task(MULTI_LABEL).soft_loss(LOGITS, TEACHERS)
    expected = functional.binary_cross_entropy(LOGITS.sigmoid(), TEACHERS.sigmoid())
    assert labels.item() == pytest.approx(expected.item(), rel=1e-5)
    score = find_task(REGRESSION).soft_loss(LOGITS[:, :1], TEACHERS[:, :1])
    assert score.item() == pytest.approx(((LOGITS - TEACHERS)[:, 0] ** 2).mean().item())


def test_each_row_of_a_batch_has_its_own_teachers_logits(
    toy_config: RunConfig, toy_pairs: splits.Pairs
) -> None:
    """Also where the order of a pair is drawn: the other order has other logits."""

    def teach(texts: Any) -> Any:
        return np.array([[len(text), index] for index, text in enumerate(texts["sentence1"])], "f4")

    config = toy_config.changed(
        sentence_order="random", per_device_train_batch_size=8, group_by_length=True
    )
    tokenizer, _, _ = prepared(config, toy_pairs)
    loaders = dataloaders.build_loaders(toy_pairs, tokenizer, config, teach=teach)
    rows: Any = loaders.train.dataset
    for batch in loaders.train:
        for row, ids in zip(batch[TEACHER], batch["input_ids"], strict=True):
            known = rows.token_ids(int(row[1]))
            assert ids[: len(known)].tolist() == known
    assert TEACHER not in next(iter(loaders.validation))


def test_half_of_the_loss_is_the_teachers(
    toy_config: RunConfig, toy_pairs: splits.Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first loss, of a model without dropout, beside the one without a teacher."""
    config = toy_config.changed(dropout=0, max_steps=1, sentence_order="given")
    plain, _ = fit(config, toy_pairs)
    build = dataloaders.build_loaders
    logits = np.zeros((64, 2), np.float32)

    def with_teacher(*values: Any) -> dataloaders.Loaders:
        pairs, tokenizer, config, device = values
        return build(pairs, tokenizer, config, device, lambda texts: logits)

    monkeypatch.setattr(dataloaders, "build_loaders", with_teacher)
    taught, _ = fit(config, toy_pairs)
    _, classifier, loaders = prepared(config, toy_pairs)
    batch = next(iter(loaders.train))
    with torch.no_grad():
        own = classifier(**{k: v for k, v in batch.items() if k not in (TEACHER, "labels")}).logits
    soft = find_task(SINGLE_LABEL).soft_loss(own, batch[TEACHER]).item()
    assert losses(taught)[0] == pytest.approx((losses(plain)[0] + soft) / 2, rel=1e-4)


def test_a_run_learns_from_the_mean_of_its_teachers(
    store: RunStore, toy_checkpoint: Path, toy_pairs: splits.Pairs
) -> None:
    """Classes may stand in another order in a teacher."""
    _, second = (toys.finished_run(store, toy_checkpoint, name) for name in ("one", "two"))
    config = json.loads((second.best / "config.json").read_text())
    swapped = {"0": config["id2label"]["1"], "1": config["id2label"]["0"]}
    config |= {"id2label": swapped, "label2id": {name: int(at) for at, name in swapped.items()}}
    (second.best / "config.json").write_text(json.dumps(config))
    run = store.create(RunConfig(name="small"))
    texts = toy_pairs.splits["validation"]

    def of(teacher: str) -> Any:
        config = RunConfig(teacher=teacher, max_length=32)
        return teachers.teacher_logits(run, config, texts, toy_pairs.target)

    one = of("one")
    assert one.shape == (24, 2)
    assert of(second.id) == pytest.approx(one[:, ::-1])
    assert of("one two") == pytest.approx((one + one[:, ::-1]) / 2)
    other = dataclasses.replace(toy_pairs.target, names=("no", "yes"))
    with pytest.raises(ModelError, match="not with no, yes"):
        teachers.teacher_logits(run, RunConfig(teacher="one"), texts, other)
    score = Target((), task=REGRESSION)
    with pytest.raises(ModelError, match="not with a score"):
        teachers.teacher_logits(run, RunConfig(teacher="one"), texts, score)
    with pytest.raises(ModelError, match="The teacher three is gone"):
        of("three")


def test_a_teacher_of_scores_has_the_same_scale(
    store: RunStore, toy_checkpoint: Path, toy_pairs: splits.Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    toys.finished_run(store, toy_checkpoint, "notes")
    run = store.create(RunConfig(name="small"))
    asked = RunConfig(teacher="notes", max_length=32)

    def ask(low: float, high: float) -> Any:
        known = Target((), task=REGRESSION, low=low, high=high)
        scorer = SimpleNamespace(
            target=known, scores=lambda *columns: np.ones((24, 1)), free=lambda: None
        )
        monkeypatch.setattr("finetune.inference.scorer.Scorer", lambda *values: scorer)
        target = Target((), task=REGRESSION, low=0.0, high=5.0)
        return teachers.teacher_logits(run, asked, toy_pairs.splits["validation"], target)

    assert ask(0.5, 4.8).shape == (24, 1)
    with pytest.raises(ModelError, match="scores from 0 to 100, these pairs have scores from 0 to"):
        ask(0, 100)
    with pytest.raises(ModelError, match="from 0 to 1"):
        ask(0, 1)
    with pytest.raises(ModelError, match="from 0 to 0"):  # it does not say
        ask(0, 0)


def test_a_teacher_of_the_hub_reads_no_more_than_it_can(
    hub: LoopbackHub, store: RunStore, toy_checkpoint: Path, toy_pairs: splits.Pairs,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    hub.add_repo("ada/teacher", files=toy_checkpoint)
    toys.finished_run(store, toy_checkpoint, "ada/named")
    run, lengths = store.create(RunConfig(name="small")), []

    def scorer(folder: Path, length: int) -> Any:
        lengths.append(length)
        logits = np.zeros((24, 2))
        return SimpleNamespace(
            target=toy_pairs.target, scores=lambda *columns: logits, free=lambda: None
        )

    monkeypatch.setattr("finetune.inference.scorer.Scorer", scorer)
    config = RunConfig(teacher="ada/teacher", max_length=512)
    teachers.teacher_logits(run, config, toy_pairs.splits["validation"], toy_pairs.target)
    assert lengths == [64]
    both = RunConfig(teacher="ada/teacher ada/named")  # a run may have such a name, too
    assert teachers.of_the_hub(run, both) == ["ada/teacher"]


def test_a_teacher_stays_what_was_checked(
    store: RunStore, toy_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = toys.finished_run(store, toy_checkpoint, "mine")
    monkeypatch.chdir(store.root.parent)
    path = f"{store.root.name}/{run.id}"
    there = catalog.with_absolute_paths(RunConfig(teacher=f"{path} mine"))
    assert there.teachers == [str(run.folder.resolve()), "mine"]
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    browser = store.for_visitor(Visitor(names=("browser:ada",)))
    hers = toys.finished_run(browser, toy_checkpoint, "hers")
    both = store.for_visitor(Visitor(names=("user:ada", "browser:ada")))
    config = teachers.with_ids(both, RunConfig(teacher="hers ada/big"))
    assert config.teachers == [hers.id, "ada/big"]
    assert teachers.find_run(hers.id, RunStore(store.root), "user:ada") is not None
    assert teachers.find_run("hers", RunStore(store.root), "user:ada") is None


def test_a_teacher_has_not_learned_what_is_held_out(store: RunStore, toy_checkpoint: Path) -> None:
    teacher = toys.finished_run(store, toy_checkpoint, "big")
    run, config = store.create(RunConfig(name="small")), RunConfig(teacher="big")
    own = {"train": np.array([1, 2, 3]), "validation": np.array([3, 8, 9])}
    teachers.check_unseen(run, config, own)  # nothing is known of it
    pair_index.write_pair_index(teacher, {"train": np.array([1, 3]), "validation": np.array([8])})
    teachers.check_unseen(run, config, own)  # 3 is in this run's own training pairs, too
    pair_index.write_pair_index(teacher, {"train": np.array([9, 8]), "validation": np.array([1])})
    with pytest.raises(ConfigError, match="big, which has learned rows that folds hold out"):
        check.check_source_access(store, config.changed(folds=5))
    check.check_source_access(store, config.changed(folds=5, dataset="ada/other"))
    with pytest.raises(ModelError, match="big was trained on 2 of these validation pairs"):
        teachers.check_unseen(run, config, own)


def test_a_teacher_must_be_ones_own_and_have_a_model(
    store: RunStore, toy_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    ada, bob = (store.for_visitor(Visitor(names=(f"browser:{name}",))) for name in ("ada", "bob"))
    run = toys.finished_run(ada, toy_checkpoint, "mine")
    empty = ada.create(RunConfig(name="empty"))
    check.check_source_access(ada, RunConfig(teacher="mine"))
    for visitor, teacher, said in (
        (ada, "empty", "has no model yet"),
        (bob, "mine", "none of your runs"),
        (bob, run.id, "none of your runs"),
        (ada, str(run.folder), "none of your runs"),
        (ada, "../mine", "none of your runs"),
    ):
        with pytest.raises(ConfigError, match=said):
            check.check_source_access(visitor, RunConfig(teacher=teacher))
    with pytest.raises(ConfigError, match="quoted if they have spaces"):
        RunConfig(teacher="'mine")
    his = bob.create(RunConfig(teacher="mine"))  # as if it had not been checked
    assert teachers.find_run("mine", RunStore(store.root), his.owner) is None
    hers = ada.create(RunConfig(teacher="mine"))
    allowed = worker_files.of_run(hers)
    assert allowed is not None
    assert str(run.folder.resolve()) in allowed.reads
    assert str(empty.folder.resolve()) not in allowed.reads


def test_another_engine_has_no_teacher_and_a_preset_keeps_it() -> None:
    assert "teacher" not in preset("Recommended")
    with pytest.raises(JobError, match="teacher is big"):
        HubJobs.check_config(RunConfig(teacher="big"))


@pytest.mark.long
def test_a_whole_run_has_a_teacher(
    store: RunStore, toy_checkpoint: Path, toy_config: RunConfig, monkeypatch: pytest.MonkeyPatch,
    toy_pairs_folder: Path,
) -> None:  # fmt: skip
    big = toys.finished_run(store, toy_checkpoint, "big")
    config = json.loads((big.best / "config.json").read_text())
    names = {"id2label": {"0": "0", "1": "1"}, "label2id": {"0": 0, "1": 1}}
    (big.best / "config.json").write_text(json.dumps(config | names))
    work_in_this_process(monkeypatch)
    files = {path.stem: path for path in toy_pairs_folder.glob("*.csv")}
    dataset = store.uploads.add(files)
    run = store.create(toy_config.changed(dataset=dataset, teacher="big", num_train_epochs=1))
    assert carry_out_run(run, print) == 0
    state = run.state()
    assert state.status == "finished"
    assert state.first_batch is not None
    assert state.first_batch.shapes[TEACHER] == [8, 2]
    phases = [event.phase for event in run.tail()[0] if isinstance(event, events.PhaseStarted)]
    assert phases.index(Phase.TEACH) == phases.index(Phase.TOKENIZE) + 1
