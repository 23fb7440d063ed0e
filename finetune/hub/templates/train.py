"""Repeats one training run: `pip install -r requirements.txt`, then `python train.py`.

Every value comes from config.json beside this file; README.txt says what the run was. The loop is
that of the Hugging Face course: https://huggingface.co/learn/llm-course/chapter3/4
"""

import copy
import importlib.util
import json
import math
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from datasets import DatasetDict, concatenate_datasets, load_dataset
from sklearn.metrics import accuracy_score, f1_score
from sklearn.utils.class_weight import compute_class_weight
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    get_scheduler,
)
from transformers.trainer_pt_utils import LengthGroupedSampler

HERE = Path(__file__).resolve().parent
config = SimpleNamespace(**json.loads((HERE / "config.json").read_text(encoding="utf-8")))


def load_pairs():
    """The splits of the run, with the columns sentence1, perhaps sentence2, and label."""
    if not config.dataset:
        files = {split: str(HERE / "pairs" / f"{split}.parquet") for split in config.splits}
        return load_dataset("parquet", data_files=files)
    name, revision = config.dataset_config_name or None, config.dataset_revision
    source = load_dataset(config.dataset, name, revision=revision)
    pairs = DatasetDict({split: source[theirs] for split, theirs in config.splits.items()})
    pairs = pairs.select_columns(list(config.columns)).rename_columns(config.columns)
    if config.named_labels:  # which the dataset numbers itself
        return pairs
    numbers = {label.lower(): number for number, label in enumerate(config.labels)}

    def numbered(row):
        return {"number": numbers[str(row["label"]).strip().lower().removesuffix(".0")]}

    return pairs.map(numbered, remove_columns="label").rename_column("number", "label")


def build_model():
    """The classifier with a new head, and what the run froze, added or recomputed."""
    numbers = {label: number for number, label in enumerate(config.labels)}
    settings = AutoConfig.from_pretrained(
        checkpoint, id2label=dict(enumerate(config.labels)), label2id=numbers
    )
    settings.problem_type = "single_label_classification"
    if getattr(settings, "pad_token_id", None) is None:
        settings.pad_token_id = tokenizer.pad_token_id
    for name, value in list(vars(settings).items()):
        number = value is None or (isinstance(value, (int, float)) and value is not True)
        if config.dropout >= 0 and number and ("dropout" in name or name.endswith("pdrop")):
            setattr(settings, name, config.dropout)
    model = AutoModelForSequenceClassification.from_pretrained(
        checkpoint, config=settings, ignore_mismatched_sizes=True, **config.model
    )
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if config.lora:
        from peft import LoraConfig, get_peft_model

        parts = model.named_children()  # those outside the pretrained encoder are trained whole
        head = [n for n, part in parts if n != model.base_model_prefix and list(part.parameters())]
        lora = LoraConfig(task_type="SEQ_CLS", modules_to_save=head, **config.lora)
        return get_peft_model(model, lora)
    if config.freeze_embeddings or config.frozen_layers:
        model.get_input_embeddings().requires_grad_(False)
    if config.frozen_layers:
        stacks = [part for part in model.modules() if isinstance(part, torch.nn.ModuleList)]
        layers = next(part for part in stacks if len(part) == model.config.num_hidden_layers)
        layers[: config.frozen_layers].requires_grad_(False)
    return model


def training_loss(batch):
    """The model's own loss, unless classes are weighed or labels smoothed."""
    outputs, smoothing = model(**batch), config.label_smoothing_factor
    if class_weights is None and not smoothing:
        return outputs.loss
    return cross_entropy(
        outputs.logits.float(), batch["labels"], class_weights, label_smoothing=smoothing
    )


def evaluate():
    """Accuracy, F1 and the mean loss in nats on the validation split."""
    model.eval()
    logits, labels = [], []
    for batch in validation_loader:
        with torch.no_grad():
            logits.append(model(**batch).logits.float().cpu())
        labels.append(batch["labels"].cpu())
    logits, labels = torch.cat(logits), torch.cat(labels)
    answers = logits.argmax(dim=-1)
    return {
        "accuracy": float(accuracy_score(labels, answers)),
        "f1": float(f1_score(labels, answers, zero_division=0, **config.f1)),
        "loss": cross_entropy(logits.double(), labels).item(),
    }


# 1. The pairs.
if config.deterministic:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
accelerator = Accelerator(**config.accelerator)
set_seed(config.seed, deterministic=config.deterministic)  # the new head's weights, and dropout
pairs = load_pairs().rename_column("label", "labels")
sentences = [name for name in ("sentence1", "sentence2") if name in pairs["train"].column_names]
class_weights = None
if config.class_weights == "balanced":  # each class counts by its rarity
    every, labels = np.arange(len(config.labels)), np.asarray(pairs["train"]["labels"])
    weights = compute_class_weight("balanced", classes=every, y=labels)
    class_weights = torch.tensor(weights, dtype=torch.float32, device=accelerator.device)
