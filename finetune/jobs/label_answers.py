"""A model answers all that a labelling can ask: labels of texts, or groups of those that mean the
same. The job's folder is the labelling's `answers`: a file for each brought one, as `result-1.csv`,
and `report.json`."""

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from finetune import disk
from finetune.errors import DataError, FinetuneError, some
from finetune.evaluation import saved_predictions
from finetune.jobs import workers
from finetune.jobs.background import BackgroundJob, Report
from finetune.jobs.label import LabelJob, count_answers
from finetune.labels import brought_files, candidates, groups, learning
from finetune.labels.labelling import CHOSEN, RANDOM, SAME, Item, Labelling
from finetune.messages import message as _
from finetune.runs.events import Phase
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.tasks.base import Target
from finetune.tasks.registry import task_of

_SHOWN = 20  # groups on the page, and pairs in doubt


class AnswersJob(BackgroundJob):
    """A model's answers to all that a labelling can ask; of pairs, the groups of texts."""

    name, folders, limit = "answers", "labels/*/answers", 1
    minutes = 120
    phase = Phase.START
    remedy = _("The log has the details.")

    @property
    def report(self) -> dict[str, Any]:
        """What `answer_all` returned; empty until it has ended."""
        return disk.read_json(self.folder / "report.json")

    def work(self, report: Report) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"
        own = self.request["run"]
        run = Run(self.folder.parent.parent.parent / own) if own else None
        count = len(LabelJob(self.folder.parent).request["files"])
        results = [self.folder / f"result-{place}.csv" for place in range(1, count + 1)]
        found = answer_all(self.folder.parent, run, results, report)
        disk.write_atomically(self.folder / "report.json", json.dumps(found, ensure_ascii=False))


def start_answers(store: RunStore, job: LabelJob, run: Run | None) -> AnswersJob:
    """Let a model answer all that a labelling can ask. DataError as in `check_model`."""
    check_model(job.labelling, run)
    answers = AnswersJob(job.folder / "answers")
    answered = len(job.labelling.settled())
    answers.begin(store, {"run": run.id if run else "", "answers": answered})
    return answers


def check_model(labelling: Labelling, run: Run | None) -> None:
    """DataError if a run's model does not answer with a labelling's labels; without a run, if there
    are too few answers for the small model."""
    if run is not None:
        _target(labelling, run)
    elif count_answers(labelling) and labelling.deck.features is None:
        raise DataError("The texts are still being compared.", "Wait for its end.")


def _target(labelling: Labelling, run: Run) -> Target:
    prepared = run.state().prepared
    known = prepared.target.names if prepared else ()
    lacking = [name for name in labelling.used if name not in known]
    if prepared is None or lacking or not run.has_model():
        raise DataError(
            "The model of {run} does not know {names}.",
            "Train on these answers first, or choose a model that was.",
            run=run.title(), names=some(lacking) or _("anything yet"),
        )  # fmt: skip
    return prepared.target


