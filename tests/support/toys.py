"""Toy checkpoints and toy pairs: a transformer of two layers learns them in seconds."""

import csv
import random
import shutil
import string

from finetune.config import RunConfig
from finetune.data import splits as data
from finetune.data.sources import LABELS
from finetune.runs import events
from finetune.uploads import Uploads

ANIMALS = ["cat", "dog", "owl", "fox", "hen", "bee", "ant", "cow"]
VERBS = ["sees", "hears", "follows", "likes", "finds", "helps"]
CONTRARY = ["misses", "loses", "fears", "leaves"]
# Any other text is spelt.
LETTERS = [
    *string.ascii_lowercase[1:],
    *string.digits,
    *",!?'-:;()$%/&",
    *(f"##{letter}" for letter in string.ascii_lowercase + string.digits),
]
LISTED = ["hears", "likes", "sees"]  # verbs that are labels
WORDS = ["the", "a", ".", *ANIMALS, *VERBS, *CONTRARY]


def rows(count, seed=0):
    """Pairs whose second sentence says the same, or has a contrary verb: soon learned."""
    draw = random.Random(seed)
    pairs = []
    for _ in range(count):
        first, second = draw.sample(ANIMALS, 2)
        verb, same = draw.choice(VERBS), draw.random() < 0.6
        other = verb if same else draw.choice(CONTRARY)
        sentences = f"the {first} {verb} a {second} .", f"a {first} {other} the {second} ."
        pairs.append((*sentences, int(same)))
    return pairs


def graded_rows(count, seed=0):
    """Pairs whose score, from 0 to 5, is lower for each word that differs."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        animals, verb = draw.sample(ANIMALS, 2), draw.choice(VERBS)
        kept = draw.randrange(4)  # of the three words
        words = [animals[0], verb, animals[1]]
        others = [draw.choice(ANIMALS), draw.choice(CONTRARY), draw.choice(ANIMALS)]
        changed = [*words[:kept], *others[kept:]]
        same = sum(a == b for a, b in zip(words, changed, strict=True))
        score = round(5 * same / 3 + draw.uniform(-0.2, 0.2), 2)
        first, second = (f"the {a} {b} a {c} ." for a, b, c in (words, changed))
        rows.append((first, second, min(5.0, max(0.0, score))))
    return rows


def labelled_rows(count, seed=0, mark=";"):
    """Texts, and those of their verbs that are labels; some have none."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        verbs = draw.sample([*LISTED, "finds", "helps"], draw.choice([1, 2, 2]))
        text = " . ".join(f"the {draw.choice(ANIMALS)} {verb} a fox" for verb in verbs)
        rows.append((text, mark.join(sorted(set(verbs) & set(LISTED)))))
    return rows


def write_pairs(folder, train=64, validation=24):
    """A folder of one CSV a split."""
    folder.mkdir(parents=True, exist_ok=True)
    counts = {"train": train, "validation": validation, "test": 8}
    for seed, (name, count) in enumerate(counts.items()):
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["sentence1", "sentence2", "label"])
            writer.writerows(rows(count, seed))
    return folder


def load(folder, **values):
    """The pairs of such a folder, read as an upload is; what is kept lies beside them."""
    splits = {path.stem: path for path in folder.glob("*.csv")}
    name = Uploads(folder / "kept" / "uploads").add(splits)
    return data.load_pairs(RunConfig(dataset=name).changed(**values), folder / "kept")


def story():
    """The events of a run of eight steps, from its start to its end."""
    return [
        events.Started(device="CPU (2 threads)", versions={"torch": "2.13.0"}),
        events.Prepared(
            train_examples=64, validation_examples=24, steps_per_epoch=8, total_steps=8,
            labels=["not_equivalent", "equivalent"], parameters=1000, precision="no",
            per_device_train_batch_size=8, learning_rate=4.9e-5,
            majority={"accuracy": 0.6, "f1": 0.75},
        ),
        *(
            events.Stepped(step=n, epoch=n / 8, loss=1 / n, learning_rate=1e-5,
                           samples_per_second=10.0)
            for n in range(1, 9)
        ),
        events.Evaluated(step=8, epoch=1.0, metrics={"accuracy": 0.7, "f1": 0.8, "loss": 0.5},
                         seconds=0.1, best=True),
        events.Saved(step=8),
        events.Finished(step=8, seconds=3.0),
    ]  # fmt: skip


def write_checkpoint(folder, dropout=0.1):
    """A BERT of two layers and hidden size 32 with its tokenizer, as `from_pretrained` reads it."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    torch.manual_seed(0)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: index for index, word in enumerate([*special, *WORDS])}
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes = {**small, "intermediate_size": 64, "max_position_embeddings": 64}
    rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), dropout)
    names = dict(enumerate(LABELS))
    config = BertConfig(vocab_size=len(vocabulary), id2label=names, **sizes, **rates)
    classifier = BertForSequenceClassification(config)
    # What it does with the toys' own words is the same with letters and without.
    vocabulary |= {piece: len(vocabulary) + at for at, piece in enumerate(LETTERS)}
    classifier.resize_token_embeddings(len(vocabulary), mean_resizing=False)
    classifier.save_pretrained(folder)
    BertTokenizer(vocab=vocabulary).save_pretrained(folder)
    return folder


def overwrite(folder, change):
    """Change the saved weights of a model, by their names."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def copy_model(checkpoint, best):
    """A saved model where a finished run has it."""
    shutil.copytree(checkpoint, best)


def finished_run(store, checkpoint, name="toy run"):
    """A run of a store that has ended, with a toy checkpoint as its model."""
    run = store.create(RunConfig(max_length=32, name=name))
    for event in story():
        run.append(event)
    copy_model(checkpoint, run.best)
    return run
