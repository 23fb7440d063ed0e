"""Labelling jobs: prepare what to ask about, and let a trained model answer all of it.

A folder `labels/<id>` has the brought files, `input-1.csv` and perhaps `input-2.csv`, the text of
each of their rows in `rows-1.npy`, and what `labels.labelling` reads. Its job `answers` has the
groups of its texts in `result-1.csv` and `report.json`.
"""

import contextlib
import json
import os
import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from finetune import disk, text_hashes, uploads
from finetune.config import DATA_FIELDS, NO_COLUMN, RunConfig
from finetune.data import checkpoint_files, checkpoints, hub_access, table_formats
from finetune.environment import child_process, devices
from finetune.environment.confinement import Confinement
from finetune.errors import ConfigError, DataError, FinetuneError, JobError, some
from finetune.evaluation import baselines, saved_predictions
from finetune.hyperparameter import FOLDS
from finetune.jobs import background, check, workers
from finetune.jobs.background import BackgroundJob, Report
from finetune.labels import brought_files, candidates, groups
from finetune.labels.labelling import CHOSEN, RANDOM, SAME, Item, Labelling, write_deck
from finetune.messages import message as _
from finetune.runs.events import Phase
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.tasks.base import MULTI_LABEL, Target
from finetune.tasks.registry import task_of

FEWEST = 20  # texts of a file
MOST_ASKED = 50_000  # pairs among which questions are chosen
CROSS_VALIDATED = 500  # answers, from which on the random ones are a validation split
_TEXT_STARTS = 100  # texts that are far apart, before a model is unsure of others
_UNUSED = 3  # labellings without an answer that are kept
_SHOWN = 20  # groups on the page, and pairs in doubt


class LabelJob(BackgroundJob):
    """The preparation of one labelling; its folder is the labelling's."""

    name, folders, limit = "label", "labels/*", 1
    minutes = 120
    phase = Phase.READ_FILES
    remedy = _("Choose the file again; the log has the details.")
    missing = _("There is no such labelling."), _("Choose the file again.")

    @property
    def labelling(self) -> Labelling:
        return Labelling(self.folder)

    @property
    def title(self) -> str:
        """The name of the first file."""
        return str(self.request["files"][0])

    def inputs(self) -> list[tuple[Path, str]]:
        """Return the files with their names for the person."""
        numbered = enumerate(self.request["files"], 1)
        return [(next(self.folder.glob(f"input-{place}.*")), name) for place, name in numbered]

    def work(self, report: Report) -> None:
        texts, file_of = self._read_texts(report)
        is_pairs, count = self.request["pairs"], len(texts)
        if is_pairs:
            first = candidates.first_pairs(texts, file_of)
            write_deck(self.folder, first, np.arange(len(first)))
        else:
            items = np.arange(count, dtype=np.int32)[:, None]
            write_deck(self.folder, items, np.array([], int))
        vectors = self._encode(texts, report)
        if not is_pairs:
            spread = candidates.far_apart(vectors, _TEXT_STARTS)
            write_deck(self.folder, items, np.array(spread), vectors)
            return
        report(Phase.PROBE, "", 0, 0)
        answered = np.array([one.item for one in self.labelling.answers()], np.int32).reshape(-1, 2)
        found = [candidates.candidate_pairs(vectors, file_of), answered]
        pairs = np.unique(np.concatenate(found), axis=0)
        np.save(self.folder / "candidates.npy", pairs)
        asked = np.random.default_rng(1).permutation(pairs)[:MOST_ASKED]
        asked = np.unique(np.concatenate([asked, answered]), axis=0)
        features = candidates.pair_features(texts, vectors, asked)
        order = candidates.question_order(features[:, :4].sum(axis=1))
        write_deck(self.folder, asked, order, features)

    def _read_texts(self, report: Report) -> tuple[list[str], Any]:
        """Write each text once, and the text of each row. DataError if there are too few."""
        texts: dict[tuple[int, str], int] = {}
        shown: list[str] = []
        for place, (path, name) in enumerate(self.inputs()):
            table, column = table_formats.open_table(path, name), self.request["columns"][place]
            of_rows = []
            for record, _reason in table.every_row([column]):
                text = text_hashes.clean_sentence(record.get(column))
                key = (place if self.request["pairs"] else 0, text_hashes.normalize(text or ""))
                if text is not None and key not in texts:
                    texts[key] = len(shown)
                    shown.append(text)
                of_rows.append(-1 if text is None else texts[key])
            np.save(self.folder / f"rows-{place + 1}.npy", np.array(of_rows, np.int32))
        if len(shown) < FEWEST:
            raise DataError(
                "There are only {n} different texts.", "Bring {least} or more.",
                n=len(shown), least=FEWEST,
            )  # fmt: skip
        file_of = np.array([file for file, _text in texts], np.int8)
        with disk.replacing(self.folder / "texts.parquet") as new:
            pq.write_table(pa.table({"text": shown, "file": file_of}), new)
        return shown, file_of

    def _encode(self, texts: Sequence[str], report: Report) -> candidates.Vectors:
        checkpoint = self.request["checkpoint"]
        background.choose_offline("", checkpoint)
        report(Phase.DOWNLOAD, checkpoint, 0, 0)
        hub_access.count_checkpoint(self.folder.parent.parent, self.owner, checkpoint)
        with checkpoint_files.explaining(checkpoint):
            folder = checkpoint_files.fetch(checkpoint)
            encoder, tokenizer, first_token = baselines.load_encoder(folder)

        def on_progress(done: int) -> None:
            report(Phase.TOKENIZE, "", done, len(texts))

        vectors = baselines.encode(
            encoder, tokenizer, [texts], self.request["max_length"], devices.prefers_bf16(),
            first_token, on_progress,
        )  # fmt: skip
        return candidates.unit(vectors)


