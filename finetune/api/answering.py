"""Answers: a model's to the rows of a file, and a person's, from which a model is made."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from finetune.api.verb import AnyRun, AnyStore, OutFile, check_outputs, verb
from finetune.config import RunConfig
from finetune.errors import ConfigError, TrainingError
from finetune.inference import file_request, result_files
from finetune.inference.file_request import PredictionRequest
from finetune.jobs import background, label_answers
from finetune.jobs import label as labelling_jobs
from finetune.labels.labelling import Labelling
from finetune.messages import message as _
from finetune.runs.store import as_run, as_store

_POLL = 0.2  # seconds between looks at what runs


@verb(
    "predict", text=result_files.as_text, values=dict, notes=result_files.notes, answers=True,
    offline=True,
)  # fmt: skip
def predict(
    run: AnyRun,
    file: Path | str,
    out: OutFile,
    review: OutFile | None = None,
    request: PredictionRequest | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Predict every row of a file with a run's model.

    The result has the file's columns as they are, then prediction, a probability_ of each class,
    trained_on, error, and decision (the answer or unsure) if a bound is kept with the model; if the
    file has one of these, all those added end in _2 (or _3, ...).

    Args:
        run: a run's name, id or folder.
        file: CSV, TSV, JSONL, JSON (these also as .gz), Parquet, XLSX, XLS or ODS.
        out: where the result goes; its ending says as what: .csv, .tsv, .jsonl, .json, .parquet.
        review: where the rows go that the model is unsure of, by what `sure` has kept with it.
        request: columns and reading of the file, and how it is answered; guessed if None.
        progress: True to show a progress bar.

    Returns:
        what `python -m finetune predict --json` prints: `scores` if the file has labels, and in
            `others` how far other columns with answers agree with the run's.
    """
    from tqdm import tqdm

    from finetune.inference import files  # which imports torch

    run, path = as_run(run), Path(file)
    results = {name: Path(result) for name, result in (("out", out), ("review", review)) if result}
    for name, result in results.items():
        if result.suffix.lower() not in result_files.SUFFIXES:
            endings = ", ".join(result_files.SUFFIXES)
            raise ConfigError({name: f"must end in one of {endings}, got {result}"})
    check_outputs(results, [path])
    request = file_request.of_file(run, path, request)
    request = file_request.check_columns(request, path, run.state().columns, run.config())
    with tqdm(unit="row", disable=not progress) as bar:
        return files.predict_file(
            run, request, path, results["out"], lambda done, total: bar.update(done - bar.n),
            review=results.get("review"),
        )[0]  # fmt: skip


def label(
    file: Path | str, labels: Sequence[str] = (), other: Path | str | None = None,
    column: str = "", several: bool = False, config: RunConfig | None = None,
    store: AnyStore = None,
) -> Labelling:  # fmt: skip
    """Begin to label the texts of a file, or pairs of its texts that may mean the same.

    Args:
        file: of any format that can be read, with a row for each text.
        labels: two or more, by which texts are sorted, or a text with commas between them; pairs
            are asked about if empty.
        other: a second file, whose texts are matched with those of the first.
        column: the column with the texts; guessed if empty.
        several: True if a text may have any number of labels.
        config: gives the checkpoint whose vectors are compared, and `max_length`.
        store: where the labelling is kept, or its folder; the default one if None.

    Returns:
        a labelling. `next(who)` is a question, with `item` and `texts`; `answer(item, labels, who)`
            and `undo(who)` are written to disk at once; `estimate()` says how good a model would
            be; `export(".jsonl")` returns all answers, as a file to train on has them.

    Raises:
        DataError, ConfigError: if the file cannot be read, or there is one label only.
        TrainingError: if the texts could not be prepared.
    """
    store = as_store(store)
    files = [Path(path) for path in (file, other) if path is not None]
    labels = labels.split(",") if isinstance(labels, str) and labels else labels
    job = labelling_jobs.start_labelling(
        store, files, labels=labels, columns=[column], pairs=not labels, several=several,
        config=config,
    )  # fmt: skip
    while (state := job.state()).running:
        background.start_waiting(store)  # if another one was being prepared
        time.sleep(_POLL)
    if state.status != "finished":
        raise TrainingError(state.error or _("The run ended early."), state.remedy)
    return job.labelling


@verb("groups", text=label_answers.as_text, values=dict, notes=label_answers.notes)
def groups(
    labelling: Labelling | str | None,
    run: AnyRun | None,
    out: OutFile,
    store: AnyStore = None,
) -> dict[str, Any]:
    """Group the texts of a file that mean the same; or label them all, if texts were labelled.

    It goes by what was answered of some of them. A person's answers are kept as they are.

    Args:
        labelling: the name of its file, or its id; by default the newest of pairs.
        run: trained on the answers; without it a small model learns from them at once.
        out: the file to write, with the columns of the labelled file and `group` or `label`. Of two
            files that are matched, the second becomes one with `-2` in its name.
        store: of what is named, or its folder; the default one if None.

    Returns:
        of pairs `groups`, of two texts or more; `grouped`, the rows in them; `precision`, `recall`
            as [value, low, high], by `measured` random pairs that the model had not learned;
            `contradicted`, pairs called different that other answers join; `doubtful`, those
            nearest to 50%. Of texts `labelled`, their rows. `columns`: the new one of each
            file, whose name ends in _2 if it was there. `unread` says why rows were not read.

    Raises:
        DataError: if the run's model lacks a label, or fewer than 20 answers were given.
    """
    store = as_store(store)
    if not isinstance(labelling, Labelling):
        job = labelling_jobs.named_labelling(store, labelling or "")
        labelling = job.labelling
    results = [path := Path(out), path.with_name(f"{path.stem}-2{path.suffix}")]
    own = None if run is None else as_run(run, store.root)
    return label_answers.answer_all(labelling.folder, own, results)
