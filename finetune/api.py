"""The Python API, which `import finetune` offers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.config import RunConfig
from finetune.data import model_cache
from finetune.engines.base import HERE
from finetune.engines.registry import make_spec
from finetune.errors import TrainingError
from finetune.evaluation import abstention, monitoring, ranking, release, report, test_set
from finetune.evaluation.file_shift import Monitoring
from finetune.evaluation.gate import Judgement, Limits
from finetune.evaluation.probe import ProbeReport
from finetune.hub import client, publish
from finetune.hyperparameter import FOLDS
from finetune.inference import file_request
from finetune.inference.file_request import PredictionRequest
from finetune.jobs import background, label_answers, memory, scheduler, service
from finetune.jobs import evaluate as evaluation_jobs
from finetune.jobs import label as labelling_jobs
from finetune.jobs import probe as probes
from finetune.jobs.terminal import follow
from finetune.labels.labelling import Labelling
from finetune.messages import message as _
from finetune.runs.grids import plan_runs
from finetune.runs.run import Run
from finetune.runs.store import RunStore, as_run, default_root
from finetune.studies import driver, results
from finetune.studies.space import Budget, default_space, read_space
from finetune.tasks.base import SureRule

if TYPE_CHECKING:
    from finetune.data.splits import Pairs

_POLL = 0.2  # seconds between looks at what runs


def load_pairs(config: RunConfig, store: RunStore | None = None) -> Pairs:
    """Load the sentence pairs of a configuration, as a run would train on them.

    Returns:
        `splits`, a `DatasetDict` with `train`, `validation` and perhaps `test`; `labels`, their
            classes.
    """
    from finetune.data import splits

    return splits.load_pairs(config, store.root if store else default_root())


def train(
    config: RunConfig,
    store: RunStore | None = None,
    progress: bool = True,
    engine: str = HERE,
    **options: Any,
) -> Run:
    """Train a classifier in a process of its own and wait until it ends.

    The run belongs to the store: the page shows it, and it waits while another one trains.
    An interrupt (Ctrl-C, or a notebook's stop button) stops the run and keeps its best model.

    Args:
        store: the store of the run; the default folder of runs if None.
        progress: True to show a progress bar with the evaluations above it.
        engine: as `python -m finetune train --engine` names it.
        options: of the engine, named as the flags of `python -m finetune train`. A billed one
            takes its `price`, in US dollars an hour: naming the price accepts it.

    Returns:
        the run, finished or stopped: `run.metrics`, `run.best` (a `from_pretrained` folder).
    """
    store = store or RunStore(default_root())
    runs = service.start_runs(store, plan_runs(config), make_spec(engine, options))
    for number, run in enumerate(runs):
        try:
            summary = follow(store, run, progress)
        except KeyboardInterrupt:
            for other in reversed(runs[number:]):
                service.stop_run(store, other)
            summary = follow(store, run, False)
        if summary.status not in ("finished", "stopped"):
            raise TrainingError(summary.error or _("The run ended early."), summary.remedy)
        if summary.status == "stopped":
            return run
    return runs[-1]


def cross_validate(
    config: RunConfig,
    folds: int = 0,
    store: RunStore | None = None,
    progress: bool = True,
    engine: str = HERE,
    **options: Any,
) -> Run:
    """Cross-validate a configuration, then train a model on all rows.

    The rows of train and validation are cut into folds that share no sentence; a test split stays
    as it is. For each fold a model is trained on the others, and answers the fold with its last
    state: nothing is picked. Then a model is trained on all rows in the same way.

    Args:
        folds: from 2 to 10; those of the configuration, or else 5, if 0.
        store, progress, engine, options: as `train` takes them.

    Returns:
        the run on all rows. Its `metrics` and `evaluate(run)` are the cross-validated ones: the
            answers for each row are by the model that had not seen it.
    """
    config = config.changed(folds=folds or config.folds or FOLDS, fold=0)
    return train(config, store, progress, engine, **options)


def search(
    config: RunConfig,
    space: Mapping[str, str] | None = None,
    trials: int = 20,
    minutes: float = 0.0,
    store: RunStore | None = None,
) -> Run:
    """Search hyperparameters by training runs, and wait until the search ends. Runs that fall
    behind end early.

    Args:
        config: the configuration of the first trial; the result is never worse.
        space: field -> what to draw from, as `1e-5..3e-4`, `8,16` or empty for its usual range;
            learning rate, epochs, batch size and warm-up if None.
        trials: at most; 0 for no limit.
        minutes: of training, over all trials, after which no trial begins; 0 for no limit.
        store: the store of the runs; the default folder of runs if None.

    Returns:
        the run with the best score, which is slightly too good because it was picked among many.

    Raises:
        ConfigError: if the space or the budget is invalid.
        TrainingError: if no trial has a score.
    """
    store = store or RunStore(default_root())
    drawn = default_space() if space is None else read_space(space)
    study = driver.begin_search(store, config, drawn, Budget(trials, minutes))
    while driver.advance(store, study):
        scheduler.dispatch_queue(store)
        time.sleep(_POLL)
    best = results.best_trial(results.list_trials(store, study), study.minimize)
    if best is None:
        raise TrainingError("No trial of the search has a score.", "The runs' logs say why.")
    if not best.run_id:
        raise TrainingError("The run of the best trial was deleted.", "Search again.")
    return store.get(best.run_id)


def probe(
    config: RunConfig, checkpoints: Sequence[str] = (), store: RunStore | None = None
) -> ProbeReport:
    """Rank checkpoints on a configuration's training pairs before any training, in this process.

    Args:
        checkpoints: offered names, Hub ids or folders, from 2 to 8; by default those of the
            catalogue that are on this disk.
        store: keeps the pairs read; the default folder of runs if None.

    Returns:
        `candidates`, the best first: each with its cross-validated `score`, whether it
            `may_be_best`, and its time and size; `words` is the score of TF-IDF.

    Raises:
        ConfigError, DataError: if there is nothing to compare, or too few pairs.
    """
    store = store or RunStore(default_root())
    names = probes.check_request(store, config, [*checkpoints] or probes.candidates(config))
    return probes.probe_checkpoints(config, names, store.root)


def evaluate(run: Run | Path | str, split: str = "validation") -> report.RunEvaluation:
    """Evaluate a run's best model: how good it is, how sure that is, and where it fails.

    Args:
        run: a run, its folder or its id; it must have been evaluated at least once.
        split: `validation`, from the saved logits; or `test`, which opens the sealed test set: the
            model is scored on it, and the run records that.

    Returns:
        `analysis.scores` has accuracy and F1 with their 95% intervals, `analysis.expected` those
            that new pairs will show, if being the best of several evaluations made them too good.
    """
    run = as_run(run)
    if split == "test":
        test_set.open_test_set(run)
    return report.evaluate_run(run, run.state(), split)


def answer_when_sure(
    run: Run | Path | str,
    error: float = abstention.ERROR,
    confidence: float = abstention.CONFIDENCE,
    per_class: bool = False,
    split: str = "validation",
) -> SureRule:
    """Let a run's model answer only when it is sure, and "unsure" otherwise: at most a share
    `error` of its answers to new pairs is wrong, with probability `confidence`.

    The threshold of confidence is found by Learn then Test (https://arxiv.org/abs/2110.01052) and
    kept with the model. It holds for answers in the given order at the saved threshold.

    Args:
        run: a run that has ended, its folder or its id.
        per_class: True to keep the bound for each class's answers.
        split: `validation`; or `test`, if it was opened.

    Returns:
        `above`, the threshold of an answer's probability, or `classes`, that of each class; and
        `coverage`, the share of the rows that is answered.

    Raises:
        DataError: if no threshold keeps the bound; it says how many rows would. Also if a value is
            out of range, or the model answers with scores.
        JobError: if the run is still training.
    """
    return evaluation_jobs.keep_when_sure(
        as_run(run), error=error, confidence=confidence, per_class=per_class, split=split
    )


def gate(
    new: Run | Path | str,
    old: Run | Path | str,
    golden: Path | str | None = None,
    max_lost: int = 0,
    min_gain: float = -0.01,
    request: PredictionRequest | None = None,
) -> Judgement:
    """Check whether a run's model may replace an old one.

    Args:
        new: a run, its folder, its id or its name.
        old: another one, or a model on the Hub as `namespace/name`.
        golden: a file of labelled rows that both models answer; its hash is kept, and it is never
            trained on, unless one of them was already. Without one both are compared by the new
            run's validation pairs.
        max_lost: right answers that may become wrong; not used of scores.
        min_gain: in the metric that chooses the run's best model, in its unit, more being better;
            below 0 that much may be lost.
        request: the columns of the golden file and how it is read; guessed if None.

    Returns:
        `verdict`: passed, failed, or not judged; `status`, the exit status of the command: 0, 1 or
            2; `reasons`; the answers lost and gained with their texts; the gain's 95% interval;
            McNemar's test; and kinds of rows.
    """
    limits, run = Limits(max_lost, min_gain), as_run(new)
    other = old if isinstance(old, Run) else release.named_model(str(old), run.folder.parent)
    if golden is None:
        return release.check_release(run, other, limits, None, request)
    stored = RunStore(run.folder.parent).uploads
    is_new = stored.keep_golden(Path(golden))
    judged = release.check_release(run, other, limits, Path(golden), request)
    if is_new and judged.seen:
        stored.forget_golden(judged.golden)
    return judged


def rank(
    runs: Sequence[Run | Path | str] = (), measure: bool = True, store: RunStore | None = None
) -> ranking.Ranking:
    """Rank finished runs by their scores on the same validation pairs.

    Args:
        runs: runs, their folders, ids or names; all of the store, the newest first, if empty. Those
            with other pairs than the first finished one are left out.
        measure: True to measure the speed of models on this machine, where it is not known; a few
            seconds each.
        store: the default folder of runs if None; used if `runs` is empty.

    Returns:
        `runs`, the best score first, each with its interval, `may_be_best`, `milliseconds` a pair
            and `megabytes`; `cheapest` of those that may be the best, None if all cost the same;
            and `sentence`. The best is among those that may be with a probability of 95%.
    """
    found = [*map(as_run, runs)] or (store or RunStore(default_root())).runs()
    ranked = ranking.rank_runs(found)
    unknown = {run.id for run in ranked.runs if run.milliseconds is None}
    if measure and unknown:
        for run in found:
            if run.id in unknown:
                ranking.measure_speed(run)
        ranked = ranking.rank_runs(found)
    return ranked


def predict(
    run: Run | Path | str, file: Path | str, out: Path | str,
    request: PredictionRequest | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Answer every row of a file.

    Args:
        out: the file to write: `.csv`, `.tsv`, `.jsonl`, `.json` or `.parquet`; it has the file's
            columns and the answers.
        request: columns and reading of the file; guessed if None.

    Returns:
        what `python -m finetune predict --json` prints: `scores` if the file has labels, and in
            `others` how far other columns with answers agree with the run's.
    """
    from finetune.inference import files  # which imports torch

    run, path = as_run(run), Path(file)
    request = request or PredictionRequest(run.id, path.name, "")
    request = file_request.check_columns(request, path, run.state().columns, run.config())
    return files.predict_file(run, request, path, Path(out))[0]


def label(
    file: Path | str, labels: Sequence[str] = (), other: Path | str | None = None,
    column: str = "", several: bool = False, config: RunConfig | None = None,
    store: RunStore | None = None,
) -> Labelling:  # fmt: skip
    """Begin to label the texts of a file, or pairs of its texts that may mean the same.

    Args:
        file: of any format that can be read, with a row for each text.
        labels: two or more, by which texts are sorted; pairs are asked about if empty.
        other: a second file, whose texts are matched with those of the first.
        column: the column with the texts; guessed if empty.
        several: True if a text may have any number of labels.
        config: gives the checkpoint whose vectors are compared, and `max_length`.
        store: where the labelling is kept; the default folder of runs if None.

    Returns:
        a labelling. `next(who)` is a question, with `item` and `texts`; `answer(item, labels, who)`
            and `undo(who)` are written to disk at once; `estimate()` says how good a model would
            be; `export(".jsonl")` returns all answers, as a file to train on has them.

    Raises:
        DataError, ConfigError: if the file cannot be read, or there is one label only.
        TrainingError: if the texts could not be prepared.
    """
    store = store or RunStore(default_root())
    files = [Path(path) for path in (file, other) if path is not None]
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


def groups(
    labelling: Labelling | str, run: Run | Path | str | None, out: Path | str,
    store: RunStore | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Group the texts of a file that mean the same; or label them all, if texts were labelled.

    A person's answers are kept as they are.

    Args:
        labelling: or its id, or the name of its file; the newest of pairs if "".
        run: trained on the answers; None for the small model that learns from them at once.
        out: the file to write, with the columns of the labelled file and `group` or `label`. Of two
            files that are matched, the second becomes `out` with `-2` in its name.
        store: of a labelling that is named.

    Returns:
        of pairs `groups`, of two texts or more; `grouped`, the rows in them; `precision`, `recall`
            as [value, low, high], by `measured` random pairs that the model had not learned;
            `contradicted`, pairs called different that other answers join; `doubtful`, those
            nearest to 50%. Of texts `labelled`, their rows. `unread` says why rows were not read.

    Raises:
        DataError: if the run's model lacks a label, or fewer than 20 answers were given.
    """
    if isinstance(labelling, str):
        job = labelling_jobs.named_labelling(store or RunStore(default_root()), labelling)
        labelling = job.labelling
    results = [path := Path(out), path.with_name(f"{path.stem}-2{path.suffix}")]
    own = None if run is None else as_run(run)
    return label_answers.answer_all(labelling.folder, own, results)


def still_holds(
    run: Run | Path | str,
    file: Path | str,
    labels: Path | str | None = None,
    request: PredictionRequest | None = None,
) -> Monitoring:
    """Say if a run's model still holds on a file without labels.

    Args:
        file: the file, or the counts of one that `python -m finetune monitor --aggregates` wrote.
        labels: a file with labels of at least 30 rows, drawn from it at random.
        request: columns and reading of both; guessed if None.

    Returns:
        `verdict`: `as before`, `changed` or `train anew`; `accuracy`, estimated, with its interval;
            `changes`, a test each; `shares` of the classes; and what the labels show as `measured`.

    Raises:
        DataError: if fewer than 50 rows are new to the model, or the run's
            validation pairs were not kept.
    """
    run, path = as_run(run), Path(file)
    request = request or PredictionRequest(run.id, path.name, "")
    return monitoring.monitor_file(run, path, request, Path(labels) if labels else None)[0]


def push_to_hub(
    run: Run | Path | str, repository: str, private: bool = False, token: str | None = None,
    update: bool = False,
) -> publish.Pushed:  # fmt: skip
    """Push a run's best model with its model card to the Hugging Face Hub, as one commit.

    Args:
        run: a run, its folder or its id.
        repository: `name` or `namespace/name`.
        private: True to make a new repository private.
        token: with write access; that of `hf auth login` or `HF_TOKEN` if None.
        update: True to add a commit to a repository that has files.

    Returns:
        `url`, `commit`, and the result of loading the model back.
    """
    request = publish.PushRequest(repository, private, update=update)
    return publish.push_run(as_run(run), request, token or client.stored_token())


def list_models() -> list[model_cache.CachedModel]:
    """List the downloaded checkpoints, the largest first: `name`, `bytes` on this disk, `used`."""
    return model_cache.list_models()


def remove_model(name: str, store: RunStore | None = None) -> model_cache.CachedModel:
    """Remove a downloaded checkpoint from this disk. The next run that needs it downloads it again.

    Args:
        store: of the runs that may need it; the default folder of runs if None.

    Raises:
        StoreError: if it is not on this disk, or a run that has not ended needs it.
    """
    return memory.remove_model(store or RunStore(default_root()), name)
