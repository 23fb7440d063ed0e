"""Looks at a file without labels, to judge if a model still holds on it (`file_shift`).

The reference is the run's validation pairs: unlike those trained on, the model has not seen them,
and its scores are theirs. They are answered anew, just as the file is. A model trained on all rows
has seen them: there the answers of the folds' models count. At most 2,000 random rows of each are
looked at. Those that share a sentence count as the number of independent ones that they are worth;
words are compared, and labels asked for, only of rows that share none.
What is kept of a file are counts (`Aggregates`), and it is judged from these alone. Whether its
words differ is tested while the texts are at hand, and only the result is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from finetune import disk, text_hashes
from finetune.data import checkpoint_files, table_formats
from finetune.errors import DataError, some
from finetune.evaluation import cross_validation, file_shift, saved_predictions
from finetune.evaluation.file_shift import Aggregates, Monitoring, Reference
from finetune.inference import decision_rule, file_request
from finetune.inference.file_request import PredictionRequest
from finetune.inference.result_files import PREDICTION, ShownRow, shortened
from finetune.metrics import classification, label_free
from finetune.metrics.calibration import Logits
from finetune.metrics.label_free import CONFIDENCE_BINS
from finetune.metrics.shared_rows import rows_worth
from finetune.runs import pair_index
from finetune.runs.run import Run
from finetune.tasks.base import PredictOptions, Target, Targets
from finetune.tasks.registry import task_of

if TYPE_CHECKING:
    from finetune.inference.files import Window
    from finetune.inference.scorer import Scorer

MOST = 2000  # rows of a sample
FEWEST = 50  # rows of a sample that can be judged
TO_LABEL = 100  # rows that a person is asked to label
LENGTH_BINS, LENGTH_STEP = 128, 4  # of tokens
SCORE_BINS = 20  # of a score's scale; one more on either side
_CHARACTERS = 20_000  # of a sentence
_COMPARED = 1000  # rows of each sample whose words are compared
_MOST_COUNTS = 2**20  # bytes of a file of counts
_FEWEST_FIELDS = 4  # by which counts are told from rows
_WORD = r"(?u)[\u3040-\u9fff]|\w+"
Bins = NDArray[np.int64] | None  # of the confidence of answers; None if they have none


class SampledRow(NamedTuple):
    """A row that is looked at."""

    order: float  # random
    number: int  # in the file, from 0
    sentences: list[str]  # one or two


class Sample:
    """Draws random rows that a run has not seen, while they are read. `seen`: the splits of the run
    whose pairs are left out."""

    def __init__(self, run: Run, seen: Sequence[str] = pair_index.SPLITS) -> None:
        index = pair_index.read_pair_index(run)
        self._seen = [partial(index.among, split) for split in seen] if index else []
        self._draw, self._read = np.random.default_rng(0), 0
        self._rows: list[SampledRow] = []

    def add(self, window: Window) -> None:
        """Take in the next rows of a file."""
        numbers = [at for at, (_, error) in enumerate(window.rows, self._read) if not error]
        self._read += len(window.rows)
        self.add_texts(window.sentences, numbers)

    def add_texts(self, columns: Sequence[Sequence[str]], numbers: Sequence[int]) -> None:
        """Take in rows that can be answered: their first, and perhaps second sentences."""
        last = self._rows[-1].order if len(self._rows) == MOST else 1.0
        order = self._draw.random(len(numbers))
        drawn = np.flatnonzero(order < last)
        at = drawn.tolist()
        hashes = pair_index.pair_hashes(*([column[row] for row in at] for column in columns))
        for among in self._seen:
            new = ~among(hashes)
            drawn, hashes = drawn[new], hashes[new]
        self._rows += [
            SampledRow(float(order[at]), numbers[at], [each[at][:_CHARACTERS] for each in columns])
            for at in drawn.tolist()
        ]
        self._rows = sorted(self._rows, key=lambda row: row.order)[:MOST]

    def rows(self) -> list[SampledRow]:
        """Return the rows in random order, after those that share no sentence with one before."""
        first = sharing_none(self._rows)
        numbers = {row.number for row in first}
        return first + [row for row in self._rows if row.number not in numbers]


def sharing_none(rows: Sequence[SampledRow]) -> list[SampledRow]:
    """Return the rows without those that share a sentence with one before."""
    seen: set[int] = set()
    kept = []
    for row in rows:
        hashes = {text_hashes.text_hash(text) for text in row.sentences if text}
        if seen.isdisjoint(hashes):
            kept.append(row)
            seen |= hashes
    return kept


def sentences_of(rows: Sequence[SampledRow]) -> list[list[str]]:
    """Return the sentences of rows, a list for each column."""
    return [[*column] for column in zip(*(row.sentences for row in rows), strict=True)]


def check_enough(rows: Sequence[SampledRow]) -> None:
    """Raise DataError if a file's sample is too small to judge by."""
    if len(rows) < FEWEST:
        raise DataError(
            "{n} rows of the file are new to the model, too few to compare.",
            "Bring at least {least} of them.", n=len(rows), least=FEWEST,
        )  # fmt: skip