def start_labelling(
    store: RunStore,
    files: Sequence[Path],
    names: Sequence[str] = (),
    labels: Sequence[str] = (),
    columns: Sequence[str] = (),
    pairs: bool = False,
    several: bool = False,
    config: RunConfig | None = None,
) -> LabelJob:
    """Begin to label the texts of a file, or pairs of texts that may mean the same.

    Args:
        files: one; or two whose texts are matched with each other.
        names: of the files for the person; their own by default.
        labels: of texts, 2 or more; those of pairs are given.
        columns: with the texts, of each file; guessed if empty.
        pairs: True to ask whether two texts mean the same.
        several: True if a text may have any number of labels.
        config: gives the checkpoint whose vectors are compared, and its length.

    Raises:
        DataError: if a file has no such column, or cannot be read.
        ConfigError: if there are fewer than two labels, or the checkpoint cannot be used or reads
            less than `max_length`.
    """
    config = config or RunConfig()
    labels = list(dict.fromkeys(" ".join(label.split())[:100] for label in labels if label.strip()))
    if len(labels) < 2 and not pairs:
        raise ConfigError({"labels": _("needs two or more, not {n}", n=len(labels))})
    if len(files) > 1 + pairs:
        raise ConfigError({"other": _("is only used with pairs")})
    check.check_source_access(store, config.changed(dataset=RunConfig().dataset))
    checkpoints.check_length(config.checkpoint, config.max_length)
    names, found = list(names) or [path.name for path in files], []
    for path, name, column in zip(files, names, [*columns, "", ""], strict=False):
        given = child_process.call(
            "finetune.labels.brought_files:text_column", str(path), name, column,
            about=name, confinement=Confinement((str(path),)),
        )  # fmt: skip
        found.append(given)
    request = {
        "files": names, "columns": found, "names": [] if pairs else labels, "pairs": pairs,
        "several": several and not pairs, "checkpoint": config.checkpoint,
        "max_length": config.max_length,
    }  # fmt: skip
    job = LabelJob(store.root / "labels" / secrets.token_urlsafe(15))
    inputs = {
        f"input-{place}{uploads.file_suffix(name)}": path
        for place, (path, name) in enumerate(zip(files, names, strict=True), 1)
    }
    job.begin(store, request, inputs, admit=lambda: _make_room(store))
    return job


