"""Gather batches by row index from a split's token ids, which are kept in one flat array."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

_DEVICE_SHARE = 10  # a split stays on a GPU if it takes at most a tenth of its memory


@dataclass(frozen=True)
class Padding:
    """The width of a batch."""

    longest: int  # tokens of an input, at most
    always_longest: bool = False  # pad every batch to `longest`
    multiple: int = 1  # round a batch's longest row up to a multiple of this

    def width(self, tokens: int) -> int:
        """Return the width of a batch whose longest row has so many tokens."""
        if self.always_longest:
            return self.longest
        return max(tokens, min(self.longest, -(-tokens // self.multiple) * self.multiple))


class TokenizedSplit(Dataset[Any]):
    """A tokenized split. Batches equal those of `DataCollatorWithPadding`.

    A `DataLoader` passes the rows of a batch to `__getitems__`, which returns its tensors of shape
    (rows, width), and `labels` of shape (rows, ...).

    Args:
        tokenized: unpadded lists of integers, and `labels` of any type and shape.
        tokenizer: determines the padding side and the padding ids.
        device: holds the arrays if it is a GPU and they take at most a tenth of its memory.
            Otherwise the token arrays are memory-mapped from an unnamed temporary file.
    """

    def __init__(
        self,
        tokenized: datasets.Dataset,
        tokenizer: PreTrainedTokenizerBase,
        padding: Padding,
        device: torch.device | None = None,
    ) -> None:
        self.names = tokenized.column_names
        self._padding, self._left = padding, tokenizer.padding_side == "left"
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
        width = self._padding.width(int(self.lengths[index.numpy()].max()))
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
