"""Repeats one training run: `pip install -r requirements.txt`, then `python train.py`.

config.json says what the run was; the same machine and libraries give the same losses. In bf16 and
fp16 they begin alike and drift apart, since what is computed in another order is rounded otherwise.
Source of the loop: https://huggingface.co/learn/llm-course/chapter3/4
"""

import copy
import importlib
import json
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import datasets
import evaluate
import numpy as np
import torch
import transformers
from accelerate import Accelerator
from accelerate.utils import set_seed
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader, RandomSampler, Sampler
from transformers.trainer_pt_utils import LengthGroupedSampler

HERE = Path(__file__).resolve().parent
config = SimpleNamespace(**json.loads((HERE / "config.json").read_text(encoding="utf-8")))
if config.not_repeated:
    raise SystemExit(f"This script does not repeat a run with {config.not_repeated}.")
accumulated = config.gradient_accumulation_steps
accelerator = Accelerator(
    cpu=config.cpu, mixed_precision=config.mixed_precision, gradient_accumulation_steps=accumulated
)
set_seed(config.seed, deterministic=config.deterministic)  # the new head's weights, and dropout

# 1. The rows as tokens
tokenizer = transformers.AutoTokenizer.from_pretrained(
    HERE / "model", model_max_length=config.max_length
)
splits = datasets.load_dataset(str(HERE / "data")).rename_column("label", "labels")
sentences = [name for name in ("sentence1", "sentence2") if name in splits["train"].column_names]
tokenized = splits.map(
    lambda rows: tokenizer(*(rows[name] for name in sentences), truncation=True),
    batched=True,
    remove_columns=sentences,
)

# 2. The model with a new head, and what the run froze or added
checkpoint = config.checkpoint
if config.checkpoint_package:  # which has the weights in it
    checkpoint = files(config.checkpoint_package) / "model"
head = config.head  # of the checkpoint's own outputs, those that ours are made of, if there are any
kept = {"num_labels": len(head["known"])} if head["rows"] else {}
model = transformers.AutoModelForSequenceClassification.from_pretrained(
    checkpoint,
    config=transformers.AutoConfig.from_pretrained(HERE / "model", **kept),
    ignore_mismatched_sizes=True,
    dtype="float32",
    use_safetensors=True,
    attn_implementation=config.attn_implementation,
)
if head["rows"]:
    layer, rows = model.get_submodule(head["layer"]), head["rows"]
    scale = torch.tensor(head["scale"] or [1.0] * len(rows))
    shift = torch.tensor(head["shift"] or [0.0] * len(rows))
    fitted = torch.nn.utils.skip_init(
        torch.nn.Linear, layer.in_features, len(rows), layer.bias is not None
    )
    with torch.no_grad():
        fitted.weight.copy_(scale[:, None] * layer.weight[rows])
        if layer.bias is not None:
            fitted.bias.copy_(scale * layer.bias[rows] + shift)
    model.set_submodule(head["layer"], fitted)
    model.config = transformers.AutoConfig.from_pretrained(HERE / "model")
    model.num_labels = len(rows)
elif head["known"]:  # a classifier of other classes
    with torch.no_grad():
        for weights in model.get_submodule(head["layer"]).parameters():
            if weights.ndim > 1:
                torch.nn.init.normal_(weights, std=getattr(model.config, "initializer_range", 0.02))
            else:
                torch.nn.init.zeros_(weights)


class Output(torch.nn.Linear):
    """The last layer, in fp32: of a score, bf16 would leave a few different values."""

    def forward(self, states):
        with torch.autocast(states.device.type, enabled=False):
            return torch.nn.functional.linear(states.float(), self.weight, self.bias)


if head["layer"]:
    model.get_submodule(head["layer"]).__class__ = Output
if config.use_lora:  # the layers outside the pretrained encoder are new, and trained whole
    outside = [name for name, layer in model.named_children() if list(layer.parameters())]
    outside.remove(model.base_model_prefix)
    lora = LoraConfig(
        task_type="SEQ_CLS",
        r=config.lora_r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules="all-linear",
        modules_to_save=outside,
    )
    model = get_peft_model(model, lora)
elif config.freeze_embeddings:
    model.get_input_embeddings().requires_grad_(False)

# 3. Batches, optimizer, schedule and loss
collator = transformers.DataCollatorWithPadding(
    tokenizer, pad_to_multiple_of=config.pad_to_multiple_of
)
order = torch.Generator().manual_seed(config.seed)
size, rows = config.per_device_train_batch_size, len(tokenized["train"])
if config.either_order:  # the second half has the texts of the first in the other order
    rows //= 2
sampler = RandomSampler(range(rows), generator=order)
if config.group_by_length:  # less padding
    lengths = [len(tokens) for tokens in tokenized["train"][:rows]["input_ids"]]
    sampler = LengthGroupedSampler(size, lengths=lengths, generator=order)


class EitherOrder(Sampler):
    """The rows of a sampler, each in one order or the other, drawn anew in each epoch."""

    def __init__(self, given):
        self.given, self.generator = given, order

    def __len__(self):
        return rows

    def __iter__(self):
        given = torch.tensor(list(self.given))
        return iter((given + rows * torch.randint(0, 2, (rows,), generator=order)).tolist())


