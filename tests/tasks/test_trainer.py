"""Scores and several labels are trained as transformers' `Trainer` trains a `problem_type`."""

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
)

from finetune.config import RunConfig
from finetune.tasks.base import MULTI_LABEL, REGRESSION
from tests.support import uploads
from tests.support.graded import graded_rows, labelled_rows
from tests.support.training import evaluations, fit, losses

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
