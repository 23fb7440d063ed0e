"""The Hugging Face course's MRPC loop, written out straight: what `Loop.fit` must equal. Of other
tasks the loss is the one that transformers computes for their `problem_type`.

Nothing of ours is imported here. Source of the method:
https://huggingface.co/learn/llm-course/chapter3/4
"""

import numpy as np
import torch
import transformers
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.optim import AdamW
from torch.utils.data import DataLoader


def train(checkpoint, splits, *, epochs=2, batch_size=8, rate=1e-3, seed=7, **head):
    """Losses step by step, the final logits of the validation split, and the final weights. The
    defaults are those of the toys' configuration."""
    accelerator = Accelerator(cpu=True)
    set_seed(seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(checkpoint, **head)
    texts = [name for name in splits["train"].column_names if name != "label"]

    def tokenize_function(example):
        return tokenizer(*(example[name] for name in texts), truncation=True)

    tokenized = splits.map(tokenize_function, batched=True)
    tokenized = tokenized.remove_columns(texts)
    tokenized = tokenized.rename_column("label", "labels")
    tokenized.set_format("torch")
    collator = transformers.DataCollatorWithPadding(tokenizer=tokenizer)
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
    lr_scheduler = transformers.get_scheduler(
        "linear", optimizer, num_warmup_steps=0, num_training_steps=total
    )
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
    logits = []
    for batch in eval_dataloader:
        with torch.no_grad():
            logits.append(model(**batch).logits.numpy())
    return losses, np.concatenate(logits), model.state_dict()