sampler = EitherOrder(sampler) if config.either_order else sampler
train = DataLoader(tokenized["train"], size, sampler=sampler, collate_fn=collator, generator=order)
size, own = config.per_device_eval_batch_size, torch.Generator()  # dropout has the global one
validation = DataLoader(tokenized["validation"], size, collate_fn=collator, generator=own)
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
decay = config.weight_decay if config.decay_biases_and_norms else 0.0
groups = [
    {"params": [parameter for parameter in trained if parameter.ndim >= 2]},
    {"params": [parameter for parameter in trained if parameter.ndim < 2], "weight_decay": decay},
]
fused = config.optim == "adamw_torch_fused"
betas = config.adam_beta1, config.adam_beta2
optimizer = torch.optim.AdamW(
    groups,
    lr=config.learning_rate,
    betas=betas,
    eps=config.adam_epsilon,
    weight_decay=config.weight_decay,
    fused=fused,
)
scheduler = transformers.get_scheduler(
    config.lr_scheduler_type, optimizer, config.warmup_steps, config.total_steps
)
model, optimizer, train, validation, scheduler = accelerator.prepare(
    model, optimizer, train, validation, scheduler
)

# What the task makes of logits: answers, the loss of a batch, and the plain loss
if config.problem_type == "regression":
    answer, kind = lambda logits: logits[:, 0], datasets.Value("float32")
    loss_of = plain_loss_of = lambda logits, labels: torch.nn.functional.mse_loss(
        logits[:, 0], labels
    )
elif config.problem_type == "multi_label_classification":
    answer, kind = lambda logits: (logits >= 0).long(), datasets.List(datasets.Value("int64"))
    loss_of = plain_loss_of = torch.nn.functional.binary_cross_entropy_with_logits
else:
    answer, kind = lambda logits: logits.argmax(dim=-1), datasets.Value("int64")
    weights = torch.tensor(config.class_weights, device=accelerator.device)
    loss_of = torch.nn.CrossEntropyLoss(weights, label_smoothing=config.label_smoothing_factor)
    plain_loss_of = torch.nn.functional.cross_entropy


class Scores(evaluate.Metric):
    """Scores of scikit-learn and SciPy as a module of `evaluate`, which needs no network."""

    def _info(self):
        features = datasets.Features({"predictions": kind, "references": kind})
        return evaluate.MetricInfo(description="", citation="", features=features)

    def _compute(self, predictions, references):
        references, predictions = (np.asarray(each, float) for each in (references, predictions))
        scores = {}
        for name, (function, options) in config.scores.items():
            module, _, function = function.rpartition(".")
            compute = getattr(importlib.import_module(module), function)
            found = compute(references, predictions, **options)
            scores[name] = float(getattr(found, "statistic", found))
        return scores


metric = evaluate.load("glue", config.glue) if config.glue else Scores(keep_in_memory=True)


def score():
    """The metric, and the mean loss, on the validation rows."""
    model.eval()
    outputs = []
    for batch in validation:
        with torch.no_grad():
            logits = model(**batch).logits.float()
        logits, references = accelerator.gather_for_metrics((logits, batch["labels"]))
        metric.add_batch(predictions=answer(logits), references=references.to(answer(logits).dtype))
        outputs.append((logits.cpu(), references.cpu()))
    logits, labels = (torch.cat(parts) for parts in zip(*outputs, strict=True))
    labels = labels.double() if labels.is_floating_point() else labels
    loss = plain_loss_of(logits.double(), labels).item()
    return {**metric.compute(), "loss": loss}


def save():
    """Keep the model as it is in best/."""
    saved = accelerator.unwrap_model(model)
    saved = copy.deepcopy(saved).merge_and_unload() if config.use_lora else saved
    saved.save_pretrained(HERE / "best")
    tokenizer.save_pretrained(HERE / "best")


# 4. The loop. A printed loss is the mean since the one before; the best model is kept in best/.
step, best, best_rank, losses = 0, None, None, []
print(f"step 0: validation {score()}", flush=True)
by = config.metric_for_best_model
sign = -1 if by in ("loss", *config.lower_is_better) else 1
while step < config.steps:
    for index, batch in enumerate(train):
        model.train()
        with accelerator.accumulate(model):
            loss = loss_of(model(**batch).logits.float(), batch["labels"])
            # An epoch's last step may have fewer batches; Accelerate divides by `accumulated`.
            batches = min(accumulated, len(train) - index // accumulated * accumulated)
            accelerator.backward(loss * (accumulated / batches))
            if accelerator.sync_gradients and config.max_grad_norm > 0:
                accelerator.clip_grad_norm_(model.parameters(), config.max_grad_norm)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        if not accelerator.sync_gradients:
            continue
        step += 1
        if step in (1, config.total_steps) or step % config.logging_steps == 0:
            print(f"step {step}: loss {sum(losses) / len(losses):.7f}", flush=True)
            losses = []
        if step % config.eval_steps == 0 or step == config.total_steps:
            scores, losses = score(), []
            print(f"step {step}: validation {scores}", flush=True)
            rank = sign * scores[by], -scores["loss"]  # of equal scores the lower loss
            if best is None or rank > best_rank:
                best, best_rank = {"step": step, **scores}, rank
                save()
        if step == config.steps:
            break
if best is None:  # the run was stopped before its first evaluation
    save()
print("best:", best)
