"""ONNX Runtime on this machine's processors."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

# Added after a sum, its fused form takes ten times as long as the plain one on a processor.
_SLOWER_FUSED = ["SkipLayerNormFusion"]


class OnnxSession:
    """A model with one result, computed from any thread with all threads, one batch at a time.

    The threads inherit the priority of the one that makes the session.

    Args:
        model: a file, or what it holds.
        threads: how many compute; where that is all cores, each thread is bound to one.

    Raises:
        Exception: one of ONNX Runtime's own, when the model cannot be loaded.
    """

    def __init__(self, model: Path | bytes, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        all_cores = threads >= (psutil.cpu_count(logical=False) or 1)
        # Its own choice, 0, binds them: an unbound one wakes up where another computes.
        options.intra_op_num_threads = 0 if all_cores else threads
        options.inter_op_num_threads, options.log_severity_level = 1, 3
        # They look out for work while it computes, and not after that.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        self._session = onnxruntime.InferenceSession(
            model if isinstance(model, bytes) else os.fspath(model),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=_SLOWER_FUSED,
        )
        self._names = [entry.name for entry in self._session.get_inputs()]
        self._computing = threading.Lock()

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """The result for inputs by name; others than the model's are passed over."""
        with self._computing:  # two batches at once take longer than one after the other
            results = self._session.run(None, {name: inputs[name] for name in self._names})
        return np.asarray(results[0], np.float32)
