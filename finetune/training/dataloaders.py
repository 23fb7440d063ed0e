"""From sentence pairs to batches of tensors: tokenise, pad each batch to its longest, shuffle. A
split's token ids are kept in one flat array, from which batches are gathered by row index. The
first batch is described as the model reads it.

Source: https://huggingface.co/learn/llm-course/chapter3/2 and, for the shapes, /chapter3/4.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count, groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from datasets import Dataset, concatenate_datasets
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler, Sampler
from transformers import PreTrainedTokenizerBase
from transformers.trainer_pt_utils import LengthGroupedSampler

from finetune.config import RunConfig
from finetune.data import checkpoints, symmetry, token_lengths
from finetune.data.splits import Pairs
from finetune.errors import DataError, ModelError
from finetune.runs import events
from finetune.tasks.base import Target
from finetune.tasks.registry import task_of
from finetune.training import cuda_graphs
from finetune.training.accelerator import choose_precision

_SAMPLE = 1000  # rows checked for tokens unknown to the tokenizer
_DEVICE_SHARE = 10  # a split stays on a GPU if it takes at most a tenth of its memory
EXAMPLES = 4
HEAD, TAIL = 48, 16  # tokens shown of a longer row: its beginning and its padded end
_LENGTHS = 64  # examples whose lengths are listed
_TOKEN_CHARACTERS = 40  # characters shown of a token


@dataclass(frozen=True)
class Loaders:
    """The batches of a run."""

    train: DataLoader[Any]
    validation: DataLoader[Any]
    class_weights: torch.Tensor | None  # in the loss, of shape (classes,); None: equal weights
    either_order: bool = False  # True if each epoch draws the order of each pair anew


def build_loaders(
    pairs: Pairs,
    tokenizer: PreTrainedTokenizerBase,
    config: RunConfig,
    device: torch.device | None = None,
) -> Loaders:
    """Build the loaders of one run, which trains on `device`."""
    either_order = not config.swap_augmentation and (  # which has both
        config.sentence_order == "random"
        or (config.sentence_order == "auto" and symmetry.is_symmetric(pairs))
    )
    if device is not None and device.type == "cuda" and config.cuda_graphs != "off":
        multiple: int | None = cuda_graphs.width_multiple(config)
    elif config.padding == "max_length":
        multiple = config.max_length
    else:
        precision = choose_precision(config.mixed_precision)
        multiple = padding_multiple(config, precision, config.max_length)

    def split(texts: Dataset) -> TokenizedSplit:
        tokenized = tokenize(texts, tokenizer, config.max_length)
        return TokenizedSplit(tokenized, tokenizer, config.max_length, multiple or 1, device)

    training = split(both_orders(pairs, config, either_order))
    validation = split(pairs.splits["validation"])
    # Each loader has its own generator: other draws of random numbers, such as in an evaluation,
    # change neither the order nor dropout.
    order, evaluation = (torch.Generator().manual_seed(config.seed) for _ in range(2))
    size = config.per_device_train_batch_size
    rows = len(training) // (1 + either_order)
    sampler: Any = RandomSampler(range(rows), generator=order)
    if config.group_by_length and config.padding == "longest":
        lengths = training.lengths[:rows].tolist()
        sampler = LengthGroupedSampler(size, lengths=lengths, generator=order)
    if either_order:
        sampler = EitherOrderSampler(sampler, rows)

    def loader(split: TokenizedSplit, rows: int, drawn: torch.Generator, sampler: Any) -> Any:
        # From pinned memory if a GPU has no room for the split, which makes the batches itself.
        pinned = device is not None and device.type == "cuda" and not split.on_device
        return DataLoader(
            split, rows, sampler=sampler, collate_fn=lambda batch: batch, generator=drawn,
            pin_memory=pinned,
        )  # fmt: skip

    return Loaders(
        loader(training, size, order, sampler),
        loader(validation, config.per_device_eval_batch_size, evaluation, None),
        balanced_class_weights(pairs.counts["train"]) if config.class_weights != "none" else None,
        either_order,
    )


class EitherOrderSampler(Sampler[int]):
    """Draws each row of another sampler in the given order or in the other one, which is `rows`
    behind it. Each epoch is drawn anew."""

    def __init__(self, sampler: Any, rows: int) -> None:
        self.sampler, self.rows, self.generator = sampler, rows, sampler.generator

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[int]:
        rows = list(self.sampler)
        swapped = torch.randint(0, 2, (len(rows),), generator=self.generator)
        return iter((torch.tensor(rows) + self.rows * swapped).tolist())


def both_orders(pairs: Pairs, config: RunConfig, either_order: bool) -> Dataset:
    """Return the training pairs, followed by the swapped pairs if a run reads them. DataError if
    they are asked for, and these are single sentences."""
    train = pairs.splits["train"]
    if not (either_order or config.swap_augmentation):
        return train
    if "sentence2" not in train.column_names:
        raise DataError(
            "swap_augmentation is on or sentence_order random, but these are single sentences.",
            "Turn it off, and let sentence_order be auto.",
        )
    names = {"sentence1": "sentence2", "sentence2": "sentence1"}
    swapped = train.rename_columns(names).select_columns(train.column_names)
    return concatenate_datasets([train, swapped])


def padding_multiple(config: RunConfig, precision: str, longest: int) -> int | None:
    """Return what lengths up to `longest` are rounded up to a multiple of; None: no rounding."""
    multiple = config.pad_to_multiple_of
    if multiple < 0:
        multiple = 0 if precision == "no" else 8  # which tensor cores want
    # Otherwise rounding up could exceed the model's maximum length.
    return multiple if multiple and longest % multiple == 0 else None


def tokenize(split: Dataset, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Dataset:
    """Return token ids cut to `max_length`, unpadded, and `labels`, in place of sentences."""
    texts = [name for name in ("sentence1", "sentence2") if name in split.column_names]
    longest = checkpoints.characters_read(max_length)

    def encode(rows: dict[str, list[Any]]) -> Any:
        columns = ([text[:longest] for text in rows[name]] for name in texts)
        sentences = token_lengths.cut_inputs(tokenizer, zip(*columns, strict=True), max_length)
        return tokenizer(sentences, truncation=True, max_length=max_length)

    size = checkpoints.rows_at_once(split, longest)
    tokenized = split.map(encode, batched=True, batch_size=size, remove_columns=texts)
    return tokenized.rename_column("label", "labels").with_format("torch")


def balanced_class_weights(counts: list[int]) -> torch.Tensor:
    """Return weights inverse to frequency: rows / (classes x rows of the class), 0 for an empty
    class (King and Zeng 2001, as scikit-learn's `class_weight="balanced"`)."""
    present = sum(count > 0 for count in counts)
    return torch.tensor([sum(counts) / (present * count) if count else 0.0 for count in counts])


def check_tokens(
    batches: Loaders, tokenizer: PreTrainedTokenizerBase, checkpoint: str, embeddings: int
) -> None:
    """Check that the tokenizer knows the pairs, and that the weights know its tokens."""
    train: Any = batches.train.dataset
    validation: Any = batches.validation.dataset
    sample = np.random.default_rng(0).permutation(len(train))[:_SAMPLE]
    checkpoints.check_known(checkpoint, tokenizer, [train.token_ids(row) for row in sample])
    largest = max(train.largest_token, validation.largest_token)
    if largest >= embeddings:
        raise ModelError(
            "The tokenizer of {checkpoint} makes token {largest:,}, and its weights know "
            "{embeddings:,}, from 0.",
            "They do not belong together: choose another checkpoint, or bring the tokenizer "
            "that its weights were trained with.",
            checkpoint=checkpoint,
            largest=largest,
            embeddings=embeddings,
        )


class TokenizedSplit(torch.utils.data.Dataset[Any]):
    """A tokenized split. Batches equal those of `DataCollatorWithPadding`.

    A `DataLoader` passes the rows of a batch to `__getitems__`, which returns its tensors of shape
    (rows, width), and `labels` of shape (rows, ...).

    Args:
        tokenized: unpadded lists of integers, and `labels` of any type and shape.
        tokenizer: determines the padding side and the padding ids.
        longest: tokens of an input, at most.
        multiple: the longest row of a batch is padded to a multiple of this.
        device: holds the arrays if it is a GPU and they take at most a tenth of its memory.
            Otherwise the token arrays are memory-mapped from an unnamed temporary file.
    """

    def __init__(
        self,
        tokenized: Dataset,
        tokenizer: PreTrainedTokenizerBase,
        longest: int,
        multiple: int,
        device: torch.device | None = None,
    ) -> None:
        self.names = tokenized.column_names
        self._longest, self._multiple = longest, multiple
        self._left = tokenizer.padding_side == "left"
        self._fill = {"input_ids": tokenizer.pad_token_id or 0}
        self._fill["token_type_ids"] = tokenizer.pad_token_type_id
        counted = pc.list_value_length(tokenized.data.column("input_ids"))
        self.lengths: NDArray[np.int64] = counted.to_numpy().astype(np.int64)
        self._starts = self.lengths.cumsum() - self.lengths
        folder = next((Path(file["filename"]).parent for file in tokenized.cache_files), None)
        flat = {
            name: torch.from_numpy(_flat(tokenized.data.column(name), folder))
            for name in self.names
            if name not in ("attention_mask", "labels")
        }
        labels = tokenized.select_columns("labels").with_format("numpy")
        arrays = flat | {
            "labels": torch.from_numpy(np.asarray(labels[:]["labels"])),
            "starts": torch.from_numpy(self._starts),
            "lengths": torch.from_numpy(self.lengths),
        }
        self.on_device = False
        if device is not None and device.type == "cuda":
            size = sum(array.nbytes for array in arrays.values())
            self.on_device = size * _DEVICE_SHARE <= torch.cuda.mem_get_info(device)[1]
        if self.on_device:
            arrays = {name: array.to(device) for name, array in arrays.items()}
        self._arrays = arrays

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {name: values[0] for name, values in self.__getitems__([row]).items()}

    def __getitems__(self, rows: Sequence[int]) -> dict[str, Tensor]:
        index = torch.as_tensor(rows)
        tokens = int(self.lengths[index.numpy()].max())
        width = max(tokens, min(self._longest, -(-tokens // self._multiple) * self._multiple))
        arrays = self._arrays
        index = index.to(arrays["lengths"].device, non_blocking=True)
        columns = torch.arange(width, device=index.device)
        lengths = arrays["lengths"][index].unsqueeze(1)
        if self._left:
            columns = columns - (width - lengths)
        present = (columns >= 0) & (columns < lengths)
        places = arrays["starts"][index].unsqueeze(1) + columns
        # Positions outside a row hold another row's tokens or lie outside the array. They are
        # clamped here and overwritten with padding below.
        places.clamp_(0, max(0, len(arrays["input_ids"]) - 1))

        def column(name: str) -> Tensor:
            if name == "labels":
                return arrays[name][index]
            if name == "attention_mask":
                return present.long()
            values = arrays[name][places].long()
            return values.masked_fill_(~present, self._fill.get(name, 0))

        return {name: column(name) for name in self.names}

    def token_ids(self, row: int) -> list[int]:
        """Return the token ids of a row, unpadded."""
        start, length = int(self._starts[row]), int(self.lengths[row])
        ids = self._arrays["input_ids"][start : start + length]
        return ids.tolist()  # type: ignore[no-any-return]

    @property
    def largest_token(self) -> int:
        """Return the largest token id; -1 if there is no token."""
        ids = self._arrays["input_ids"]
        return int(ids.max()) if len(ids) else -1


def _flat(column: pa.ChunkedArray, folder: Path | None) -> NDArray[Any]:
    """Return all values of a column of lists, mapped from a file without a name in `folder`."""
    dtype = column.type.value_type.to_pandas_dtype()
    with tempfile.TemporaryFile(dir=folder) as file:
        for chunk in column.chunks:
            file.write(chunk.flatten().to_numpy().tobytes())
        file.flush()
        # Mapped copy-on-write, because torch warns about arrays that are not writable.
        return np.memmap(file, dtype, "c") if file.tell() else np.empty(0, dtype)


def describe_batch(batch: Mapping[str, Any], tokenizer: Any, target: Target) -> events.FirstBatch:
    """Describe a batch: tensors of shape (examples, tokens) by name, and `labels` of shape
    (examples, ...). Draws no random number and waits for the device once."""
    rows = {name: tensor.tolist() for name, tensor in batch.items()}
    ids = rows["input_ids"]
    width = len(ids[0])
    mask = rows.get("attention_mask", [[1] * width] * len(ids))  # without a mask everything is read
    lengths = [sum(row) for row in mask]
    shown = list(range(width))
    if width > HEAD + TAIL:
        del shown[HEAD:-TAIL]

    def part(values: Sequence[Sequence[int]]) -> list[list[int]]:
        return [[int(row[position]) for position in shown] for row in values[:EXAMPLES]]

    added = {id_ for id_ in tokenizer.all_special_ids if id_ != tokenizer.unk_token_id}
    first = [id_ for id_, real in zip(ids[0], mask[0], strict=True) if real]
    parts: list[str] = []  # the added tokens of the first row by name, and "" for a text
    for is_text, group in groupby(first, lambda id_: id_ not in added):
        parts += [""] if is_text else _names(tokenizer, list(group))
    sentences, several = count(1), parts.count("") > 1
    form = [part or f"sentence{next(sentences) if several else ''}" for part in parts]
    return events.FirstBatch(
        shapes={name: list(tensor.shape) for name, tensor in batch.items()},
        lengths=lengths[:_LENGTHS],
        padded=1 - sum(lengths) / (width * len(ids)),
        positions=shown,
        tokens=[readable_tokens(tokenizer, row) for row in part(ids)],
        ids=part(ids),
        token_type_ids=part(rows.get("token_type_ids", [])),
        attention_mask=part(mask),
        labels=task_of(target).spell(np.array(rows["labels"][:EXAMPLES]), target),
        special=_names(tokenizer, sorted(added.intersection(chain(*ids[:EXAMPLES])))),
        form=" ".join(form),
    )


def _names(tokenizer: Any, ids: list[int]) -> list[str]:
    return [str(name)[:_TOKEN_CHARACTERS] for name in tokenizer.convert_ids_to_tokens(ids)]


def readable_tokens(tokenizer: Any, ids: list[int]) -> list[str]:
    """Return tokens as a person reads them. A byte vocabulary (GPT-2's, RoBERTa's) writes non-ASCII
    tokens as other letters, which are decoded."""
    tokens = []
    for id_, name in zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True):
        if not name.isascii() and id_ not in tokenizer.all_special_ids:
            text = str(tokenizer.convert_tokens_to_string([name]))
            # Where a word begins, a vocabulary of bytes or of SentencePiece has a space before it.
            spaced = name.startswith(("\u0120", "\u2581")) and not text.startswith(" ")
            name = " " + text if spaced else text or name
        tokens.append(name[:_TOKEN_CHARACTERS])
    return tokens