def _make_room(store: RunStore) -> None:
    """Remove the visitor's labellings without an answer, but for the newest ones. JobError if there
    are too many others."""
    jobs = LabelJob.newest(store)
    answered = [job for job in jobs if (job.folder / "answers.jsonl").exists()]
    unused = [job for job in jobs if job not in answered and not job.state().running]
    for job in unused[_UNUSED:]:
        delete_labelling(job)
    if len(answered) >= store.visitor.policy.limits.runs:
        raise JobError(
            "You have {n} labellings, as many as may be kept.",
            "Go on with one of them, or delete one.",
            n=len(answered),
        )


def delete_labelling(job: LabelJob) -> None:
    """Remove a labelling with its answers, ending its jobs first."""
    for own in (AnswersJob(job.folder / "answers"), job):
        workers.kill_worker(own)
    disk.remove_folder(job.folder)


def named_labelling(store: RunStore, name: str) -> LabelJob:
    """Return the labelling of an id, or the newest one of a file's name; the newest one of pairs
    if the name is empty. DataError if there is none."""
    jobs = LabelJob.newest(store)
    for job in jobs:
        if name in (job.id, job.title) or (job.request.get("pairs") and not name):
            return job
    raise DataError(
        "There is no labelling {name!r}; there are {names}.", "Start one first.",
        name=name, names=some([job.title for job in jobs]) or _("none"),
    )  # fmt: skip


def training_config(store: RunStore, job: LabelJob, config: RunConfig) -> RunConfig:
    """Return a configuration that trains on the answers, which become the visitor's own file.

    Fewer than 500 are cross-validated, so that each of them measures; of more, the random ones are
    the validation split. Items that people answered differently are left out.

    Raises:
        DataError: if there are fewer than 20 answers, or all are the same.
    """
    labelling, defaults = job.labelling, RunConfig()
    splits = {"train": labelling.settled(CHOSEN), "validation": labelling.settled(RANDOM)}
    given = [labels for answers in splits.values() for labels in answers.values()]
    if len(given) < FEWEST or len(set(given)) < 2:
        raise DataError(
            "There are {n} answers, of {kinds} kinds.",
            "Answer {least} questions or more, with two labels at least.",
            n=len(given), kinds=len(set(given)), least=FEWEST,
        )  # fmt: skip
    if few := len(given) < CROSS_VALIDATED:
        splits["train"] |= splits.pop("validation")
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for split, answers in splits.items():
            rows = [json.dumps(labelling.row(*one), ensure_ascii=False) for one in answers.items()]
            files[split] = Path(folder) / f"{split}.jsonl"
            files[split].write_text("\n".join(rows) + "\n", encoding="utf-8")
        name = f"{job.title.partition('.')[0]}-answers.jsonl"
        dataset = store.uploads.add(files, dict.fromkeys(files, name))
    columns = ("text1", "text2") if labelling.pairs else ("text", NO_COLUMN)
    chosen = {
        "dataset": dataset, "label_column": "label", "sentence1_column": columns[0],
        "sentence2_column": columns[1], "positive_label": SAME if labelling.pairs else "",
        "folds": FOLDS if few else 0, "task": MULTI_LABEL if labelling.several else "",
    }  # fmt: skip
    return config.changed(**{name: getattr(defaults, name) for name in DATA_FIELDS} | chosen)


class AnswersJob(BackgroundJob):
    """A trained model's answers to all that a labelling can ask; of pairs, the groups of texts."""

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
        run = Run(self.folder.parent.parent.parent / self.request["run"])
        count = len(LabelJob(self.folder.parent).request["files"])
        results = [self.folder / f"result-{place}.csv" for place in range(1, count + 1)]
        found = answer_all(self.folder.parent, run, results, report)
        disk.write_atomically(self.folder / "report.json", json.dumps(found, ensure_ascii=False))


def start_answers(store: RunStore, job: LabelJob, run: Run) -> AnswersJob:
    """Let a run's model answer all that a labelling can ask. DataError as in `check_model`."""
    check_model(job.labelling, run)
    answers = AnswersJob(job.folder / "answers")
    answers.begin(store, {"run": run.id})
    return answers


