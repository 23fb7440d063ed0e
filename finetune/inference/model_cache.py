"""Keeps the models that were used last in memory, and fetches classifiers from the Hub."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import torch

from finetune import disk, hub_errors
from finetune.data import checkpoints
from finetune.errors import ModelError
from finetune.inference.predictor import Predictor

MOST_OF_HUB = 2**30  # bytes of a model that a visitor of a shared app may fetch
MODELS_KEPT = int(os.environ.get("FINETUNE_MODELS") or 3)
_FETCHED = (".json", ".txt", ".model", ".safetensors")  # files of a model, in its first folder


class ModelCache:
    """The `keep` models used last, loaded once each; one in use goes as soon as it is not."""

    def __init__(self, keep: int = MODELS_KEPT) -> None:
        self._keep = max(1, keep)
        self._predictors: dict[tuple[str, int, str], Predictor] = {}  # the last used at the end
        self._lock = threading.Lock()
        _caches.append(self)

    @contextlib.contextmanager
    def using(
        self, folder: Path, max_length: int, paired: bool | None = True, device: str = ""
    ) -> Iterator[Predictor]:
        """The predictor of a folder, loaded anew when its weights have changed; it stays loaded for
        the time of the `with`."""
        weights = folder / "model.safetensors"
        changed = weights.stat().st_mtime_ns if weights.exists() else 0
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


def fetch_hub_model(name: str, anonymous: bool) -> tuple[Path, int]:
    """The folder of a classifier of the Hub once it is fetched, and how many tokens it reads. For a
    visitor `anonymous`: without any token of this machine's, and up to `MOST_OF_HUB`."""
    from huggingface_hub import HfApi, snapshot_download

    token = False if anonymous else None
    try:
        info = hub_errors.retried(
            lambda: HfApi().model_info(name, files_metadata=True, token=token, timeout=10)
        )
        if anonymous and info.gated:  # its files may lie in the cache all the same
            raise hub_errors.Gated
        files = {file.rfilename: file.size or 0 for file in info.siblings or []}
        size = sum(files[file] for file in files if file.endswith(_FETCHED) and "/" not in file)
        if anonymous and size > MOST_OF_HUB:
            raise ModelError(
                "{name} has {size:.1f} GB; a visitor may load up to {limit:.0f} GB.",
                "Choose a smaller model.",
                name=name,
                size=size / 2**30,
                limit=MOST_OF_HUB / 2**30,
            )
        patterns = [f"*{ending}" for ending in _FETCHED]
        folder = snapshot_download(
            name, revision=info.sha, token=token, allow_patterns=patterns, ignore_patterns=["*/*"]
        )
    except Exception as error:  # each library has errors of its own
        raise hub_errors.explained("model", name, error) or error from None
    config = disk.read_json(Path(folder) / "config.json")
    longest = checkpoints.most_tokens(config) or checkpoints.DEFAULT_LENGTH
    return Path(folder), min(checkpoints.DEFAULT_LENGTH, longest)
