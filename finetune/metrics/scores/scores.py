"""The metrics of this project as an `evaluate` module with one configuration per metric.

    evaluate.load("finetune/metrics/scores", "f1").compute(predictions=[0, 1], references=[1, 1])

`positive` is the index of the positive one of two classes (1 by default). `classes` is the number
of classes (by default one more than the largest index, and at least 2). A metric computed from
probabilities takes them as `prediction_scores`. Metrics of several labels take 0 or 1 for each.
"""

from typing import Any

import datasets
import evaluate
import numpy as np

from finetune.metrics import catalog


class Scores(evaluate.Metric):
    """The metric named by the configuration."""

    def __init__(self, positive: int = 1, classes: int = 0, **options: Any) -> None:
        self._positive, self._classes = positive, classes
        super().__init__(**options)

    def _info(self) -> evaluate.MetricInfo:
        metric = catalog.ALL[self.config_name]
        number = datasets.Value("float32" if metric.kind == "score" else "int64")
        answer = datasets.List(number) if metric.kind == "labels" else number
        scores = datasets.List(datasets.Value("float32"))
        ranked = metric.of_probabilities is not None
        predicted = {"prediction_scores": scores} if ranked else {"predictions": answer}
        return evaluate.MetricInfo(
            description=__doc__,
            citation="",
            inputs_description=__doc__,
            features=datasets.Features(predicted | {"references": answer}),
            format="numpy" if predicted == {"predictions": number} else None,
        )

    def _compute(
        self, references: Any, predictions: Any = None, prediction_scores: Any = None
    ) -> dict[str, float]:
        metric = catalog.ALL[self.config_name]
        labels = np.array(references)
        if metric.of_probabilities is not None:
            scores = np.array(prediction_scores, np.float32)
            meant = self._positive if scores.shape[1] == 2 else None
            return {metric.name: metric.of_probabilities(scores, labels, meant)}
        answers, meant = np.array(predictions), None
        if metric.kind == "classes":
            classes = self._classes or max(2, 1 + int(max(labels.max(), answers.max())))
            meant = self._positive if classes == 2 else None
        return catalog.scores(answers, labels, [metric], meant)