def answer_all(
    folder: Path,
    run: Run | None,
    results: Sequence[Path],
    report: Report = lambda phase, detail, done, total: None,
) -> dict[str, Any]:
    """Answer all items of a labelling with a model; group the texts of pairs.

    A person's answers are kept as they are. What a run's model is least sure of is asked next.

    Args:
        folder: the labelling's.
        run: trained on its answers; None for the small model behind the questions.
        results: where to write the columns of each brought file and `group`, or the `label` of
            texts; by the ending as `.csv`, `.tsv`, `.jsonl`, `.json` or `.parquet`.

    Returns:
        `run`, its id or "", and `answers`, their number; for pairs `groups`, `grouped` (rows in a
            group of two or more), `precision` and `recall` as [value, low, high] or None,
            `measured` (random pairs behind them), `contradicted` (pairs called different that other
            answers join), `doubtful` (the pairs nearest to 50%) and `largest` (texts of the
            groups); for texts `labelled` (rows). Of both `columns`, the new one of each file, and
            `unread`, why rows could not be read.

    Raises:
        DataError: as in `check_model`.
    """
    labelling = Labelling(folder)
    check_model(labelling, run)
    told = {"run": run.id if run else "", "answers": len(labelling.settled())}
    every = np.load(folder / "candidates.npy") if labelling.pairs else labelling.deck.items
    if run is None:
        (folder / "scores.npy").unlink(missing_ok=True)  # the small model asks again
        probabilities = labelling.learner().probabilities(_features(labelling))
    else:
        probabilities = _answers_of(labelling, run, every, report)
        row_of = {tuple(item): row for row, item in enumerate(every.tolist())}
        with disk.replacing(folder / "scores.npy") as new, new.open("wb") as file:
            np.save(file, probabilities[[row_of[item] for item in labelling.deck.place_of]])
    if labelling.pairs:
        return told | _group(labelling, run, every, probabilities[:, 0], results)
    given, several = labelling.settled(), labelling.several
    found = learning.answers(probabilities, labelling.names, several)
    labels = [list(given.get((text,), own)) for text, own in enumerate(found)]
    kind = pa.list_(pa.string()) if several else pa.string()
    column = "label", kind, labels if several else [own for (own,) in labels]
    of_rows, written = _write(labelling, results, *column)
    return told | {"labelled": len(of_rows), **written}


def _group(
    labelling: Labelling, run: Run | None, pairs: candidates.Items, same: Any,
    results: Sequence[Path],
) -> dict[str, Any]:  # fmt: skip
    texts = labelling.texts
    known = dict.fromkeys(candidates.twins(texts), True)
    known |= {item: own[0] == SAME for item, own in labelling.settled().items()}
    figures = _measure(labelling, run, pairs, same, dict(known))
    of_text = groups.group(len(texts), pairs, same, known)
    sizes, numbers = np.bincount(of_text), (of_text + 1).tolist()
    of_rows, written = _write(labelling, results, "group", pa.int64(), numbers)
    order = np.argsort(abs(same - 0.5), kind="stable")
    doubt = [row for row in order[: _SHOWN + len(known)] if tuple(pairs[row]) not in known]
    largest = [own for own in np.argsort(-sizes, kind="stable")[:_SHOWN] if sizes[own] > 1]
    joined = [item for item, own in known.items() if not own and len({*of_text[[*item]]}) == 1]
    return {
        "groups": int((sizes > 1).sum()),
        "grouped": sum(int(sizes[own - 1] > 1) for own in of_rows),
        **written,
        **figures,
        "contradicted": [texts[[*item]].tolist() for item in joined],
        "doubtful": [(float(same[row]), texts[pairs[row]].tolist()) for row in doubt[:_SHOWN]],
        "largest": [(int(own) + 1, texts[of_text == own][:_SHOWN].tolist()) for own in largest],
    }  # fmt: skip


def _write(
    labelling: Labelling,
    results: Sequence[Path],
    column: str,
    kind: pa.DataType,
    of_text: list[Any],
) -> tuple[list[Any], dict[str, list[str]]]:
    """Write the brought files with a column. Returns its values of rows that have a text, and its
    names, `columns`, and `unread`, why rows could not be read."""
    found, written = list[Any](), {"columns": list[str](), "unread": list[str]()}
    brought = zip(LabelJob(labelling.folder).inputs(), results, strict=False)
    for place, ((path, name), out) in enumerate(brought, 1):
        of_rows = np.load(labelling.folder / f"rows-{place}.npy")
        added, unread = brought_files.write_rows(path, name, of_rows, column, kind, of_text, out)
        written["columns"].append(added)
        written["unread"] += [f"{name}, {reason}" for reason in unread]
        found += [of_text[text] for text in of_rows.tolist() if text >= 0]
    return found, written


def _features(labelling: Labelling) -> Any:
    """Return what the small model is told of all items, of pairs also of those never asked."""
    is_pairs, folder = labelling.pairs, labelling.folder
    return np.load(folder / "features.npy") if is_pairs else labelling.deck.features


