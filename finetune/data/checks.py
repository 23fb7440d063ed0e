"""What is wrong with pairs, found before a minute of training is spent on them.

Counts are made on hashes and Arrow batches, so a million rows take seconds and little memory;
texts are read for the examples only. Knows no page; what a finding is, is `report`'s business.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from finetune import hub_errors
from finetune.config import NO_COLUMN, RunConfig
from finetune.data import checkpoints, dataset_cache, sources, splits, token_lengths
from finetune.data.check_report import (
    CheckReport,
    Example,
    Finding,
    Severity,
    SplitSummary,
    TokenLengths,
)
from finetune.data.dataset_cache import CachedDataset, RowHashes
from finetune.data.labels import positive_class
from finetune.data.splits import SplitRows
from finetune.errors import ConfigError, DataError, ModelError, some
from finetune.metrics import classification, intervals
from finetune.text_hashes import Integers

MAX_EXAMPLES = 5  # examples of a finding
TOKENISED = 10_000  # rows whose lengths are measured
KNOWN = 1000  # rows of which it is seen whether the tokenizer knows them
RARE = 10  # rows; a class with fewer in train is called rare
SHORT = 200  # characters of a sentence in an example
# How far the 95% interval of an accuracy of one half may reach to either side. Above 0.1 (fewer
# than 93 pairs) a good model and a constant answer can score the same; above 0.06 (fewer than 263)
# two models that differ by a whole preset can. The 372 bundled pairs and MRPC's 408 are at 0.05.
UNSURE, UNSETTLED = 0.1, 0.06
# How much of the way from even classes to a single one: 0 for 50/50, 1 for 100/0, whatever the
# number of classes. MRPC's 68/32 is 0.35: normal, but accuracy alone flatters. From 90/10 on, 0.8,
# accuracy says next to nothing, and a model may learn to answer one class.
UNEVEN, LOPSIDED = 0.3, 0.8

# Looked for in every sentence; RE2's syntax.
_PATTERNS: tuple[tuple[str, Severity, str, str, str], ...] = (
    (
        "encoding",
        "warns",
        r"\x{FFFD}|\x{00C3}[\x{0080}-\x{00BF}]|\x{00E2}\x{20AC}|\x{00C2}[\x{00A0}-\x{00BF}]",
        "Sentences with signs of a wrong encoding, such as \u00c3\u00a9 for \u00e9",
        "They are used as they are; save the file as UTF-8 to mend them.",
    ),
    (
        "control",
        "warns",
        r"[\x00-\x08\x0B\x0C\x0E-\x1F\x7F]",
        "Sentences with control characters",
        "They are used as they are; most tokenizers drop such characters.",
    ),
    (
        "invisible",
        "notes",
        r"[\x{200B}\x{2060}\x{FEFF}\x{00AD}\x{202A}-\x{202E}]",
        "Sentences with invisible characters",
        "They are used as they are; sentences that differ in these only count as equal.",
    ),
    (
        "markup",
        "notes",
        r"<[a-zA-Z/!][^<>]*>|&(amp|lt|gt|quot|nbsp|#\d+);",
        "Sentences with HTML in them",
        "They are used as they are, and shown as text; the model learns the tags too.",
    ),
    (
        "placeholder",
        "warns",
        r"^\s*(?i:nan|null|none|n/a|#n/a|undefined|\?+|-+)\s*$",
        "Sentences that look like a placeholder for a missing one",
        "They are used as they are; empty the cells to have the rows left out.",
    ),
    (
        "wordless",
        "notes",
        r"^[\s\d.,:;/+\-%$\x{20AC}()]+$",
        "Sentences of digits and signs only, such as numbers or dates",
        "They are used as they are; check that the columns are the right ones.",
    ),
)

ProgressCallback = Callable[
    [str, int, int], None
]  # what is being done, how far, of how many (0: unknown)


def check_pairs(
    config: RunConfig,
    root: Path,
    told: ProgressCallback = lambda what, done, total: None,
    partly: Callable[[CheckReport], None] = lambda report: None,
) -> CheckReport:
    """Read what a configuration asks for and say what is wrong with it.

    What cannot be trained on is a finding that blocks; so is a source whose columns are unclear.

    Args:
        root: as for `data.load`.
        told: called now and then.
        partly: given all that needs no tokenizer, before one is loaded.

    Raises:
        DataError: when there is nothing to examine: no such source, or it cannot be opened.
    """
    began = time.monotonic()
    try:
        corpus = dataset_cache.read_dataset(
            config, root, lambda split, rows: told(f"reading {split}", rows, 0)
        )
    except DataError as error:
        return _unread(config, root, error)
    told("counting classes, duplicates and leaks", 0, 0)
    known = {split: corpus.keys(split) for split in corpus.rows}
    plain = splits.assign_rows(
        corpus, config.changed(drop_duplicates=False, drop_leaked=False), known
    )
    drops = config.drop_duplicates or config.drop_leaked
    arranged = splits.assign_rows(corpus, config, known) if drops else plain
    findings = [*_found(corpus, known, plain, config)]
    findings += _texts(corpus, told)
    try:
        positive = positive_class(corpus.labels, config.positive_label)
    except DataError as error:
        findings.append(Finding("positive", "blocks", error.fact, 0, error.remedy))
        positive = min(1, len(corpus.labels) - 1)
    findings += [
        Finding("impossible", "blocks", text, 0, "Training is not possible with these rows.")
        for text in arranged.blocks
    ]
    blocked = any(one.severity == "blocks" for one in findings)
    counts = splits.class_counts(corpus, known, arranged)
    majority = {}
    if not blocked:
        commonest = int(np.argmax(counts["train"]))
        majority = classification.constant_answer_scores(counts["validation"], commonest, positive)
    found = CheckReport(
        source=corpus.source,
        revision=corpus.revision,
        corpus=corpus.folder.name,
        choices=corpus.choices,
        columns=asdict(corpus.columns),
        labels=corpus.labels,
        positive_label=corpus.labels[positive] if corpus.labels else "",
        read=corpus.rows,
        splits=[_facts(arranged, counts, name) for name in arranged.rows],
        majority=majority,
        lengths=TokenLengths(note="They are measured once the tokenizer is loaded."),
        findings=_gravest_first(findings),
        notes=corpus.notes,
        fingerprint="" if blocked else splits.fingerprint(corpus, known, arranged, positive),
        seconds=time.monotonic() - began,
    )
    partly(found)
    findings += _too_long(config)
    try:
        lengths = _lengths(corpus, arranged, config, told)
    except ModelError as error:
        lengths = TokenLengths(note=f"The lengths are missing. {error.fact}")
        findings.append(Finding("tokenizer", "blocks", error.fact, 0, error.remedy))
    return replace(
        found,
        lengths=lengths,
        findings=_gravest_first([*findings, *_cut(lengths)]),
        seconds=time.monotonic() - began,
    )


def _gravest_first(findings: list[Finding]) -> list[Finding]:
    grave = {"blocks": 0, "warns": 1, "notes": 2}
    return sorted(findings, key=lambda finding: grave[finding.severity])


def _unread(config: RunConfig, root: Path, error: DataError) -> CheckReport:
    """A report of a source that was opened, but whose columns are not clear.

    Raises:
        DataError: the same, when not even its columns are known.
    """
    try:
        source = sources.open_source(config, root)
    except DataError:
        raise error from None
    guessed = sources.guess_columns(list(source.columns))
    return CheckReport(
        source=source.name,
        revision=source.revision,
        choices=source.columns,
        columns=dict(zip(("sentence1", "sentence2", "label"), guessed, strict=True)),
        findings=[Finding("columns", "blocks", error.fact, 0, error.remedy)],
        notes=source.notes,
    )


# -- findings on hashes --------------------------------------------------------------------------


def _found(
    corpus: CachedDataset, known: dict[str, RowHashes], plain: SplitRows, config: RunConfig
) -> Iterator[Finding]:
    yield from _unreadable(corpus)
    yield from _alone(corpus, config)
    yield from _missing(corpus, known)
    yield from _leaks(corpus, known, plain, config)
    yield from _conflicts(corpus, known, plain)
    yield from _duplicates(corpus, known, plain, config)
    yield from _identical(corpus, known, plain)
    yield from _classes(corpus, known, plain, config)
    yield from _small(plain)


def _alone(corpus: CachedDataset, config: RunConfig) -> Iterator[Finding]:
    """Nobody said that these are no pairs, and a column is left that may be the other sentence."""
    used = (corpus.columns.sentence1, corpus.columns.label)
    rest = [name for name, why in corpus.choices.items() if not why and name not in used]
    if not corpus.paired and not config.sentence2_column and rest:
        yield Finding(
            "single", "notes", f"Single sentences: only {corpus.columns.sentence1!r} is read.", 0,
            f"Not read: {some(rest)}. Where one of these is the other sentence of a pair, choose "
            f"it as sentence2_column; else choose {NO_COLUMN}.",
        )  # fmt: skip


def _unreadable(corpus: CachedDataset) -> Iterator[Finding]:
    if count := sum(corpus.unreadable.values()):
        rows = [
            Example(split, line, note=reason)
            for split, examples in corpus.examples.items()
            for line, reason in examples
        ]
        yield Finding(
            "unreadable",
            "warns",
            "Rows that could not be read",
            count,
            "They are left out; mend those lines and upload the file again to have them.",
            rows[: dataset_cache.MAX_EXAMPLES],
        )


def _missing(corpus: CachedDataset, known: dict[str, RowHashes]) -> Iterator[Finding]:
    empty = {split: ~splits.complete_rows(corpus, keys) for split, keys in known.items()}
    yield from _masked(
        corpus, known, empty, "empty", "warns", "Rows with an empty or missing sentence",
        "They are left out.",
    )  # fmt: skip
    bare = {split: ~empty[split] & (keys.label < 0) for split, keys in known.items()}
    held_out = {split: mask for split, mask in bare.items() if not mask.all() or split == "train"}
    yield from _masked(
        corpus, known, held_out, "unlabelled", "warns", "Rows without a label",
        "They are left out.",
    )  # fmt: skip
    for split in bare.keys() - held_out.keys():
        if count := int(bare[split].sum()):
            yield Finding(
                "unlabelled-split", "notes", f"The split {split} has no labels at all", count,
                "It is not used, for nothing can be scored on it.",
            )  # fmt: skip


def _duplicates(
    corpus: CachedDataset, known: dict[str, RowHashes], plain: SplitRows, config: RunConfig
) -> Iterator[Finding]:
    again: dict[str, NDArray[np.bool_]] = {}
    for _, (split, rows) in plain.rows.items():
        _, first = np.unique(splits.ordered_hashes(known[split])[rows], return_index=True)
        later = np.ones(len(rows), bool)
        later[first] = False
        mask = again.setdefault(split, np.zeros(len(known[split]), bool))
        mask[rows[later]] = True
    done = "The later ones are left out." if config.drop_duplicates else (
        "They are kept and count more than once; drop_duplicates leaves the later ones out."
    )  # fmt: skip
    yield from _masked(
        corpus, known, again, "duplicates", "warns",
        "Rows that repeat an earlier pair of their split", done,
    )  # fmt: skip


def _leaks(
    corpus: CachedDataset, known: dict[str, RowHashes], plain: SplitRows, config: RunConfig
) -> Iterator[Finding]:
    """Training rows that stand in a held-out split: exactly, after `normal`, or swapped."""
    train, rows = known[plain.rows["train"][0]], plain.rows["train"][1]
    done = "They are left out of train." if config.drop_leaked else (
        "They are kept, and the score will flatter the model; drop_leaked leaves them out of train."
    )  # fmt: skip
    for name, (origin, others) in plain.rows.items():
        if name == "train" or not len(others) or not len(rows):
            continue
        held = known[origin]
        exact = np.isin(train.exact[rows], held.exact[others])
        same = (
            np.isin(splits.ordered_hashes(train)[rows], splits.ordered_hashes(held)[others])
            & ~exact
        )
        either = np.isin(
            splits.unordered_hashes(train)[rows], splits.unordered_hashes(held)[others]
        )
        swapped = either & ~exact & ~same
        for kind, found in (("exact", exact), ("normalised", same), ("swapped", swapped)):
            how = {
                "exact": "exactly",
                "normalised": "but for case, white space or punctuation at the ends",
                "swapped": "with the sentences in the other order",
            }[kind]
            mask = np.zeros(len(train), bool)
            mask[rows[found]] = True
            yield from _masked(
                corpus, known, {plain.rows["train"][0]: mask}, f"leakage-{kind}", "warns",
                f"Leakage: training rows that stand in {name} too, {how}", done,
            )  # fmt: skip


def _conflicts(
    corpus: CachedDataset, known: dict[str, RowHashes], plain: SplitRows
) -> Iterator[Finding]:
    """Rows whose pair has another label elsewhere, in any split."""
    parts = [(split, rows) for split, rows in plain.rows.values()]
    pairs = np.concatenate([splits.ordered_hashes(known[split])[rows] for split, rows in parts])
    labels = np.concatenate([known[split].label[rows] for split, rows in parts])
    if not len(pairs):
        return
    _, group = np.unique(pairs, return_inverse=True)
    low = np.full(group.max() + 1, np.iinfo(np.int64).max)
    high = np.full(group.max() + 1, -1)
    np.minimum.at(low, group, labels)
    np.maximum.at(high, group, labels)
    wrong = (low != high)[group]
    masks = {split: np.zeros(len(keys), bool) for split, keys in known.items()}
    start = 0
    for split, rows in parts:
        masks[split][rows[wrong[start : start + len(rows)]]] = True
        start += len(rows)
    yield from _masked(
        corpus, known, masks, "conflicts", "warns",
        "Rows whose pair has another label elsewhere",
        "They are kept; one of the labels is wrong, and no model can learn both. Of equal pairs "
        "in a split drop_duplicates keeps the first.",
        near=np.concatenate([splits.ordered_hashes(known[split]) for split in known]),
    )  # fmt: skip


def _identical(
    corpus: CachedDataset, known: dict[str, RowHashes], plain: SplitRows
) -> Iterator[Finding]:
    if not corpus.paired:
        return
    masks = {split: np.zeros(len(keys), bool) for split, keys in known.items()}
    for split, rows in plain.rows.values():
        keys = known[split]
        masks[split][rows[(keys.first == keys.second)[rows]]] = True
    yield from _masked(
        corpus, known, masks, "identical", "notes",
        "Pairs of a sentence with itself",
        "They are kept; they teach little.",
    )  # fmt: skip


def _classes(
    corpus: CachedDataset, known: dict[str, RowHashes], plain: SplitRows, config: RunConfig
) -> Iterator[Finding]:
    counts = {
        name: np.bincount(known[split].label[rows], minlength=len(corpus.labels))
        for name, (split, rows) in plain.rows.items()
    }
    train = counts["train"]
    rare = [label for label in range(len(train)) if 0 < train[label] < RARE]
    if rare and train.sum() > 2 * RARE:
        named = some([f"{corpus.labels[label]} ({train[label]})" for label in rare])
        yield Finding(
            "rare", "warns", f"Classes with fewer than {RARE} training rows: {named}",
            int(train[rare].sum()), "They are kept, but hardly learned: add rows, or merge them.",
        )  # fmt: skip
    for name, found in counts.items():
        absent = [corpus.labels[label] for label in np.flatnonzero(found == 0)]
        if absent and found.sum() and np.count_nonzero(train) > 1:
            what = "never learned" if name == "train" else "never scored"
            yield Finding(
                f"absent-{name}", "warns",
                f"Classes without a row in {name}: {some(absent)}", len(absent),
                f"They are {what}; add rows, or choose another {name} split.",
            )  # fmt: skip
    yield from _balance(corpus, counts["train"], counts["validation"], config)
    if 0 < train.sum() < 100:
        yield Finding(
            "few", "warns", f"Only {train.sum()} training rows", int(train.sum()),
            "A few hundred are the least from which a model learns something that lasts.",
        )  # fmt: skip


def _balance(
    corpus: CachedDataset, train: Integers, validation: Integers, config: RunConfig
) -> Iterator[Finding]:
    """Whether one class is so common that accuracy flatters; what a constant answer scores."""
    classes, rows = len(corpus.labels), int(train.sum())
    if classes < 2 or np.count_nonzero(train) < 2 or not validation.sum():
        return
    most = int(train.argmax())
    share = train[most] / rows
    uneven = (share - 1 / classes) / (1 - 1 / classes)
    if uneven < UNEVEN:
        return
    with contextlib.suppress(DataError):  # it is a finding of its own
        positive = positive_class(corpus.labels, config.positive_label)
        scores = classification.constant_answer_scores(validation.tolist(), most, positive)
        mean = "F1" if classes == 2 else "macro F1"
        advice = f"F1 of {corpus.labels[positive]!r} and MCC tell more than accuracy."
        if classes > 2:
            advice = "Macro F1 and MCC tell more than accuracy."
        elif positive == most:
            advice = (
                "MCC tells more than accuracy and this F1; so does the F1 of the rarer class, "
                "which positive_label can ask for."
            )
        if uneven >= LOPSIDED:
            advice += " class_weights can be set to balanced, or rows of the rarer added."
        yield Finding(
            "balance", "warns" if uneven >= LOPSIDED else "notes",
            f"Classes out of balance: {share:.1%} of the training rows are {corpus.labels[most]!r}",
            int(train[most]),
            f"Always answering that scores accuracy {scores['accuracy']:.3f}, {mean} "
            f"{scores['f1']:.3f} and MCC 0 on validation. {advice}",
        )  # fmt: skip


def _small(plain: SplitRows) -> Iterator[Finding]:
    """Whether validation is too small to tell one model from another."""
    _, rows = plain.rows["validation"]
    if not len(rows):
        return
    found = intervals.wilson_interval(len(rows) // 2, len(rows))
    reach = (found.high - found.low) / 2
    if reach > UNSETTLED:
        yield Finding(
            "few-validation", "warns" if reach > UNSURE else "notes",
            f"Only {len(rows)} validation rows: they tell accuracy to "
            f"\u00b1{100 * reach:.0f} points",
            len(rows),
            "That is half the 95% interval of an accuracy near 0.5; scores that differ by less "
            "tell nothing. Bring more validation rows, or raise validation_share where they are "
            "cut from train.",
        )  # fmt: skip


def _masked(
    corpus: CachedDataset,
    known: dict[str, RowHashes],
    masks: dict[str, NDArray[np.bool_]],
    kind: str,
    severity: Severity,
    title: str,
    action: str,
    near: Integers | None = None,
) -> Iterator[Finding]:
    """A finding on the rows of some masks; none where they are empty.

    Args:
        near: one number a row over all splits; examples with the same number stand together.
    """
    count = sum(int(mask.sum()) for mask in masks.values())
    if not count:
        return
    at = [(split, int(row)) for split, mask in masks.items() for row in np.flatnonzero(mask)[:200]]
    if near is not None:
        starts = dict(zip(known, np.cumsum([0, *map(len, known.values())]), strict=False))
        at.sort(key=lambda one: int(near[starts[one[0]] + one[1]]))
    yield Finding(kind, severity, title, count, action, _examples(corpus, at[:MAX_EXAMPLES]))


def _examples(corpus: CachedDataset, at: Sequence[tuple[str, int]]) -> list[Example]:
    shown = []
    for split, row in at:
        found = corpus.split(split)[row]
        label = int(found["label"])
        shown.append(
            Example(
                split=split,
                line=int(found["line"]),
                sentence1=_short(found["sentence1"]),
                sentence2=_short(found.get("sentence2")),
                label=corpus.labels[label] if label >= 0 else "",
            )
        )
    return shown


def _short(text: str | None) -> str:
    text = text or ""
    return text if len(text) <= SHORT else text[: SHORT - 1] + "\u2026"


# -- findings on texts ---------------------------------------------------------------------------


def _texts(corpus: CachedDataset, told: ProgressCallback) -> Iterator[Finding]:
    """Findings of `_PATTERNS`, in one pass over the Arrow batches."""
    counts = [0] * len(_PATTERNS)
    at: list[list[tuple[str, int]]] = [[] for _ in _PATTERNS]
    total = sum(corpus.rows.values())
    done = 0
    for split in corpus.rows:
        start = 0
        for batch in corpus.batches(split):
            for index, (_, _, pattern, _, _) in enumerate(_PATTERNS):
                found = _matches(batch, corpus.paired, pattern)
                if len(found):
                    counts[index] += len(found)
                    if len(at[index]) < MAX_EXAMPLES:
                        at[index] += [(split, start + int(row)) for row in found[:MAX_EXAMPLES]]
            start += len(batch)
            done += len(batch)
            told("looking at the texts", done, total)
    for index, (kind, severity, _, title, action) in enumerate(_PATTERNS):
        if counts[index]:
            examples = _examples(corpus, at[index][:MAX_EXAMPLES])
            yield Finding(kind, severity, title, counts[index], action, examples)


def _matches(batch: pa.RecordBatch, paired: bool, pattern: str) -> Integers:
    found = pc.match_substring_regex(batch.column("sentence1"), pattern)
    if paired:
        other = pc.match_substring_regex(batch.column("sentence2"), pattern)
        found = pc.or_(found.fill_null(False), other.fill_null(False))
    return np.flatnonzero(found.fill_null(False).to_numpy(zero_copy_only=False))


# -- lengths -------------------------------------------------------------------------------------


def _lengths(
    corpus: CachedDataset, arranged: SplitRows, config: RunConfig, told: ProgressCallback
) -> TokenLengths:
    """Lengths in tokens of the training rows, or of a random part of them; why there are none
    where the tokenizer is not to be had, for all else holds without.

    Raises:
        ModelError: when there is a tokenizer, and it does not know the text.
    """
    split, rows = arranged.rows["train"]
    if not len(rows):
        return TokenLengths(note="There is no row to measure.")
    told("loading the tokenizer", 0, 0)
    try:
        tokenizer = _tokenizer(config.checkpoint)
    except Exception as error:  # the libraries raise whatever their readers do
        return TokenLengths(note=_no_tokenizer(config.checkpoint, error))
    checkpoints.check_tokenizer(config.checkpoint, tokenizer)
    told("measuring lengths in tokens", 0, 0)
    taken = rows
    if len(rows) > TOKENISED:
        draw = np.random.default_rng(config.data_seed)
        taken = np.sort(draw.choice(rows, TOKENISED, replace=False))
    lengths, looked_at, every = [], [], -(-len(taken) // KNOWN)
    for row, ids in enumerate(_token_ids(corpus, split, taken, tokenizer)):
        lengths.append(len(ids))
        if row % every == 0:
            looked_at.append(ids)
    checkpoints.check_known(config.checkpoint, tokenizer, looked_at)
    found = np.array(lengths, np.int64)
    return TokenLengths(
        bins=token_lengths.length_histogram(found),
        rows=len(taken),
        of=len(rows),
        longest=int(found.max()),
        max_length=config.max_length,
        cut=float((found > config.max_length).mean()),
    )


def _no_tokenizer(checkpoint: str, error: Exception) -> str:
    """Why there are no lengths, and what to do."""
    if checkpoints.local_folder(checkpoint) is None and sources.is_offline():
        return (
            f"The lengths are missing, for the tokenizer of {checkpoint} is not on this disk and "
            "the Hub does not answer: choose another checkpoint under Train, or press Examine "
            "again when it does."
        )
    known = hub_errors.explained("checkpoint", checkpoint, error)
    reason = (known.fact if known else hub_errors.first_line(error))[:200].rstrip(".")
    return (
        f"The lengths are missing, for the tokenizer of {checkpoint} cannot be loaded ({reason}): "
        "choose another checkpoint under Train, and press Examine again."
    )


def _tokenizer(checkpoint: str) -> Any:
    from transformers import AutoTokenizer

    source = checkpoints.resolve_checkpoint(checkpoint)
    return hub_errors.retried(lambda: AutoTokenizer.from_pretrained(source))


def _token_ids(
    corpus: CachedDataset, split: str, rows: Integers, tokenizer: Any
) -> Iterator[list[int]]:
    most = 100_000  # characters; a longer one is beyond any model anyway
    for batch in corpus.some(split, rows):
        sentences = [
            [text[:most] for text in batch.column(name).to_pylist()]
            for name in (("sentence1", "sentence2") if corpus.paired else ("sentence1",))
        ]
        yield from tokenizer(*sentences, truncation=False, verbose=False)["input_ids"]


def _cut(lengths: TokenLengths) -> Iterator[Finding]:
    if lengths.cut > 0:
        count = round(lengths.cut * lengths.of)
        yield Finding(
            "cut", "warns" if lengths.cut > 0.05 else "notes",
            f"Rows longer than max_length ({lengths.max_length} tokens): {lengths.cut:.1%}", count,
            f"Their ends are cut off; the longest has {lengths.longest} tokens.",
        )  # fmt: skip


def _too_long(config: RunConfig) -> Iterator[Finding]:
    try:
        checkpoints.check_length(config.checkpoint, config.max_length)
    except ConfigError as error:
        yield Finding("too_long", "blocks", error.fact, 0, "Training would fail at a long row.")


# -- the splits ----------------------------------------------------------------------------------


def _facts(arranged: SplitRows, counts: dict[str, list[int]], name: str) -> SplitSummary:
    origin, rows = arranged.rows[name]
    return SplitSummary(name, origin, len(rows), counts[name], arranged.left_out.get(name, {}))
