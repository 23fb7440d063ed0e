"""Labelling jobs: prepare what to ask about, and let a trained model answer all of it.

A folder `labels/<id>` has the brought files, `input-1.csv` and perhaps `input-2.csv`, the text of
each of their rows in `rows-1.npy`, and what `labels.labelling` reads. Its job `answers` has the
groups of its texts in `result-1.csv` and `report.json`.
"""

import contextlib
import json
import os
import secrets
import shutil
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
from finetune.jobs import background, check
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
            write_deck(self.folder, 1, first, np.arange(len(first)), False)
        else:
            items = np.arange(count, dtype=np.int32)[:, None]
            write_deck(self.folder, 1, items, np.array([], int), True)
        vectors = self._encode(texts, report)
        if not is_pairs:
            spread = candidates.far_apart(vectors, _TEXT_STARTS)
            write_deck(self.folder, 2, items, np.array(spread), True, vectors)
            return
        report(Phase.PROBE, "", 0, 0)
        pairs = candidates.candidate_pairs(vectors, file_of)
        np.save(self.folder / "candidates.npy", pairs)
        random = np.random.default_rng(1)
        asked = np.sort(random.permutation(len(pairs))[:MOST_ASKED])
        features = candidates.pair_features(texts, vectors, pairs[asked])
        order = candidates.question_order(features[:, :4].sum(axis=1))
        write_deck(self.folder, 2, pairs[asked], order, True, features)

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
        given, _usable = child_process.call(
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
    kept: list[LabelJob] = []
    for job in LabelJob.newest(store):
        unused = not (job.folder / "answers.jsonl").exists() and not job.state().running
        if unused and len(kept) >= _UNUSED:
            shutil.rmtree(job.folder, ignore_errors=True)
        else:
            kept.append(job)
    if len(kept) >= store.visitor.policy.limits.runs:
        raise JobError(
            "You have {n} labellings, as many as may be kept.", "Go on with one of them.",
            n=len(kept),
        )  # fmt: skip


def named_labelling(store: RunStore, name: str) -> LabelJob:
    """Return the labelling of an id, or the newest one of a file's name. DataError if there is
    none."""
    jobs = LabelJob.newest(store)
    for job in jobs:
        if name in (job.id, job.title):
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
    columns = ["sentence1", "sentence2"] if labelling.pairs else ["text"]
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for split, answers in splits.items():
            files[split] = Path(folder) / f"{split}.jsonl"
            with files[split].open("w", encoding="utf-8") as file:
                for item, labels in answers.items():
                    cells: dict[str, Any] = dict(
                        zip(columns, map(labelling.text, item), strict=True)
                    )
                    cells["label"] = list(labels) if labelling.several else labels[0]
                    file.write(json.dumps(cells, ensure_ascii=False) + "\n")
        name = f"{job.title.partition('.')[0]}-answers.jsonl"
        dataset = store.uploads.add(files, dict.fromkeys(files, name))
    chosen = {
        "dataset": dataset, "label_column": "label", "sentence1_column": columns[0],
        "sentence2_column": columns[1] if labelling.pairs else NO_COLUMN,
        "positive_label": SAME if labelling.pairs else "", "folds": FOLDS if few else 0,
        "task": MULTI_LABEL if labelling.several else "",
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


def check_model(labelling: Labelling, run: Run) -> None:
    """Raise a DataError if a run's model does not answer with a labelling's labels."""
    target = _target_of(run)
    lacking = [name for name in labelling.names if name not in target.names]
    if lacking or not run.has_model():
        raise DataError(
            "The model of {run} does not know {names}.",
            "Train on these answers first, or choose a model that was.",
            run=run.title(), names=some(lacking) or _("anything yet"),
        )  # fmt: skip


def _target_of(run: Run) -> Target:
    """Return what a run learns. DataError until its pairs are prepared."""
    prepared = run.state().prepared
    if prepared is None:
        raise DataError("This run has not begun.", "Wait until it has.")
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
    check_model(labelling, run)
    scorer = Scorer.of_run(run)
    target, texts = scorer.target, np.array(pq.read_table(folder / "texts.parquet")["text"], object)
    items = labelling.deck.items
    every = np.load(folder / "candidates.npy") if labelling.pairs else items
    places = [list(target.names).index(name) for name in labelling.names]
    task, blocks, done = task_of(target), [], 0
    rows = ((texts[own[0]], texts[own[1]] if len(own) > 1 else None) for own in every)
    for block in scorer.stream(rows):
        given = task.answers(block.logits, target)
        blocks.append(given.probabilities[:, places])
        done += len(block.logits)
        report(Phase.PREDICT, "", done, len(every))
    probabilities = np.concatenate(blocks)
    of_items = probabilities
    if labelling.pairs:
        index = {tuple(pair): place for place, pair in enumerate(every.tolist())}
        of_items = probabilities[[index[tuple(item)] for item in items.tolist()]]
    with disk.replacing(folder / "scores.npy") as new, new.open("wb") as file:
        np.save(file, of_items)
    if not labelling.pairs:
        return {"run": run.id}
    of_text, figures, doubt = _grouped(labelling, run, len(texts), every, probabilities[:, 0])
    grouped, sizes = 0, np.bincount(of_text)
    for place, (path, name) in enumerate(LabelJob(folder).inputs(), 1):
        of_rows = np.load(folder / f"rows-{place}.npy")
        grouped += int((sizes[of_text[of_rows[of_rows >= 0]]] > 1).sum())
        brought_files.write_groups(path, name, of_rows, of_text, results[place - 1])
    doubtful = [(float(probabilities[row, 0]), texts[every[row]].tolist()) for row in doubt]
    largest = [own for own in np.argsort(-sizes, kind="stable")[:_SHOWN] if sizes[own] > 1]
    members = [(int(own) + 1, texts[of_text == own][:_SHOWN].tolist()) for own in largest]
    facts = {"run": run.id, "groups": int((sizes > 1).sum()), "grouped": grouped}
    return facts | figures | {"doubtful": doubtful, "largest": members}


def _grouped(
    labelling: Labelling, run: Run, texts: int, pairs: candidates.Items, same: Any
) -> tuple[Any, dict[str, Any], list[int]]:
    """Group texts. Returns the group of each; figures by random pairs whose answers had no part in
    it, and that the model had not learned; and the rows of the pairs most in doubt."""
    answered = {item: own[0] == SAME for item, own in labelling.settled().items()}
    random = {item: answered.pop(item) for item in labelling.settled(RANDOM) if item in answered}
    index = {tuple(pair): place for place, pair in enumerate(pairs.tolist())}
    unseen, honest = _unseen(labelling, run, random), np.array(same, float)
    for item, probability in unseen.items():
        honest[index[item]] = probability
    without = groups.group(texts, pairs, honest, answered)
    figures = groups.measure(without, {item: random[item] for item in unseen})
    of_text = groups.group(texts, pairs, same, answered | random)
    asked = [index[item] for item in answered | random if item in index]
    order = np.argsort(abs(same - 0.5), kind="stable")
    doubt = order[~np.isin(order, asked)][:_SHOWN].tolist()
    return of_text, {"measured": len(unseen), **figures}, doubt


def _unseen(labelling: Labelling, run: Run, random: dict[Item, bool]) -> dict[Item, float]:
    """Return the probabilities of random pairs by a model that had not learned them: a fold's, or
    the run's own where they were its validation split."""
    by_texts = {tuple(labelling.text(text) for text in item): item for item in random}
    found: dict[Item, float] = {}
    with contextlib.suppress(FinetuneError):
        target, table = _target_of(run), saved_predictions.kept_examples(run)
        logits = saved_predictions.read_logits(run, run.best_step() or 0, target).logits
        given = task_of(target).answers(logits, target)
        place = list(target.names).index(SAME)
        sentences = zip(*saved_predictions.sentences_of(table), strict=True)
        for row, texts in enumerate(sentences):
            if (item := by_texts.get(tuple(texts))) is not None:
                found[item] = float(given.probabilities[row, place])
    return found