def _answers_of(labelling: Labelling, run: Run, items: Any, report: Report) -> Any:
    """Return a run's probabilities of a labelling's labels, shape (items, labels)."""
    from finetune.inference.scorer import Scorer

    target, texts, blocks = _target(labelling, run), labelling.texts, []
    known, names = list(target.names), labelling.names
    places = [known.index(name) if name in known else -1 for name in names]
    rows = ((texts[own[0]], texts[own[1]] if labelling.pairs else None) for own in items)
    for block in Scorer.of_run(run).stream(rows):
        blocks.append(task_of(target).answers(block.logits, target).probabilities)
        report(Phase.PREDICT, "", sum(map(len, blocks)), len(items))
    # At the end 0, for a label that nothing has yet.
    return np.pad(np.concatenate(blocks), ((0, 0), (0, 1)))[:, places]


def _measure(
    labelling: Labelling, run: Run | None, pairs: candidates.Items, same: Any,
    known: dict[Item, bool],
) -> dict[str, Any]:  # fmt: skip
    """Measure groups by random pairs that have no part in them: neither their answers, nor a model
    that learned them. It is the small model of other answers, a fold's, or the run's own if they
    were its validation split."""
    random = {item: known.pop(item) for item in labelling.settled(RANDOM) if item in known}
    if run is None:
        if not known:  # nothing else to learn from
            return {"measured": 0, "precision": None, "recall": None}
        found = labelling.learner(CHOSEN).probabilities(_features(labelling))[:, 0]
        of_text = groups.group(len(labelling.texts), pairs, found, known)
        return {"measured": len(random), **groups.measure(of_text, random)}
    item_of = {tuple(labelling.texts[[*item]]): item for item in random}
    unseen: dict[Item, float] = {}
    with contextlib.suppress(FinetuneError):
        target, table = _target(labelling, run), saved_predictions.kept_examples(run)
        logits = saved_predictions.read_logits(run, run.best_step() or 0, target).logits
        given = task_of(target).answers(logits, target)
        found = given.probabilities[:, list(target.names).index(SAME)].tolist()
        texts = zip(*saved_predictions.sentences_of(table), strict=True)
        by_texts = dict(zip(texts, found, strict=True))
        unseen = {item_of[own]: by_texts[own] for own in item_of.keys() & by_texts.keys()}
    honest = [unseen.get(tuple(pair), own) for pair, own in zip(pairs.tolist(), same, strict=True)]
    of_text = groups.group(len(labelling.texts), pairs, np.array(honest), known)
    figures = groups.measure(of_text, {item: random[item] for item in unseen})
    return {"measured": len(unseen), **figures}


def delete_labelling(job: LabelJob) -> None:
    """Remove a labelling with its answers, ending its jobs first."""
    for own in (AnswersJob(job.folder / "answers"), job):
        workers.kill_worker(own)
    disk.remove_folder(job.folder)


def as_text(told: dict[str, Any]) -> str:
    """Return what `answer_all` returned in plain lines."""
    if "groups" not in told:
        return f"{told['labelled']:,} rows with a label"
    lines = [f"{told['groups']:,} groups, with {told['grouped']:,} rows"]
    if told["contradicted"]:
        count = len(told["contradicted"])
        lines.append(f"pairs called different that other answers join: {count}")
    for name in ("precision", "recall"):
        if told[name]:
            value, low, high = told[name]
            by = f"{told['measured']} random pairs"
            lines.append(f"{name} {value:.3f} ({low:.3f} to {high:.3f}), by {by}")
    return "\n  ".join(lines)


def notes(told: dict[str, Any], _given: object) -> list[str]:
    """Return which rows could not be read, and which column has another name."""
    unread = [f"not read, its cells are empty: {reason}" for reason in told["unread"]]
    others = [name for name in told["columns"] if name not in ("group", "label")]
    return [*(f"the new column is {name!r}: the other one was there" for name in others), *unread]
