"""Labelling jobs: prepare what to ask about, and make the answers a file to train on.

A folder `labels/<id>` has the brought files, `input-1.csv` and perhaps `input-2.csv`, the text of
each of their rows in `rows-1.npy`, all candidates in `candidates.npy` and `features.npy`, and what
`labels.labelling` reads.
"""

import json
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
from finetune.errors import ConfigError, DataError, JobError, some
from finetune.evaluation import baselines
from finetune.hyperparameter import FOLDS
from finetune.jobs import background, check
from finetune.jobs.background import BackgroundJob, Report
from finetune.labels import candidates
from finetune.labels.labelling import CHOSEN, RANDOM, SAME, Labelling, write_deck
from finetune.messages import message as _
from finetune.runs.events import Phase
from finetune.runs.store import RunStore
from finetune.tasks.base import MULTI_LABEL

FEWEST = 20  # texts of a file
MOST_ASKED = 50_000  # pairs among which questions are chosen
CROSS_VALIDATED = 500  # answers, from which on the random ones are a validation split
_TEXT_STARTS = 100  # texts that are far apart, before a model is unsure of others
_UNUSED = 3  # labellings without an answer that are kept


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
        items = np.arange(count, dtype=np.int32)[:, None]
        same = np.array(candidates.twins(texts), int).reshape(-1, 2) @ [count, 1]

        def unlike(pairs: candidates.Items) -> candidates.Items:
            return pairs[~np.isin(pairs @ [count, 1], same)]

        first = unlike(candidates.first_pairs(texts, file_of)) if is_pairs else items
        write_deck(self.folder, first, np.arange(len(first) if is_pairs else 0))
        vectors = self._encode(texts, report)
        if not is_pairs:
            spread = candidates.far_apart(vectors, _TEXT_STARTS)
            write_deck(self.folder, items, np.array(spread), vectors)
            return
        report(Phase.PROBE, "", 0, 0)
        answered = np.array([one.item for one in self.labelling.answers()], np.int32).reshape(-1, 2)
        found = [unlike(candidates.candidate_pairs(vectors, file_of)), answered]
        pairs = np.unique(np.concatenate(found), axis=0)
        features = candidates.pair_features(texts, vectors, pairs)
        np.save(self.folder / "candidates.npy", pairs)
        np.save(self.folder / "features.npy", features)
        asked = np.random.default_rng(1).permutation(len(pairs))[:MOST_ASKED]
        old = np.isin(pairs @ [count, 1], answered @ [count, 1])
        asked = np.union1d(asked, np.flatnonzero(old))
        order = candidates.question_order(features[asked, :4].sum(axis=1))
        write_deck(self.folder, pairs[asked], order, features[asked])

    def _read_texts(self, report: Report) -> tuple[list[str], Any]:
        """Write each text once, and the text of each row. DataError if there are too few."""
        texts: dict[tuple[int, str], int] = {}
        shown: list[str] = []
        for place, (path, name) in enumerate(self.inputs()):
            table, column = table_formats.open_table(path, name), self.request["columns"][place]
            of_rows = []
            for record, _reason in table.every_row([column]):
                text = text_hashes.clean_sentence(record.get(column))
                key = (place if self.request["pairs"] else 0, text_hashes.folded(text or ""))
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
        vectors = baselines.encode(
            encoder, tokenizer, [texts], self.request["max_length"], devices.prefers_bf16(),
            first_token, lambda done: report(Phase.TOKENIZE, "", done, len(texts)),
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
        found.append(child_process.call(
            "finetune.labels.brought_files:text_column", str(path), name, column,
            about=name, confinement=Confinement((str(path),)),
        ))  # fmt: skip
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
        disk.remove_folder(job.folder)
    if len(answered) >= store.visitor.policy.limits.runs:
        raise JobError(
            "You have {n} labellings, as many as may be kept.",
            "Go on with one of them, or delete one.",
            n=len(answered),
        )


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
    if few := count_answers(labelling) < CROSS_VALIDATED:
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


def count_answers(labelling: Labelling) -> int:
    """Count the settled answers. DataError if they are too few to learn from."""
    given = list(labelling.settled().values())
    if len(given) < FEWEST or len(set(given)) < 2:
        raise DataError(
            "There are {n} answers, of {kinds} kinds.",
            "Answer {least} questions or more, with two labels at least.",
            n=len(given), kinds=len(set(given)), least=FEWEST,
        )  # fmt: skip
    return len(given)