if config.swap_augmentation:  # every pair in both orders
    swapped = pairs["train"].rename_columns({"sentence1": "sentence2", "sentence2": "sentence1"})
    swapped = swapped.select_columns(pairs["train"].column_names)
    pairs["train"] = concatenate_datasets([pairs["train"], swapped])

# 2. Tokens. A checkpoint that is a Python package is found without being imported.
checkpoint = config.checkpoint
if config.checkpoint_package:
    package = importlib.util.find_spec(config.checkpoint_package)
    checkpoint = Path(package.submodule_search_locations[0]) / "model"
tokenizer = AutoTokenizer.from_pretrained(checkpoint)
if tokenizer.pad_token is None:  # decoders have none
    tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token


def tokenize(rows):
    texts = [rows[name] for name in sentences]
    return tokenizer(*texts, truncation=True, max_length=config.max_length)


tokenized = pairs.map(tokenize, batched=True, remove_columns=sentences).with_format("torch")

# 3. Model, batches, optimizer. Evaluating draws no number that dropout would have drawn.
model = build_model()
collator = DataCollatorWithPadding(tokenizer, **config.padding)
order = torch.Generator().manual_seed(config.seed)
size, sampling = config.per_device_train_batch_size, {"shuffle": True}
if config.group_by_length:
    lengths = [len(ids) for ids in tokenized["train"].with_format(None)["input_ids"]]
    sampling = {"sampler": LengthGroupedSampler(size, lengths=lengths, generator=order)}
train_loader = DataLoader(
    tokenized["train"],
    size * config.num_processes,
    collate_fn=collator,
    generator=order,
    **sampling,
)
still = torch.Generator().manual_seed(config.seed)
validation_loader = DataLoader(
    tokenized["validation"], config.per_device_eval_batch_size, collate_fn=collator, generator=still
)
trained = [p for p in model.parameters() if p.requires_grad]
groups = [
    {"params": [p for p in trained if p.ndim >= 2]},
    {"params": [p for p in trained if p.ndim < 2], "weight_decay": config.weight_decay_of_biases},
]
optimizer = getattr(torch.optim, config.optimizer_class)(groups, **config.optimizer)
model, optimizer, train_loader, validation_loader = accelerator.prepare(
    model, optimizer, train_loader, validation_loader
)
accumulated = accelerator.gradient_accumulation_steps
steps_per_epoch = math.ceil(len(train_loader) / accumulated)
total = config.max_steps if config.max_steps > 0 else steps_per_epoch * config.num_train_epochs
scheduler = get_scheduler(optimizer=optimizer, num_training_steps=total, **config.scheduler)
plateau = config.scheduler["name"] == "reduce_lr_on_plateau"

# 4. The loop. A printed loss is the mean since the one before; the best model is kept in best/.
step, waited, best, losses = 0, 0, None, []
metric = config.metric_for_best_model
sign = -1 if metric == "loss" else 1
while step < total:
    for index, batch in enumerate(train_loader):
        model.train()
        with accelerator.accumulate(model):
            loss = training_loss(batch)
            # The last batches of an epoch may be fewer than are accumulated; it divides by all.
            together = min(accumulated, len(train_loader) - index // accumulated * accumulated)
            accelerator.backward(loss * (accumulated / together))
            if accelerator.sync_gradients and config.max_grad_norm > 0:
                accelerator.clip_grad_norm_(model.parameters(), config.max_grad_norm)
            optimizer.step()
            skipped = accelerator.optimizer_step_was_skipped  # by fp16, where it overflowed
            if accelerator.sync_gradients and not skipped and not plateau:
                scheduler.step()
            optimizer.zero_grad()
        losses.append(loss.detach().float())
        if not accelerator.sync_gradients:
            continue
        step += 1
        if step in (1, total) or step % config.logging_steps == 0:
            print(f"step {step}: loss {(sum(losses) / len(losses)).item():.7f}", flush=True)
            losses = []
        if step % (config.eval_steps or steps_per_epoch) == 0 or step == total:
            scores, losses = evaluate(), []
            print(f"step {step}: validation {scores}", flush=True)
            waited += 1
            if best is None or sign * scores[metric] > sign * best[metric]:
                best, waited = {"step": step, **scores}, 0
                kept = accelerator.unwrap_model(model)
                kept = copy.deepcopy(kept).merge_and_unload() if config.lora else kept
                kept.save_pretrained(HERE / "best")
                tokenizer.save_pretrained(HERE / "best")
            if plateau:
                scheduler.step(scores["loss"])
            if waited == config.early_stopping_patience > 0:
                total = step
        if step == total:
            break
print("best:", best)