def check_model(labelling: Labelling, run: Run) -> Target:
    """Return what a run learns. DataError if its model does not answer with a labelling's
    labels."""
    prepared = run.state().prepared
    known = prepared.target.names if prepared else ()
    lacking = [name for name in labelling.names if name not in known]
    if prepared is None or lacking or not run.has_model():
        raise DataError(
            "The model of {run} does not know {names}.",
            "Train on these answers first, or choose a model that was.",
            run=run.title(), names=some(lacking) or _("anything yet"),
        )  # fmt: skip
    return prepared.target


def answer_all(
    folder: Path,
    run: Run,
    results: Sequence[Path],
    report: Report = lambda phase, detail, done, total: None,
) -> dict[str, Any]:
    """Answer all items of a labelling with a run's model; group the texts of pairs.

    Args:
        folder: the labelling's.
        results: where to write the columns of each brought file and `group`, by the ending as
            `.csv`, `.tsv`, `.jsonl`, `.json` or `.parquet`.

    Returns:
        for pairs `groups`, `grouped` (rows in a group of two or more), `precision` and `recall`
            as [value, low, high] or None, `measured` (random pairs behind them), `doubtful` (the
            pairs nearest to 50%) and `largest` (texts of the groups).

    Raises:
        DataError: as in `check_model`.
    """
    from finetune.inference.scorer import Scorer

    labelling = Labelling(folder)
    target, texts, items = check_model(labelling, run), labelling.texts, labelling.deck.items
    every = np.load(folder / "candidates.npy") if labelling.pairs else items
    places, blocks = [list(target.names).index(name) for name in labelling.names], []
    rows = ((texts[own[0]], texts[own[1]] if labelling.pairs else None) for own in every)
    for block in Scorer.of_run(run).stream(rows):
        given = task_of(target).answers(block.logits, target)
        blocks.append(given.probabilities[:, places])
        report(Phase.PREDICT, "", sum(map(len, blocks)), len(every))
    probabilities = np.concatenate(blocks)
    row_of = {tuple(item): row for row, item in enumerate(every.tolist())}
    with disk.replacing(folder / "scores.npy") as new, new.open("wb") as file:
        np.save(file, probabilities[[row_of[item] for item in labelling.deck.place_of]])
    if not labelling.pairs:
        return {"run": run.id}
    same = probabilities[:, 0]
    known = {item: own[0] == SAME for item, own in labelling.settled().items()}
    figures = _measure(labelling, run, every, same, dict(known))
    of_text = groups.group(len(texts), every, same, known)
    grouped, sizes = 0, np.bincount(of_text)
    for place, (path, name) in enumerate(LabelJob(folder).inputs(), 1):
        of_rows = np.load(folder / f"rows-{place}.npy")
        grouped += int((sizes[of_text[of_rows[of_rows >= 0]]] > 1).sum())
        brought_files.write_groups(path, name, of_rows, of_text, results[place - 1])
    order = np.argsort(abs(same - 0.5), kind="stable")
    doubt = [row for row in order[: _SHOWN + len(known)] if tuple(every[row]) not in known]
    largest = [own for own in np.argsort(-sizes, kind="stable")[:_SHOWN] if sizes[own] > 1]
    return {
        "run": run.id, "groups": int((sizes > 1).sum()), "grouped": grouped, **figures,
        "doubtful": [(float(same[row]), texts[every[row]].tolist()) for row in doubt[:_SHOWN]],
        "largest": [(int(own) + 1, texts[of_text == own][:_SHOWN].tolist()) for own in largest],
    }  # fmt: skip


def _measure(
    labelling: Labelling, run: Run, pairs: candidates.Items, same: Any, known: dict[Item, bool]
) -> dict[str, Any]:
    """Measure groups by random pairs that have no part in them: neither their answers, nor a model
    that learned them. It is a fold's, or the run's own if they were its validation split."""
    random = {item: known.pop(item) for item in labelling.settled(RANDOM) if item in known}
    item_of = {tuple(labelling.texts[[*item]]): item for item in random}
    unseen: dict[Item, float] = {}
    with contextlib.suppress(FinetuneError):
        target, table = check_model(labelling, run), saved_predictions.kept_examples(run)
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
