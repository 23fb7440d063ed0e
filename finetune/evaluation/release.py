"""Gathers what a release check compares: two models' answers to a golden file, or to the validation
pairs of the new one.

A golden file holds labelled rows that no model is trained on. Whoever begins a check keeps its hash
beside the uploads (`Uploads.keep_golden`), which refuse the same file for training; and here the
pairs of both runs are searched for its rows.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from finetune import uploads
from finetune.data import checkpoint_files, checkpoints, hub_access
from finetune.data.catalog import may_be_fetched
from finetune.errors import DataError, NoSuchRun, StoreError, some
from finetune.evaluation import gate, picking, report, saved_predictions, test_set
from finetune.evaluation.gate import Judgement, Limits, Rows
from finetune.inference import decision_rule, file_request
from finetune.inference.file_request import PredictionRequest
from finetune.messages import message as _
from finetune.metrics import catalog
from finetune.metrics.catalog import Metric
from finetune.runs import pair_index
from finetune.runs.run import Run
from finetune.runs.store import named_run
from finetune.tasks.base import Target, Targets
from finetune.tasks.registry import deciding_metric, measured, task_of

_UNNAMED = re.compile(r"LABEL_\d+")  # transformers' names of classes without any


class OtherClasses(DataError):
    """Two models answer with different classes."""


def named_model(name: str, root: Path) -> Run | str:
    """Find a run by its folder, id or name; otherwise return the name if it can be of a model on
    the Hub. Raises a StoreError for other names."""
    try:
        return named_run(Path(name), root)
    except NoSuchRun:
        if "/" in name and may_be_fetched(name):
            return name
        raise StoreError(
            "There is no run {name!r}.",
            "Name a run, its id or its folder, or a model on the Hub as namespace/name.",
            name=name,
        ) from None


def check_release(
    new: Run,
    old: Run | str,
    limits: Limits | None = None,
    golden: Path | None = None,
    request: PredictionRequest | None = None,
) -> Judgement:
    """Judge whether a run's model may replace an old one, a run's or a model on the Hub.

    Args:
        golden: a file of labelled rows, which both models answer. Without one the saved answers to
            the validation pairs are compared; a model on the Hub answers those of the new run.
        request: the person's name, columns and reading of the golden file, with which it comes.

    Raises:
        StoreError, ModelError: if a run has not ended, or a model cannot be read.
        DataError: if the golden file cannot be read, or has no column of labels.
    """
    for run in (new, old):
        if isinstance(run, Run) and run.is_alive():
            raise StoreError(
                "Run {name} is still training.", "Wait for its end, or stop it.", name=run.title()
            )
    prepared = new.state().prepared
    if prepared is None or not new.has_model():
        raise StoreError(
            "Run {name} has no model.", "Choose a run that was evaluated.", name=new.title()
        )
    task = task_of(prepared.target)
    deciding = catalog.find(deciding_metric(new.config(), task))
    if not deciding.of_answers:
        deciding = task.headline
    source, remarks = _("the validation rows"), []
    if request is not None:
        source = request.file
    if isinstance(old, str):
        remarks = [_("It is not known here what {model} was trained on.", model=old)]
    name = old if isinstance(old, str) else old.title()
    limits = limits or Limits()
    empty = Judgement("not judged", [], new.title(), name, source, limits, deciding.name, remarks)
    metrics = [each for each in measured(new.config(), prepared.target) if each.of_answers]
    try:
        if golden is None or request is None:
            return _on_validation(empty, new, old, metrics)
        return _on_file(empty, new, old, metrics, golden, request, prepared.target)
    except OtherClasses as error:
        return replace(empty, reasons=[*empty.reasons, error.fact])


def _on_validation(
    empty: Judgement, new: Run, old: Run | str, metrics: Sequence[Metric]
) -> Judgement:
    """Judge by the answers to the validation rows of the new run. They are saved with both runs; a
    model on the Hub is asked. What picking the best evaluation adds is taken off the gain."""
    own = report.kept_answers(new)
    table = own.table
    if isinstance(old, Run):
        other = report.kept_answers(old)
        if not report.same_pairs(own, other):
            reason = _(
                "The runs were validated on different rows. Let both answer one golden file."
            )
            return replace(empty, reasons=[reason])
        answers, picked = other.answers, other.picking
    else:
        table = test_set.validation_examples(new) if table is None else table
        answers = answer_rows(old, own.target, saved_predictions.sentences_of(table), new)
        picked = None
    sentences = None if table is None else saved_predictions.sentences_of(table)
    rows = Rows(own.target, own.truth, np.arange(1, len(own.truth) + 1), sentences)
    bias = picking.difference(own.picking, picked)
    return gate.judge(empty, rows, own.answers, answers, metrics, bias)


def _on_file(
    empty: Judgement, new: Run, old: Run | str, metrics: Sequence[Metric], path: Path,
    request: PredictionRequest, target: Target,
) -> Judgement:  # fmt: skip
    """Judge by the answers to a golden file. Models are not judged by rows that one of the runs was
    trained on, in either order of the sentences."""
    from finetune.inference import files

    request = golden_request(new, path, request)
    labelled = files.read_labelled(path, request, target)
    empty = replace(empty, golden=uploads.contents_hash(path, request.file))
    if not len(labelled.lines):
        reason = _(
            "No row of {file} has a label that {run} knows.", file=request.file, run=empty.new
        )
        return replace(empty, reasons=[reason])
    pairs = [*zip(*labelled.sentences, strict=True)]
    first = sorted({pair: row for row, pair in reversed([*enumerate(pairs)])}.values())
    sentences = [[texts[row] for row in first] for texts in labelled.sentences]
    rows = Rows(target, labelled.truth[first], labelled.lines[first], sentences)
    counts = labelled.unlabelled, labelled.incomplete, len(pairs) - len(first)
    left_out = [
        _("Rows without a known label, which are left out: {n:,}.", n=counts[0]),
        _("Rows without a sentence, which are left out: {n:,}.", n=counts[1]),
        _("Rows that repeat another, which count once: {n:,}.", n=counts[2]),
    ]
    reasons, remarks = [], [*empty.remarks, *compress(left_out, counts)]
    hashes = pair_index.pair_hashes(*sentences)
    shares = np.zeros(len(first), bool)  # rows with a sentence of a training pair
    for run in (run for run in (new, old) if isinstance(run, Run)):
        index, name = pair_index.read_pair_index(run), run.title()
        if index is None:
            remarks.append(_("{run} has no record of the rows that it was trained on.", run=name))
            continue
        if len(sentences) > 1:
            shares |= index.shares(*sentences)
        if trained := rows.numbers[index.among("train", hashes)].tolist():
            reason = _(
                "{run} was trained on {n:,} of these rows: line {rows}. Take them out of the file.",
                run=name, n=len(trained), rows=some(trained, 100),
            )  # fmt: skip
            reasons.append(reason)
        chosen = 0 if run.config().folds else int(index.among("validation", hashes).sum())
        if chosen:
            text = _("{run} chose its best model by {n:,} of these rows.", n=chosen, run=name)
            remarks.append(text)
    ours, theirs = (answer_rows(model, target, sentences, new) for model in (new, old))
    if shares.any():
        remarks.append(_on_the_others(rows, ours, theirs, shares, catalog.find(empty.metric)))
    empty = replace(empty, reasons=reasons, remarks=remarks, seen=bool(reasons))
    return gate.judge(empty, rows, ours, theirs, metrics)


def _on_the_others(
    rows: Rows, new: Targets, old: Targets, shares: NDArray[np.bool_], metric: Metric
) -> str:
    """Say how many rows share a sentence with training, and the scores on the others."""
    count, others, task = int(shares.sum()), ~shares, task_of(rows.target)
    if not others.any():
        return _("All of these rows share a sentence with training: the scores may be too good.")
    after, before = (
        task.scores(answers[others], rows.truth[others], rows.target, [metric])[metric.name]
        for answers in (new, old)
    )
    return _(
        "{n:,} of these rows share a sentence with training. On the {others:,} others {metric} is "
        "{new:.3f}, of the old model {old:.3f}.",
        n=count, others=int(others.sum()), metric=metric.title, new=after, old=before,
    )  # fmt: skip


def golden_request(new: Run, path: Path, request: PredictionRequest) -> PredictionRequest:
    """Fill in the columns of a golden file that a request leaves open, by those that a run was
    trained on. Raises a DataError if one is in doubt or there are no labels."""
    trained = new.state().columns
    request = file_request.check_columns(request, path, trained, new.config())
    if request.label:
        return request
    raise DataError(
        "{file} has no column of labels.",
        "Choose it, or call it as it was called in training: {label}.",
        file=request.file, label=trained.label,
    )  # fmt: skip


def answer_rows(
    model: Run | str, target: Target, sentences: Sequence[Sequence[str]], new: Run
) -> Targets:
    """Answer rows with a run's model or one on the Hub, which may spell its classes differently.
    What is fetched counts as the new run's owner's. Returns answers as of `target`."""
    from finetune.inference.scorer import Scorer

    if isinstance(model, Run):
        folder, length, name = model.best, checkpoints.length_of(model.folder), model.title()
    else:
        hub_access.count_checkpoint(new.folder.parent, new.owner, model)
        folder, name = checkpoint_files.fetch(model), model
        length = checkpoints.saved_length(folder)
    scorer = Scorer(folder, length)
    logits, own, rule = scorer.scores(*sentences), scorer.target, decision_rule.read_rule(folder)
    scorer.free()
    values = task_of(own).answers(logits, own, rule).values
    if own.names == target.names and own.task == target.task:
        return values
    if own.task == target.task and own.size == target.size:
        if all(map(_UNNAMED.fullmatch, own.names)):
            return values
        if task_of(target).parse(own.names, target)[1].all():
            return task_of(target).parse(task_of(own).spell(values, own), target)[0]
    raise OtherClasses(
        _(
            "{model} answers with other classes: {classes}.",
            model=name, classes=some(own.names) if own.names else task_of(own).title,
        )
    )  # fmt: skip
