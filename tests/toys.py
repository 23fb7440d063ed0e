"""Toy checkpoints and toy pairs: a transformer of two layers learns them in seconds.

What lives here is small on purpose; nothing is downloaded and no sentence is anyone's.
"""

from __future__ import annotations

import csv
import random
from pathlib import Path

from finetune.data import LABELS

ANIMALS = ["cat", "dog", "owl", "fox", "hen", "bee", "ant", "cow"]
VERBS = ["sees", "hears", "follows", "likes", "finds", "helps"]
WORDS = ["the", "a", ".", *ANIMALS, *VERBS]


def rows(count: int, seed: int = 0) -> list[tuple[str, str, int]]:
    """Pairs that are equivalent when the same animal acts."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        first, second, verb = draw.choice(ANIMALS), draw.choice(ANIMALS), draw.choice(VERBS)
        same = draw.random() < 0.6
        other = first if same else draw.choice([a for a in ANIMALS if a != first])
        sentence1 = f"the {first} {verb} a {second} ."
        made.append((sentence1, f"a {other} {verb} the {second} .", int(same)))
    return made


def write_pairs(folder: Path, train: int = 64, validation: int = 24) -> Path:
    """A folder as `data.load_bundled` reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (name, count) in enumerate(
        [("train", train), ("validation", validation), ("test", 8)]
    ):
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["sentence1", "sentence2", "label"])
            writer.writerows(rows(count, seed))
    return folder


def write_checkpoint(folder: Path, dropout: float = 0.1, positions: int = 64) -> Path:
    """A BERT of two layers and hidden size 32 with its tokenizer, as `from_pretrained` reads it."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    torch.manual_seed(0)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: index for index, word in enumerate([*special, *WORDS])}
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=positions,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        id2label=dict(enumerate(LABELS)),
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    BertTokenizer(vocab=vocabulary).save_pretrained(folder)
    return folder
