"""transformers' `Trainer` on the pairs of a run: what our loop must equal for a `problem_type`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
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


def train(
    checkpoint: str,
    splits: DatasetDict,
    folder: Path,
    *,
    outputs: int,
    problem_type: str,
    epochs: int,
    batch_size: int,
    rate: float,
    seed: int,
) -> tuple[list[float], np.ndarray[Any, Any], dict[str, torch.Tensor]]:
    """Losses step by step, the final logits of the validation split, and the final weights."""
    torch.manual_seed(seed)
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
            order = torch.Generator().manual_seed(seed)
            batches = DataLoader(
                tokenized["train"], batch_size, shuffle=True, generator=order,
                collate_fn=self.data_collator,
            )  # fmt: skip
            return self.accelerator.prepare(batches)

    arguments = TrainingArguments(
        output_dir=str(folder), num_train_epochs=epochs, learning_rate=rate, seed=seed,
        per_device_train_batch_size=batch_size, weight_decay=0.01, adam_beta2=0.999,
        adam_epsilon=1e-8, max_grad_norm=0.0, lr_scheduler_type="linear", optim="adamw_torch",
        accelerator_config={"use_seedable_sampler": False}, use_cpu=True, save_strategy="no",
        report_to="none", disable_tqdm=True,
    )  # fmt: skip
    trainer = InOrder(model, arguments, DataCollatorWithPadding(tokenizer), tokenized["train"])
    trainer.train()
    logits = trainer.predict(tokenized["validation"]).predictions
    return losses, np.asarray(logits), model.state_dict()
