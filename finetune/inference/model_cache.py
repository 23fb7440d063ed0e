"""Keeps the models that were used last in memory."""

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

MODELS_KEPT = int(os.environ.get("FINETUNE_MODELS") or 3)


class ModelCache:
    """The `keep` models used last, loaded once each; one in use goes as soon as it is not."""

    def __init__(self, keep: int = MODELS_KEPT) -> None:
        self._keep = max(1, keep)
        self._predictors: dict[
            tuple[str, tuple[int, ...], str], Predictor
        ] = {}  # the last used at the end
        self._lock = threading.Lock()
        _caches.append(self)

    @contextlib.contextmanager
    def using(
        self, folder: Path, max_length: int, paired: bool | None = True, device: str = ""
    ) -> Iterator[Predictor]:
        """The predictor of a folder, loaded anew when its weights have changed; it stays loaded for
        the time of the `with`."""
        files = [folder / "model.safetensors", folder / quantized.MODEL]
        changed = tuple(file.stat().st_mtime_ns if file.exists() else 0 for file in files)
        key = (str(folder), changed, device)
        with self._lock:
            predictor = self._predictors.pop(key, None)
            if predictor is None:
                while len(self._predictors) >= self._keep:  # first, for two may not fit
                    del self._predictors[next(iter(self._predictors))]
                predictor = Predictor(folder, max_length, paired, device)
            self._predictors[key] = predictor
        yield predictor

    def free(self) -> None:
        """Give all memory back, of a model in use as soon as it is not."""
        with self._lock:
            self._predictors.clear()
        gc.collect()


_caches: list[ModelCache] = []


def release_models() -> None:
    """Give device memory back to a training that begins. On a CPU nothing is gained."""
    if torch.cuda.is_available():
        for cache in _caches:
            cache.free()