class Monitor:
    """Answers a run's validation pairs and samples of files, and compares them."""

    def __init__(self, run: Run, scorer: Scorer, options: PredictOptions) -> None:
        self.run, self._scorer, self._options = run, scorer, options
        self._rule = decision_rule.read_rule(run.best)
        prepared, target = run.state().prepared, scorer.target
        self.target: Target = target if prepared is None else prepared.target
        self._task = task_of(self.target)
        with checkpoint_files.open_files(run.best) as files:
            from transformers import AutoTokenizer

            self._tokenizer = files.load(AutoTokenizer)
        table = saved_predictions.kept_examples(run)
        by_folds = bool(cross_validation.read_folds(run))
        sample = Sample(run, [] if by_folds else ["train"])
        sample.add_texts(saved_predictions.sentences_of(table), range(table.num_rows))
        self._rows = sample.rows()
        if len(self._rows) < FEWEST:
            raise DataError(
                "{n} validation rows are new to the model, too few to compare a file with.",
                "Train with at least {least} of them.", n=len(self._rows), least=FEWEST,
            )  # fmt: skip
        numbers = np.array([row.number for row in self._rows])
        truth = saved_predictions.targets_of(table)[numbers]
        values, confidence = (
            self._answers_of_folds(numbers) if by_folds else self.answer(self._rows)
        )
        counts, right, confusion = self._count(self._rows, values, confidence), [], []
        if self._task.has_right and confidence is not None:
            correct = self._task.errors(values, truth) == 0
            shared = text_hashes.shared_rows(*sentences_of(self._rows))
            part = rows_worth(correct, shared) / len(correct)
            counts.parts.update({"right": part} if part < 1 else {})
            sides = (confidence[~correct], confidence[correct])
            right = [_binned(side, CONFIDENCE_BINS) for side in sides]
        if self._task.choices(self.target):
            size = self.target.size
            confusion = classification.confusion_matrix(truth, values, size).tolist()
        self.reference = Reference(counts, right, confusion, [*self.target.names])

    def answer(self, rows: Sequence[SampledRow]) -> tuple[Targets, Bins]:
        """Return the answers to rows, and the bins of their confidence."""
        sentences, both = sentences_of(rows), self._options.both_orders
        return self._judged(*self._scorer.scores_of_orders(sentences, both))

    def _answers_of_folds(self, numbers: NDArray[np.int64]) -> tuple[Targets, Bins]:
        """Return the kept answers to validation rows, each by a model that has not seen it."""
        step, orders = self.run.best_step() or 0, None
        saved = saved_predictions.read_logits(self.run, step, self.target)
        if self._options.both_orders:
            orders = saved_predictions.read_swapped_logits(self.run, len(saved.logits))
        if orders is None or not np.isin(numbers, orders.rows).all():
            return self._judged(saved.logits[numbers], None)
        at = np.argsort(orders.rows)[np.searchsorted(np.sort(orders.rows), numbers)]
        return self._judged(orders.given[at], orders.swapped[at])

    def _judged(self, logits: Logits, swapped: Logits | None) -> tuple[Targets, Bins]:
        answers = self._task.answers(logits, self.target, self._rule, self._options, swapped)
        margins = self._task.margins(answers, self.target, self._rule.under(self._options))
        return answers.values, None if margins is None else label_free.confidence_bins(margins)

    def spell(self, values: Targets) -> list[str]:
        """Return answers as they are counted: a score by its bin."""
        low, high = self.target.low, self.target.high
        if self.target.names:
            return self._task.spell(values, self.target)
        bins = np.floor((values - low) / ((high - low) or 1.0) * SCORE_BINS)
        return [str(int(one)) for one in bins.clip(-1, SCORE_BINS)]

    def _count(self, rows: Sequence[SampledRow], values: Targets, confidence: Bins) -> Aggregates:
        sentences = sentences_of(rows)
        ids = self._tokenizer(*sentences, truncation=False, verbose=False)["input_ids"]
        lengths = np.array([len(one) for one in ids]) // LENGTH_STEP
        unknown, spelled = self._tokenizer.unk_token_id, self.spell(values)
        counted = {
            # Classes have no order; other answers are bins or sets.
            "answers": np.array(spelled)[:, None] == np.unique(spelled), "confidence": confidence,
            "lengths": lengths, "unknown": np.array([unknown in one for one in ids]),
        }  # fmt: skip
        shared = text_hashes.shared_rows(*sentences)
        parts = {
            of: shared.worth(each) / len(rows) for of, each in counted.items() if each is not None
        }
        return Aggregates(
            model=f"{self.run.id} {self.run.best_step()}",
            rows=len(rows),
            answers=dict(Counter(spelled)),
            confidence=[] if confidence is None else _binned(confidence, CONFIDENCE_BINS),
            lengths=_binned(lengths.clip(max=LENGTH_BINS - 1), LENGTH_BINS),
            unknown=[] if unknown is None else _binned(counted["unknown"], 2),
            parts={of: part for of, part in parts.items() if part < 1},
        )

    def count(self, rows: Sequence[SampledRow]) -> tuple[Aggregates, list[str], list[int]]:
        """Answer a sample of a file. Returns its counts, and each row's answer and confidence.
        DataError if there are fewer than 50 rows."""
        check_enough(rows)
        values, confidence = self.answer(rows)
        counts = self._count(rows, values, confidence)
        words = compare_words(*(sharing_none(each)[:_COMPARED] for each in (self._rows, rows)))
        bins = [0] * len(rows) if confidence is None else confidence.tolist()
        return replace(counts, words=words), self.spell(values), bins


