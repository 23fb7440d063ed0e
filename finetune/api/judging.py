"""Judge a model: how good it is, when it is sure, whether it may replace another, if it still
holds."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from finetune import disk
from finetune.api.verb import AnyRun, AnyStore, OutFile, check_outputs, each, verb
from finetune.evaluation import abstention, file_shift, monitoring, ranking, release, report
from finetune.evaluation import gate as judgements
from finetune.evaluation.file_shift import Monitoring
from finetune.evaluation.gate import Judgement, Limits
from finetune.evaluation.test_set import open_test_set
from finetune.inference import file_request
from finetune.inference.file_request import PredictionRequest
from finetune.jobs import evaluate as evaluation_jobs
from finetune.runs.run import Run
from finetune.runs.store import RunStore, as_run, as_store
from finetune.tasks.base import SureRule


def evaluate(run: AnyRun, split: str = "validation") -> report.RunEvaluation:
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
        open_test_set(run)
    return report.evaluate_run(run, run.state(), split)


@verb(
    "sure", values=abstention.as_values,
    notes=lambda rule, given: [] if rule else [f"{given['run'].title()} answers every row again"],
)  # fmt: skip
def answer_when_sure(
    run: AnyRun,
    error: float = abstention.ERROR,
    confidence: float = abstention.CONFIDENCE,
    per_class: bool = False,
    split: Literal["validation", "test"] = "validation",
    forget: bool = False,
) -> SureRule | None:
    """Let a run's model answer only when it is sure, and "unsure" otherwise.

    At most a share `error` of its answers to new rows is wrong. The threshold of confidence is
    found by Learn then Test (https://arxiv.org/abs/2110.01052) and kept with the model. It holds
    for answers in the given order at the saved threshold. If none keeps the bound, the error says
    how many rows would.

    Args:
        run: a run that has ended: its name, id or folder.
        error: the share of the answers that may be wrong.
        confidence: the probability that the bound holds.
        per_class: keep the bound for each class's answers.
        split: the rows to find it on; test only if it was opened.
        forget: answer every row again.

    Returns:
        `above`, the threshold of an answer's probability, or `classes`, that of each class; and
            `coverage`, the share of the rows that is answered. None if it is forgotten.

    Raises:
        DataError: if no threshold keeps the bound; it says how many rows would. Also if a value is
            out of range, or the model answers with scores.
        JobError: if the run is still training.
    """
    run = as_run(run)
    if forget:
        evaluation_jobs.save_decision(run, run.state(), sure=None)
        return None
    return evaluation_jobs.keep_when_sure(
        run, error=error, confidence=confidence, per_class=per_class, split=split
    )


@verb(
    "gate", text=judgements.as_text, status=lambda judged: judged.status, endpoint="check_release",
    files={"json": judgements.as_json, "markdown": judgements.as_markdown},
)  # fmt: skip
def gate(
    new: AnyRun,
    old: Run | str,
    golden: Path | str | None = None,
    max_lost: int = 0,
    min_gain: float = -0.01,
    request: PredictionRequest | None = None,
) -> Judgement:
    """Say if a run's model may replace an older one.

    Exit status: 0 it passed; 1 it failed, because more right answers were lost than `max_lost`, or
    the 95% interval of the gain is below `min_gain`; 2 it could not be judged: other rows, rows
    that were trained on, or too few to tell (fewer than 30, or `min_gain` lies within the
    interval).

    Args:
        new: a run's name, id or folder.
        old: another one, or a model on the Hub as namespace/name.
        golden: a file of labelled rows that both models answer; without it their validation rows
            are compared. Its hash is kept beside the runs, and training on it is refused.
        max_lost: right answers that may become wrong; not used of scores.
        min_gain: the least gain in the metric that chooses the best model; more is better, and
            below 0 that much may be lost.
        request: the columns of the golden file and how it is read; guessed if None.

    Returns:
        verdict (passed, failed or not judged), reasons, the gain with its 95% interval, lost and
            gained answers with their texts, p (exact McNemar test) and slices (kinds of rows).
    """
    limits, run = Limits(max_lost, min_gain), as_run(new)
    other = old if isinstance(old, Run) else release.named_model(str(old), run.folder.parent)
    if golden is None:
        return release.check_release(run, other, limits)
    stored, path = RunStore(run.folder.parent).uploads, Path(golden)
    request = file_request.of_file(run, path, request)
    judged = release.check_release(run, other, limits, path, request)
    if judged.examples and not judged.seen:
        stored.keep_golden(path)
    return judged


@verb(
    "rank", text=ranking.as_text, values=ranking.as_values, words=("runs",),
    files={"csv": ranking.ranking_csv},
)  # fmt: skip
def rank(
    runs: Sequence[AnyRun] = (), measure: bool = True, store: AnyStore = None
) -> ranking.Ranking:
    """Rank finished runs by their scores on the same validation rows. A star marks those that may
    be the best: the best is among them with a probability of 95%.

    Args:
        runs: names, ids or folders; all finished runs on the newest one's rows if absent.
        measure: measure speeds that are not known on this machine, a few seconds each.
        store: of the runs, or its folder; the default one if None.

    Returns:
        `runs`, the best score first, each with its interval, `may_be_best`, `milliseconds` a pair
            and `megabytes`; `cheapest` of those that may be the best, None if all cost the same;
            and `sentence`. The best is among those that may be with a probability of 95%.
    """
    stored = as_store(store)
    found = [as_run(run, stored.root) for run in each(runs)] or stored.runs()
    ranked = ranking.rank_runs(found)
    unknown = {run.id for run in ranked.runs if run.milliseconds is None}
    if measure and unknown:
        for run in found:
            if run.id in unknown:
                ranking.measure_speed(run)
        ranked = ranking.rank_runs(found)
    return ranked


@verb(
    "monitor", notes=lambda judged, given: [file_shift.sentence(judged)], words=("run", "file"),
    status=lambda judged: int(judged.verdict != "as before"), offline=True,
)  # fmt: skip
def still_holds(
    run: AnyRun,
    file: Path | str,
    labels: Path | str | None = None,
    request: PredictionRequest | None = None,
    aggregates: OutFile | None = None,
) -> Monitoring:
    """Say if a run's model still holds on a file without labels.

    A random sample of its rows is compared with the run's validation rows. Exit status: 0 as
    before; 1 changed, or train anew; 2 it could not be judged.

    Args:
        run: a run's name, id or folder.
        file: the file, or the counts of one that `aggregates` wrote.
        labels: a file of the same columns, with labels of at least 30 rows drawn from it at random;
            rows with an empty label are not labelled (of several labels, [] says that a row has
            none).
        request: columns and reading of both; guessed if None.
        aggregates: a JSON file to write the file's counts to: all that a judgement needs, and no
            text.

    Returns:
        `verdict`: `as before`, `changed` or `train anew`; `accuracy`, estimated, with its interval;
            `changes`, a test each; `shares` of the classes; and what the labels show as `measured`.

    Raises:
        DataError: if fewer than 50 rows are new to the model, or the run's
            validation pairs were not kept.
    """
    run, path, to = as_run(run), Path(file), Path(aggregates) if aggregates else None
    check_outputs({"aggregates": to}, [path, labels])
    request = file_request.of_file(run, path, request)
    judged, counts = monitoring.monitor_file(run, path, request, Path(labels) if labels else None)
    if aggregates:
        text = json.dumps(asdict(counts), ensure_ascii=False) + "\n"
        disk.write_result(Path(aggregates), text)
    return judged
