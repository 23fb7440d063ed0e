"""Repeats one training run: `pip install -r requirements.txt`, then `python train.py`.

Every value comes from config.json beside this file; README.txt says what the run was. The loop is
that of the Hugging Face course: https://huggingface.co/learn/llm-course/chapter3/4
"""

import copy
import importlib.util
import json
import os
from pathlib import Path
from types import SimpleNamespace

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from datasets import load_dataset
from sklearn.metrics import accuracy_score, f1_score
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
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # which deterministic runs need
accumulated = config.gradient_accumulation_steps
accelerator = Accelerator(
    cpu=config.cpu,
    mixed_precision=config.mixed_precision,
    gradient_accumulation_steps=accumulated,
)
set_seed(config.seed, deterministic=config.deterministic)  # the new head's weights, and dropout

# 1. The pairs as tokens. A checkpoint that is a Python package is found without being imported.
checkpoint = config.checkpoint
if config.checkpoint_package:
    package = importlib.util.find_spec(config.checkpoint_package)
    checkpoint = Path(package.submodule_search_locations[0]) / "model"
tokenizer = AutoTokenizer.from_pretrained(checkpoint)
if tokenizer.pad_token is None:  # decoders have none
    tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
files = {split: str(HERE / "pairs" / f"{split}.parquet") for split in ("train", "validation")}
pairs = load_dataset("parquet", data_files=files).rename_column("label", "labels")
sentences = [name for name in ("sentence1", "sentence2") if name in pairs["train"].column_names]
tokenized = pairs.map(
    lambda rows: tokenizer(
        *(rows[name] for name in sentences), truncation=True, max_length=config.max_length
    ),
    batched=True,
    remove_columns=sentences,
).with_format("torch")

# 2. The model with a new head, and what the run froze or added.
settings = AutoConfig.from_pretrained(
    checkpoint,
    id2label=dict(enumerate(config.labels)),
    label2id={label: number for number, label in enumerate(config.labels)},
    problem_type="single_label_classification",
)
if getattr(settings, "pad_token_id", None) is None:
    settings.pad_token_id = tokenizer.pad_token_id
for name, value in list(vars(settings).items()):
    number = value is None or (isinstance(value, (int, float)) and value is not True)
    if config.dropout >= 0 and number and ("dropout" in name or name.endswith("pdrop")):
        setattr(settings, name, config.dropout)
model = AutoModelForSequenceClassification.from_pretrained(
    checkpoint,
    config=settings,
    ignore_mismatched_sizes=True,
    dtype="float32",
    use_safetensors=True,
    attn_implementation=config.attn_implementation,
)
if config.use_lora:
    from peft import LoraConfig, get_peft_model

    parts = model.named_children()  # those outside the pretrained encoder are trained whole
    head = [n for n, part in parts if n != model.base_model_prefix and list(part.parameters())]
    lora = LoraConfig(
        task_type="SEQ_CLS",
        modules_to_save=head,
        target_modules=config.lora_target_modules,
        r=config.lora_r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
    )
    model = get_peft_model(model, lora)
elif config.freeze_embeddings or config.frozen_layers:
    model.get_input_embeddings().requires_grad_(False)
if config.frozen_layers:
    stacks = [part for part in model.modules() if isinstance(part, torch.nn.ModuleList)]
    layers = next(part for part in stacks if len(part) == model.config.num_hidden_layers)
    layers[: config.frozen_layers].requires_grad_(False)

# 3. Batches, optimizer and schedule. Of several processes, each took a part of these batches.
collator = DataCollatorWithPadding(
    tokenizer, config.padding, config.max_length, config.pad_to_multiple_of
)
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
still = torch.Generator().manual_seed(config.seed)  # evaluation draws nothing from dropout's
validation_loader = DataLoader(
    tokenized["validation"], config.per_device_eval_batch_size, collate_fn=collator, generator=still
)
trained = [p for p in model.parameters() if p.requires_grad]
decay = config.weight_decay if config.decay_biases_and_norms else 0.0
groups = [
    {"params": [p for p in trained if p.ndim >= 2]},
    {"params": [p for p in trained if p.ndim < 2], "weight_decay": decay},
]
optimizer = torch.optim.AdamW(
    groups,
    lr=config.learning_rate,
    betas=(config.adam_beta1, config.adam_beta2),
    eps=config.adam_epsilon,
    weight_decay=config.weight_decay,
    fused=config.optim == "adamw_torch_fused",
)
model, optimizer, train_loader, validation_loader = accelerator.prepare(
    model, optimizer, train_loader, validation_loader
)
scheduler = get_scheduler(
    config.lr_scheduler_type,
    optimizer,
    config.warmup_steps,
    config.total_steps,
    scheduler_specific_kwargs=config.scheduler_arguments,
)
plateau = config.lr_scheduler_type == "reduce_lr_on_plateau"
class_weights = None
if config.class_weights == "balanced":  # each class counts by its rarity
    counts = torch.bincount(torch.tensor(pairs["train"]["labels"]), minlength=len(config.labels))
    class_weights = (counts.sum() / (len(counts) * counts)).to(accelerator.device)


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


# 4. The loop. A printed loss is the mean since the one before; the best model is kept in best/.
step, best, losses = 0, None, []
metric = config.metric_for_best_model
sign = -1 if metric == "loss" else 1
while step < config.steps:
    for index, batch in enumerate(train_loader):
        model.train()
        with accelerator.accumulate(model):
            logits = model(**batch).logits.float()
            loss = cross_entropy(
                logits,
                batch["labels"],
                class_weights,
                label_smoothing=config.label_smoothing_factor,
            )
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
        if step in (1, config.total_steps) or step % config.logging_steps == 0:
            print(f"step {step}: loss {(sum(losses) / len(losses)).item():.7f}", flush=True)
            losses = []
        if step % config.eval_steps == 0 or step == config.total_steps:
            scores, losses = evaluate(), []
            print(f"step {step}: validation {scores}", flush=True)
            if best is None or sign * scores[metric] > sign * best[metric]:
                best = {"step": step, **scores}
                saved = accelerator.unwrap_model(model)
                saved = copy.deepcopy(saved).merge_and_unload() if config.use_lora else saved
                saved.save_pretrained(HERE / "best")
                tokenizer.save_pretrained(HERE / "best")
            if plateau:
                scheduler.step(scores["loss"])
        if step == config.steps:
            break
print("best:", best)
