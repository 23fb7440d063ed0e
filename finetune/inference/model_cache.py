"""Keep the most recently used models in memory."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import torch

from finetune.inference import quantized
from finetune.inference.predictor import Predictor

MAX_MODELS = int(os.environ.get("FINETUNE_MODELS") or 3)


class ModelCache:
    """The `keep` most recently used models, each loaded once. An evicted model is freed when its
    last use ends."""

    def __init__(self, keep: int = MAX_MODELS) -> None:
        self._keep = max(1, keep)
        self._predictors: dict[
            tuple[str, tuple[int, ...], str], Predictor
        ] = {}  # the most recently used last
        self._lock = threading.Lock()
        _caches.append(self)

    @contextlib.contextmanager
    def using(
        self, folder: Path, max_length: int, paired: bool | None = True, device: str = ""
    ) -> Iterator[Predictor]:
        """Yield the predictor of a folder, which stays loaded within the `with`. It is loaded again
        if its weights have changed."""
        files = [folder / "model.safetensors", folder / quantized.MODEL]
        changed = tuple(file.stat().st_mtime_ns if file.exists() else 0 for file in files)
        key = (str(folder), changed, device)
        with self._lock:
            predictor = self._predictors.pop(key, None)
            if predictor is None:
                while len(self._predictors) >= self._keep:  # first: both may not fit
                    del self._predictors[next(iter(self._predictors))]
                predictor = Predictor(folder, max_length, paired, device)
            self._predictors[key] = predictor
        yield predictor

    def free(self) -> None:
        """Free all memory; that of a model in use when its use ends."""
        with self._lock:
            self._predictors.clear()
        gc.collect()


_caches: list[ModelCache] = []


def release_models() -> None:
    """Free device memory for a training run that begins. Does nothing without a GPU."""
    if torch.cuda.is_available():
        for cache in _caches:
            cache.free()
