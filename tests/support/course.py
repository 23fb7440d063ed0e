"""The Hugging Face course's MRPC loop, written out straight: what `loop.fit` must equal.

Nothing of ours is imported here. Source of the method:
https://huggingface.co/learn/llm-course/chapter3/4
"""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from datasets import DatasetDict
from sklearn.metrics import accuracy_score, f1_score
from torch.optim import AdamW
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    get_scheduler,
)


def train(
    checkpoint: str, splits: DatasetDict, *, epochs: int, batch_size: int, rate: float, seed: int
) -> tuple[list[float], dict[str, float], dict[str, torch.Tensor]]:
    """Losses step by step, the final accuracy and F1, and the final weights."""
    accelerator = Accelerator(cpu=True)
    set_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForSequenceClassification.from_pretrained(checkpoint, num_labels=2)

    def tokenize_function(example: dict[str, Any]) -> Any:
        return tokenizer(example["sentence1"], example["sentence2"], truncation=True)

    tokenized = splits.map(tokenize_function, batched=True)
    tokenized = tokenized.remove_columns(["sentence1", "sentence2"])
    tokenized = tokenized.rename_column("label", "labels")
    tokenized.set_format("torch")
    collator = DataCollatorWithPadding(tokenizer=tokenizer)
    order = torch.Generator().manual_seed(seed)
    train_dataloader = DataLoader(
        tokenized["train"], batch_size, shuffle=True, collate_fn=collator, generator=order
    )
    eval_dataloader = DataLoader(
        tokenized["validation"], batch_size=batch_size, collate_fn=collator
    )
    optimizer = AdamW(model.parameters(), lr=rate)
    train_dataloader, eval_dataloader, model, optimizer = accelerator.prepare(
        train_dataloader, eval_dataloader, model, optimizer
    )
    total = epochs * len(train_dataloader)
    lr_scheduler = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=total)
    losses = []
    for _ in range(epochs):
        model.train()
        for batch in train_dataloader:
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    model.eval()
    predictions, references = [], []
    for batch in eval_dataloader:
        with torch.no_grad():
            outputs = model(**batch)
        predictions += outputs.logits.argmax(dim=-1).tolist()
        references += batch["labels"].tolist()
    accuracy, f1 = accuracy_score(references, predictions), f1_score(references, predictions)
    return losses, {"accuracy": accuracy, "f1": f1}, model.state_dict()