def _binned(values: NDArray[Any], bins: int) -> list[int]:
    return [int(rows) for rows in np.bincount(values, minlength=bins)]


def read_counts(path: Path) -> Aggregates | None:
    """Read a file of counts; None if it is a file of rows. DataError if a value is damaged."""
    if path.suffix != ".json" or path.stat().st_size >= _MOST_COUNTS:
        return None
    values = disk.read_json(path)
    if len(values.keys() & {field.name for field in fields(Aggregates)}) < _FEWEST_FIELDS:
        return None
    try:
        return Aggregates(**values)
    except ValidationError as error:
        raise _no_counts({str(entry["loc"][0]) for entry in error.errors()}) from error


def check_counts(counts: Aggregates, reference: Reference) -> None:
    """Raise DataError if counts that were read from a file cannot be of a sample that the model of
    `reference` answered."""
    before = reference.counts
    if counts.model != before.model:
        raise DataError(
            "The counts are of another model: {model}.", "Count the file again.", model=counts.model
        )
    known = {*(reference.names or map(str, range(-1, SCORE_BINS + 1)))}
    answers = {*counts.answers}
    if reference.names and not reference.confusion:  # several labels are joined
        known, answers = ({"", *", ".join(texts).split(", ")} for texts in (known, answers))
    right = {
        "rows": counts.rows <= MOST,
        "answers": answers <= known and _adds_up(counts.answers.values(), counts.rows),
        "parts": all(0 < part <= 1 for part in counts.parts.values()),
        "words": all(0 <= number <= 1 for number in counts.words or ()),
    }
    for name in ("confidence", "lengths", "unknown"):
        found, expected = getattr(counts, name), getattr(before, name)
        right[name] = len(found) == len(expected) and (not found or _adds_up(found, counts.rows))
    if wrong := [name for name, is_right in right.items() if not is_right]:
        raise _no_counts(wrong)
    if counts.rows < FEWEST:
        raise DataError(
            "The counts are of {n} rows, too few to compare.",
            "Bring at least {least} of them.", n=counts.rows, least=FEWEST,
        )  # fmt: skip


