"""A stand-in for CUDA graphs on a processor: operations are taped, and replayed in place.

As with a graph, recording changes no tensor, a replay reads and writes the same memory each time,
and what would wait for a GPU cannot be recorded. A tape can be wrong in the ways of `WRONG`.
"""

from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from finetune.training.cuda_graphs import Recorder

DRAWS = ("bernoulli_", "native_dropout", "uniform_", "normal_")
WRONG = ("a stale input", "a stale rate", "a lost draw", "another constant", "an error")
WAITS = ("_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "unique")


def tensors(values):
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))


def memory(tensor):
    return int(tensor.untyped_storage()._cdata)


def _view(tensor):
    return memory(tensor), tensor.shape, tensor.stride(), tensor.storage_offset()


class _Tape(TorchDispatchMode):
    def __init__(self, fails_after, wrong):
        super().__init__()
        self._wrong = wrong
        self._stale = {}  # view -> a copy that is read in its stead
        self.calls = []
        self.own = {}  # memory that was taken while recording
        self.before = {}  # other memory, as it was
        self._fails_after = fails_after

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func._schema.name.removeprefix("aten::") in WAITS:
            raise RuntimeError("operation not permitted when stream is capturing")
        if 0 <= self._fails_after <= len(self.calls):
            raise RuntimeError("out of memory")
        if func._schema.is_mutable:
            for tensor in tensors((args, kwargs)):
                if memory(tensor) not in self.own and memory(tensor) not in self.before:
                    self.before[memory(tensor)] = tensor, tensor.detach().clone()
        for tensor in tensors((args, kwargs)):
            if memory(tensor) not in self.own and self._becomes_stale(tensor, kwargs):
                self._stale.setdefault(_view(tensor), tensor.detach().clone())
        result = func(*args, **kwargs)
        known = {memory(tensor) for tensor in tensors((args, kwargs))}
        self.own |= {memory(t): t for t in tensors(result) if memory(t) not in known}
        self.calls.append((func, args, kwargs, result))
        return result

    def _becomes_stale(self, tensor, kwargs):
        if self._wrong == "a stale input":
            return tensor.dtype == torch.int64
        return self._wrong == "a stale rate" and tensor is kwargs.get("lr")

    def _misread(self, value):
        """Return what a tape that is wrong reads instead of an argument."""
        if isinstance(value, Tensor):
            return self._stale.get(_view(value), value)
        return 1.1 * value if self._wrong == "another constant" and type(value) is float else value

    def restore(self):
        with torch.no_grad():
            for tensor, value in self.before.values():
                tensor.detach().copy_(value)

    def replay(self):
        if self._wrong == "an error":
            raise RuntimeError("CUDA error: out of memory")
        with torch.no_grad():
            for func, args, kwargs, result in self.calls:
                if self._wrong == "a lost draw" and func._schema.name[6:] in DRAWS:
                    continue
                args, kwargs = tree_map(self._misread, (args, kwargs))
                new = func(*args, **kwargs)
                for old, value in zip(tensors(result), tensors(new), strict=True):
                    if memory(old) != memory(value):
                        old.detach().copy_(value)


class TapeRecorder(Recorder):
    """A `Recorder`, whose recordings fail after so many operations from a given one on, or are
    wrong."""

    def __init__(self, fails_from=-1, fails_after=0, wrong=""):
        self.recorded = self.replayed = 0
        self._fails_from, self._fails_after, self.wrong = fails_from, fails_after, wrong

    def warm_up(self, work):
        with torch.random.fork_rng([]):
            work()

    def record(self, work):
        fails = 0 <= self._fails_from <= self.recorded
        tape = _Tape(self._fails_after if fails else -1, self.wrong)
        name = "is_current_stream_capturing"
        capturing = mock.patch.object(torch.cuda, name, return_value=True)
        try:
            with torch.random.fork_rng([]), capturing, tape:
                outputs = work()
        finally:
            tape.restore()
        self.recorded += 1

        def replay():
            self.replayed += 1
            tape.replay()

        return replay, outputs
