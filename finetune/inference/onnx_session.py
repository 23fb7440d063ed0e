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

# On a processor the fused form of a norm after a sum takes ten times as long as the plain one.
_SLOWER_FUSED = ["SkipLayerNormFusion"]


class OnnxSession:
    """A model with one result. It can be called from any thread, and computes one batch at a time
    with all its threads.

    These threads inherit the priority of the thread that creates the session.

    Args:
        model: a file, or its bytes.
        threads: number of computing threads; if there are as many as cores, each is bound to one.

    Raises:
        Exception: of ONNX Runtime, if the model cannot be loaded.
    """

    def __init__(self, model: Path | bytes, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        all_cores = threads >= (psutil.cpu_count(logical=False) or 1)
        # 0 binds threads to cores; an unbound thread may wake up on the core of another one.
        options.intra_op_num_threads = 0 if all_cores else threads
        options.inter_op_num_threads, options.log_severity_level = 1, 3
        # Threads spin for work during a computation, and not after it.
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
        """Compute the result from inputs by name; inputs that the model does not have are
        ignored."""
        with self._computing:  # two batches at once take longer than one after the other
            results = self._session.run(None, {name: inputs[name] for name in self._names})
        return np.asarray(results[0], np.float32)