def _adds_up(counts: Collection[int], rows: int) -> bool:
    return min(counts, default=0) >= 0 and sum(counts) == rows


def _no_counts(wrong: Collection[str]) -> DataError:
    return DataError(
        "These are no counts of a file: {wrong} cannot be right.", "Count the file again.",
        wrong=some(sorted(wrong), 3),
    )  # fmt: skip


def compare_words(
    reference: Sequence[SampledRow], file: Sequence[SampledRow]
) -> tuple[float, float] | None:
    """Test whether the words of a file (TF-IDF) tell its rows from others. Returns the AUC and the
    p value; None if no row has a word, or if either are fewer than 50."""
    if min(len(reference), len(file)) < FEWEST:
        return None
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import TfidfVectorizer

    columns = sentences_of([*reference, *file])
    vectorizer = TfidfVectorizer(token_pattern=_WORD, sublinear_tf=True)
    try:
        vectorizer.fit([text for column in columns for text in column])
    except ValueError:  # the vocabulary is empty
        return None
    features = hstack([vectorizer.transform(column) for column in columns]).tocsr()
    similarity = (features @ features.T).toarray() / len(columns)
    test = label_free.classifier_test(similarity, np.arange(len(similarity)) >= len(reference))
    return test.distance, test.p


def look(
    run: Run, scorer: Scorer, request: PredictionRequest, rows: Sequence[SampledRow]
) -> dict[str, Any]:
    """Judge a sample of a file that is being predicted. DataError if there are too few rows, or the
    run's validation pairs were not kept.

    Returns:
        As JSON values: what is `judged`, the `reference`, the file's `counts`, and if an answer is
        one class, 100 random rows `to_label`: each a `ShownRow` with its confidence's bin.
    """
    check_enough(rows)
    monitor = Monitor(run, scorer, request.options)
    counts, answers, bins = monitor.count(rows)
    to_label: list[dict[str, Any]] = []
    if monitor.reference.confusion:
        for row, answer, confidence in zip(
            sharing_none(rows)[:TO_LABEL], answers, bins, strict=False
        ):
            texts = zip((request.sentence1, request.sentence2), row.sentences, strict=False)
            cells = {name: text for name, text in texts if name} | {PREDICTION: answer}
            shown = shortened(ShownRow(row=row.number, margin=None, unsure=False, cells=cells))
            to_label.append({**shown, "confidence": confidence})
    return {
        "judged": asdict(file_shift.judge(monitor.reference, counts)),
        "reference": asdict(monitor.reference), "counts": asdict(counts), "to_label": to_label,
    }  # fmt: skip


def monitor_file(
    run: Run, path: Path, request: PredictionRequest, labels: Path | None = None
) -> tuple[Monitoring, Aggregates]:
    """Judge if a run's model still holds on a file, and count the file. DataError if there are too
    few rows, or the run's validation pairs were not kept.

    Args:
        path: the file, or the counts of one, as JSON.
        request: its columns and reading; guessed where it leaves them open.
        labels: a file of the same columns with random rows of it and their labels.
    """
    from finetune.inference import files
    from finetune.inference.scorer import Scorer

    def checked(file: Path) -> PredictionRequest:
        asked = replace(request, file=file.name)
        return file_request.check_columns(asked, file, run.state().columns, run.config())

    counts, scorer = read_counts(path), Scorer.of_run(run)
    monitor = Monitor(run, scorer, request.options)
    if counts is not None:
        check_counts(counts, monitor.reference)
    else:
        sample, asked = Sample(run), checked(path)
        for window in files.windows(table_formats.open_table(path, asked.file, asked), asked):
            sample.add(window)
        counts = monitor.count(sample.rows())[0]
    judged = file_shift.judge(monitor.reference, counts)
    if labels is not None:
        read = files.read_labelled(labels, checked(labels), monitor.target, empty_is_none=False)
        sample = Sample(run)
        sample.add_texts(read.sentences, range(len(read.truth)))
        rows = sharing_none(sample.rows())
        given = read.truth[[row.number for row in rows]]
        values, bins = monitor.answer(rows) if rows else (given, None)
        spelled = monitor.spell(given), monitor.spell(values)
        confidence = [] if bins is None else bins.tolist()
        judged = file_shift.with_labels(judged, monitor.reference, counts, *spelled, confidence)
    return judged, counts
