"""Texts in tokens: their lengths, measured with all checks or estimated in a second for a form, how
well the tokenizer knows their language, and the cut of long ones."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from finetune.config import RunConfig
from finetune.data import checkpoint_catalog, checkpoint_files, checkpoints
from finetune.data.check_report import TokenLengths
from finetune.errors import FinetuneError, ModelError
from finetune.findings import Finding, Remedy
from finetune.messages import message as _

if TYPE_CHECKING:
    from finetune.data.splits import SplitRows

CHECKED_ROWS = 10_000
ESTIMATED_ROWS = 2500  # the share of rows that are cut is then known to 2 points
CHARACTERS = 2_000_000  # of all rows of an estimate, half a second's work
_LONGEST_CHECKED, _LONGEST_ESTIMATED = 100_000, 20_000  # characters of a sentence
_LOOKED_AT = 1000  # rows, and tokens of each, that are checked for unknown ones
_READ = 1000  # sentences whose words are looked at
_LARGEST_TOKENIZER = 30 * 2**20  # bytes
_estimates: dict[tuple[Path, Path], TokenLengths] = {}


def check_lengths(assigned: SplitRows, config: RunConfig) -> tuple[TokenLengths, Iterable[Finding]]:
    """Measure the training rows, or a random sample, with the checkpoint's tokenizer, and report
    how well it knows their language.

    If it cannot be loaded, the result is only a `note`. ModelError if it is empty."""
    from transformers import AutoTokenizer

    source_split, rows = assigned.rows["train"]
    if not len(rows):
        return TokenLengths(note=_("There is no row to measure.")), ()
    try:
        folder = checkpoint_files.fetch(config.checkpoint, weights=False)
        with checkpoint_files.open_files(folder, config.checkpoint) as files:
            tokenizer = files.load(AutoTokenizer)
    except FinetuneError as error:
        reason = error.fact[:200].rstrip(".")
        note = _(
            "The lengths are missing, because the tokenizer of {checkpoint} cannot be loaded "
            "({reason}): choose another checkpoint under Train, and press Examine again.",
            checkpoint=config.checkpoint,
            reason=reason,
        )
        return TokenLengths(note=note), ()
    checkpoints.check_tokenizer(config.checkpoint, tokenizer)
    sample = rows
    if len(rows) > CHECKED_ROWS:
        rng = np.random.default_rng(config.data_seed)
        sample = np.sort(rng.choice(rows, CHECKED_ROWS, replace=False))
    lengths: list[int] = []
    first: list[list[int]] = []
    read: list[str] = []  # of the first rows
    texts = assigned.dataset.texts(source_split).select(sample)
    for batch in texts.iter(checkpoints.rows_at_once(texts, _LONGEST_CHECKED)):
        sentences = [[text[:_LONGEST_CHECKED] for text in column] for column in batch.values()]
        token_ids = tokenizer(*sentences, truncation=False, verbose=False)["input_ids"]
        lengths += map(len, token_ids)
        if len(read) < _READ:
            read += [text[:_LOOKED_AT] for column in sentences for text in column]
        first += [ids[:_LOOKED_AT] for ids in token_ids[: _LOOKED_AT - len(first)]]
    measured = _summarize(lengths, len(rows), config.max_length)
    try:
        checkpoints.check_known(config.checkpoint, tokenizer, first)
    except ModelError as error:
        return measured, [unknown_text(error, read, config.checkpoint)]
    return measured, poor_fit(tokenizer, read, config.checkpoint)


def _summarize(tokens: Sequence[int], total: int, max_length: int = 0) -> TokenLengths:
    lengths = np.array(tokens)
    return TokenLengths(
        bins=length_histogram(lengths),
        rows=len(lengths),
        of=total,
        longest=int(lengths.max()),
        max_length=max_length,
        cut=float((lengths > max_length).mean()) if max_length else 0.0,
    )


def length_histogram(lengths: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Count lengths in about 24 bins: from, below, rows. The last bin takes the few far longer
    ones."""
    top = max(int(np.quantile(lengths, 0.995)), 1)
    width = max(1, -(-top // 24))
    counts = np.bincount(np.minimum(lengths // width, -(-top // width)))
    bins = [(i * width, (i + 1) * width, int(count)) for i, count in enumerate(counts)]
    low, _, count = bins[-1]
    bins[-1] = (low, max(low + width, int(lengths.max()) + 1), count)
    return bins


def tokenizer_file(checkpoint: str) -> Path | None:
    """The file of a checkpoint's tokenizer; None if it is not on this disk, or too large to be
    quick."""
    folder = checkpoints.local_folder(checkpoint)
    path = folder / "tokenizer.json" if folder else None
    return path if path and path.is_file() and path.stat().st_size <= _LARGEST_TOKENIZER else None


def cached_lengths(pairs: Path, tokenizer: Path) -> TokenLengths | None:
    """The estimate that `measure_lengths` made of these files, or None."""
    return _estimates.get((pairs, tokenizer))


def measure_lengths(pairs: Path, tokenizer: Path) -> TokenLengths:
    """Estimate the lengths from a random sample of rows, once in this process. If that fails, the
    result is only a `note`. `pairs` is a cached dataset's Arrow stream or the bundled CSV."""
    if (pairs, tokenizer) not in _estimates:
        try:
            lengths = _estimate(pairs, tokenizer)
        except Exception as error:  # the library's own
            reason = str(error)[:200]
            note = _("{tokenizer} cannot be used: {error}", tokenizer=tokenizer, error=reason)
            lengths = TokenLengths(note=note)
        _estimates[pairs, tokenizer] = lengths
    return _estimates[pairs, tokenizer]


def _estimate(pairs: Path, tokenizer_path: Path) -> TokenLengths:
    from tokenizers import Tokenizer

    if pairs.suffix == ".csv":
        table = pyarrow.csv.read_csv(pairs).select(["sentence1", "sentence2"])
    else:
        with pa.memory_map(str(pairs)) as file, pa.ipc.open_stream(file) as stream:
            table = stream.read_all()
    size = min(len(table), ESTIMATED_ROWS)
    sample = table.take(np.random.default_rng(0).choice(len(table), size, replace=False))
    texts = [
        tuple(text[:_LONGEST_ESTIMATED] for text in row.values())
        for row in sample.to_pylist()
        if all(row.values())
    ]
    if not texts:
        return TokenLengths(note=_("There is no row to measure."))
    characters = np.cumsum([sum(map(len, row)) for row in texts])
    texts = texts[: max(1, int(np.searchsorted(characters, CHARACTERS)))]
    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    encodings = tokenizer.encode_batch([row if len(row) > 1 else row[0] for row in texts])
    return _summarize([len(encoding.ids) for encoding in encodings], len(table))


# Letters with the vowel signs and accents that belong to them.
_WORD = re.compile(
    r"(?:[^\W\d_]|[\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0900-\u0dff\u0e31-\u0e4e"
    r"\u0eb1-\u0ecd\u0f71-\u0f84\u102b-\u109d\u17b4-\u17d3])+"
)
# Measured with BERT's English vocabulary: English news, interface texts and program code come to
# 1.1 to 1.3 pieces a word and 0.22 to 0.26 a letter, sentences full of names of drugs to 2.6 and
# 0.30; German to 1.9 and 0.37, Vietnamese to 1.7 and 0.57, Dutch and Italian to 2.4 and 0.41. Words
# alone would accuse the drugs, letters alone short words.
_LATIN_WORD, _LATIN_LETTER = 1.6, 0.34
# Other alphabets come to 1.0 if they are spelled, to 0.7 if their vowel signs are left out as well
# (Hindi), and to less than a half if they are known.
_ALPHABET_LETTER = 0.6
# Tokenizers made for Chinese take a piece a character; bytes of others make two or three of it.
_CHARACTER = 1.15
_SYLLABLES = {"CJK", "HANGUL", "HIRAGANA", "KATAKANA", "BOPOMOFO"}
_NO_SPACES = {"CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN"}
_UNKNOWN = 0.05  # share of the pieces
_FEWEST = 50  # letters; fewer tell no language
_ACTION = _(
    "It was made for another language, and learns little from such pieces. Choose one that knows "
    "yours, such as a multilingual one."
)


def poor_fit(tokenizer: Any, texts: Iterable[str], checkpoint: str) -> Iterator[Finding]:
    """Warn if a tokenizer of transformers does not know the language of texts, by the pieces into
    which it cuts their words, and offer a checkpoint that does. Digits and signs do not count."""
    rows = [words for text in texts if (words := _WORD.findall(text))]
    letters = [letter for words in rows for word in words for letter in word]
    if len(letters) < _FEWEST:
        return
    # Words in a row: what begins with a space is another piece to some tokenizers.
    ids = tokenizer([" ".join(words) for words in rows], add_special_tokens=False, verbose=False)
    pieces = Counter(piece for row in ids["input_ids"] for piece in row)
    total, script = max(1, pieces.total()), _commonest_script(letters)
    per_word, per_letter = total / sum(map(len, rows)), total / len(letters)
    unknown = pieces[tokenizer.unk_token_id] / total if tokenizer.unk_token_id is not None else 0.0
    is_poor = per_letter >= (_CHARACTER if script in _SYLLABLES else _ALPHABET_LETTER)
    if script == "LATIN":
        is_poor = per_word >= _LATIN_WORD and per_letter >= _LATIN_LETTER
    title = _("This model knows few of your words: {pieces:.1f} pieces each", pieces=per_word)
    if unknown >= _UNKNOWN:
        title = _("This checkpoint does not know {share:.0%} of your text", share=unknown)
    elif script in _NO_SPACES:
        title = _(
            "This model knows few of your characters: {pieces:.1f} pieces each", pieces=per_letter
        )
    if is_poor or unknown >= _UNKNOWN:
        yield Finding("language", "warns", title, _ACTION, remedies=_others(script, checkpoint))


def _commonest_script(letters: Iterable[str]) -> str:
    """The script of most letters, such as LATIN, as Unicode names its letters."""
    return max(Counter(map(_script, letters)).most_common(1), default=("?", 0))[0]


@cache
def _script(letter: str) -> str:
    return unicodedata.name(letter, "?").split(" ")[0]


def unknown_text(error: ModelError, texts: Iterable[str], checkpoint: str) -> Finding:
    """Report that a tokenizer reads hardly anything of some texts, as `error` says, and offer a
    checkpoint that knows their language."""
    script = _commonest_script(letter for text in texts for letter in text if letter.isalpha())
    action = _ACTION if checkpoint_catalog.find_checkpoint(checkpoint) else error.remedy
    return Finding("language", "blocks", error.fact, action, remedies=_others(script, checkpoint))


def _others(script: str, checkpoint: str) -> list[Remedy]:
    """A button that takes another checkpoint, of about the same size, that knows a script."""
    entry = checkpoint_catalog.find_checkpoint(checkpoint)
    others = checkpoint_catalog.matching(entry.size if entry else "small", "other")
    for other in others:
        if other.name != checkpoint and other.reads(script):
            return [Remedy("checkpoint", other.name, _("Take {name}", name=other.title))]
    return []


def cut_inputs(tokenizer: Any, rows: Iterable[Sequence[str]], max_length: int) -> list[Any]:
    """Return a tokenizer's inputs, of one or two sentences each, cut to about `2 * max_length`
    tokens. This does not change the inputs after truncation.

    A fast tokenizer of transformers that truncates a pair encodes every combination of the parts
    that it cuts off: two sentences of 20,000 tokens took 5 GB. Nothing is cut for a slow one, which
    keeps no such parts, or one that truncates on the left.
    """
    cut, kept = [list(row) for row in rows], 2 * max_length
    if tokenizer.is_fast and tokenizer.truncation_side == "right":
        long = [
            (row, place)
            for row, texts in enumerate(cut)
            for place, text in enumerate(texts)
            if len(text) > kept
        ]
        offsets: dict[tuple[int, int], list[tuple[int, int]]] = {}  # of the tokens of each
        if long:
            encoded = tokenizer(
                [cut[row][place] for row, place in long], add_special_tokens=False,
                return_offsets_mapping=True, return_attention_mask=False,
                return_token_type_ids=False, verbose=False,
            )  # fmt: skip
            offsets = dict(zip(long, encoded["offset_mapping"], strict=True))
        for (row, place), spans in offsets.items():
            fewest = min(len(offsets.get((row, other), ())) for other in range(len(cut[row])))
            end = kept + (len(spans) > fewest)  # the longer sentence gets the odd token
            if len(spans) > end:
                cut[row][place] = cut[row][place][: spans[end][0]] or cut[row][place]
    return [tuple(texts) if len(texts) > 1 else texts[0] for texts in cut]
