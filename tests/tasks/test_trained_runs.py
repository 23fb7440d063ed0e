"""Runs of each task: trained as `Trainer` does, their scores are of their saved answers, and
transformers loads the models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from datasets import DatasetDict
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    pipeline,
)

from finetune.config import RunConfig
from finetune.evaluation import report, saved_predictions
from finetune.inference import decision_rule, file_request, files
from finetune.inference.file_request import PredictionRequest
from finetune.inference.scorer import Scorer
from finetune.metrics.example_metrics import conformal_margin
from finetune.runs.summary import ColumnNames
from finetune.tasks.base import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from finetune.tasks.registry import task_of
from tests.support import toy_runs, uploads
from tests.support.graded import LABELS, graded_rows, labelled_rows
from tests.support.judging import judged, write_csv
from tests.support.toy_runs import ToyRuns
from tests.support.training import evaluations, fit, losses

FUNCTIONS = {SINGLE_LABEL: "softmax", REGRESSION: "none", MULTI_LABEL: "sigmoid"}


@pytest.mark.parametrize("kind", toy_runs.KINDS)
def test_a_model_answers_alike_by_itself(kind: str, trained: ToyRuns, tmp_path: Path) -> None:
    """As transformers loads it, as a `CrossEncoder` reads it, and as its run was evaluated."""
    run = toy_runs.runs_by_name(trained.store(tmp_path / "runs"))[kind]
    state = run.state()
    assert state.prepared is not None
    assert state.best is not None
    target, study = state.prepared.target, report.evaluate_run(run, state)
    for name, score in study.analysis.scores.items():
        assert score.value == pytest.approx(state.best.metrics[name], abs=1e-6)
        assert score.low <= score.value <= score.high
    assert all(measured for measured in state.baselines.values())
    model = AutoModelForSequenceClassification.from_pretrained(run.best)
    ask = pipeline(
        "text-classification", top_k=None, function_to_apply=FUNCTIONS[target.task], model=model,
        tokenizer=AutoTokenizer.from_pretrained(run.best),
    )  # fmt: skip
    assert study.table is not None
    rows = study.table.to_pylist()[:20]
    inputs: list[dict[str, Any]] = [
        {"text": row["sentence1"]} | ({"text_pair": row["sentence2"]} if "sentence2" in row else {})
        for row in rows
    ]
    logits = saved_predictions.read_logits(run, state.best.step, target).logits[:20]
    answers = task_of(target).answers(logits, target)
    expected = answers.probabilities if target.names else answers.values[:, None]
    for row, values in zip(ask(inputs), expected.tolist(), strict=True):
        found = {one["label"]: one["score"] for one in row}
        names = target.names or tuple(model.config.id2label.values())
        assert found == pytest.approx(dict(zip(names, values, strict=True)), abs=2e-3)
    assert Scorer(run.best, 32).target == target
    if target.task == REGRESSION:  # no sigmoid behind the only output
        activation = {"activation_fn": "torch.nn.modules.linear.Identity"}
        assert model.config.sentence_transformers == activation
        margin = conformal_margin(study.answers - study.truth)
        assert decision_rule.read_rule(run.best).margin == pytest.approx(margin, rel=1e-5)


def test_a_file_with_a_column_for_each_label_is_measured_as_one_with_lists(
    trained: ToyRuns, tmp_path: Path
) -> None:
    """A row whose cells say neither yes nor no is left out."""
    run = toy_runs.runs_by_name(trained.store(tmp_path / "runs"))[toy_runs.LABELS]
    given, names = labelled_rows(24, 2), " | ".join(LABELS)
    marks = [(text, *(int(name in cell.split(";")) for name in LABELS)) for text, cell in given]
    rows = [("text", *LABELS), *marks, (given[0][0], "likes", 0, 1)]
    file = write_csv(tmp_path / "columns.csv", [tuple(map(str, row)) for row in rows])
    columns = ColumnNames("text", "", names)
    asked = file_request.check_columns(PredictionRequest(run.id, file.name, ""), file, columns)
    assert (asked.sentence1, asked.label) == ("text", names)
    by_columns, _whole = files.predict_file(run, asked, file, tmp_path / "out.csv")
    file = write_csv(tmp_path / "lists.csv", [("sentence1", "label"), *given])
    by_lists = judged(run, file, tmp_path / "out.csv", ColumnNames("sentence1", "", "label"))
    assert by_columns["scores"] == by_lists["scores"]
    assert (by_columns["labelled"], by_columns["unknown_labels"]) == (len(given), 1)


# Of a task the columns, the rows, the number of outputs and the metric that chooses.
TASKS: dict[str, tuple[str, Any, int, str]] = {
    REGRESSION: ("sentence1,sentence2,score", graded_rows, 1, "pearson"),
    MULTI_LABEL: ("text,labels", labelled_rows, 3, "micro_f1"),
}


EPOCHS, BATCH, RATE, SEED = 2, 8, 1e-3, 7  # those of the toys' configuration


def train(
    checkpoint: str, splits: DatasetDict, folder: Path, outputs: int, problem_type: str
) -> tuple[list[float], np.ndarray[Any, Any], dict[str, torch.Tensor]]:
    """Losses step by step, the final logits of the validation split, and the final weights."""
    torch.manual_seed(SEED)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForSequenceClassification.from_pretrained(
        checkpoint, num_labels=outputs, problem_type=problem_type, ignore_mismatched_sizes=True
    )

    def tokenize(rows: dict[str, Any]) -> Any:
        texts = [rows[name] for name in ("sentence1", "sentence2") if name in rows]
        return tokenizer(*texts, truncation=True)

    texts = [name for name in splits["train"].column_names if name != "label"]
    tokenized = splits.map(tokenize, batched=True, remove_columns=texts)
    losses: list[float] = []

    class InOrder(Trainer):  # type: ignore[misc]
        def training_step(self, *values: Any, **options: Any) -> Any:
            loss = super().training_step(*values, **options)
            losses.append(float(loss))  # what it logs is rounded
            return loss

        def get_train_dataloader(self) -> Any:
            order = torch.Generator().manual_seed(SEED)
            batches = DataLoader(
                tokenized["train"], BATCH, shuffle=True, generator=order,
                collate_fn=self.data_collator,
            )  # fmt: skip
            return self.accelerator.prepare(batches)

    arguments = TrainingArguments(
        output_dir=str(folder), num_train_epochs=EPOCHS, learning_rate=RATE, seed=SEED,
        per_device_train_batch_size=BATCH, weight_decay=0.01, adam_beta2=0.999,
        adam_epsilon=1e-8, max_grad_norm=0.0, lr_scheduler_type="linear", optim="adamw_torch",
        accelerator_config={"use_seedable_sampler": False}, use_cpu=True, save_strategy="no",
        report_to="none", disable_tqdm=True,
    )  # fmt: skip
    trainer = InOrder(model, arguments, DataCollatorWithPadding(tokenizer), tokenized["train"])
    trainer.train()
    logits = trainer.predict(tokenized["validation"]).predictions
    return losses, np.asarray(logits), model.state_dict()


@pytest.mark.parametrize("task", TASKS)
def test_it_trains_as_the_trainer_does(
    task: str, toy_config: RunConfig, still_checkpoint: Path, tmp_path: Path
) -> None:
    head, rows, outputs, metric = TASKS[task]
    pairs = uploads.pairs(tmp_path, head, train=rows(64), validation=rows(24, 1))
    config = toy_config.changed(
        checkpoint=str(still_checkpoint), metric_for_best_model=metric,
        decay_biases_and_norms=False,
    )  # fmt: skip
    happened, model = fit(config, pairs)
    expected, logits, weights = train(
        str(still_checkpoint), pairs.splits, tmp_path, outputs, problem_type=task
    )
    assert losses(happened) == pytest.approx(expected, abs=1e-5)
    for name, value in model.state_dict().items():
        assert torch.allclose(value, weights[name], atol=1e-5), name
    truth, final = np.array(pairs.splits["validation"]["label"]), evaluations(happened)[-1].metrics
    if task == REGRESSION:
        answers = logits[:, 0]
        metrics = {
            "pearson": scipy.stats.pearsonr(answers, truth).statistic,
            "spearmanr": scipy.stats.spearmanr(answers, truth).statistic,
            "mae": np.abs(answers - truth).mean(),
            "rmse": np.sqrt(((answers - truth) ** 2).mean()),
            "loss": ((answers - truth) ** 2).mean(),
        }
    else:
        loss = torch.nn.functional.binary_cross_entropy_with_logits
        off = (logits > 0) != (truth > 0)
        metrics = {
            "hamming_loss": off.mean(),
            "subset_accuracy": (~off).all(axis=1).mean(),
            "loss": float(loss(torch.tensor(logits), torch.tensor(truth))),
        }
    assert {name: final[name] for name in metrics} == pytest.approx(metrics, abs=1e-4)
