"""Layers of BERT and its kin that answer on a processor in half the time of the model's own.

For single pairs, and in fp32, they are an ONNX graph, which ONNX Runtime computes. The graph is
made from the weights in a tenth of a second; embeddings and head stay in PyTorch. The last layer
computes everything except keys and values only for the first token, which the head reads.

For batches in bf16 PyTorch computes them. Query, key and value are one product, with weights laid
out beforehand. Attention consists of plain products, with the keys padded to whole vectors: a
softmax over rows that end in a partial vector takes twice as long. The last layer is a `LastLayer`.

Source: https://onnx.ai/onnx/operators/
"""

import copy
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from finetune.training import layers
from finetune.training.layers import LastLayer, LayerParts

_OPSET, _IR_VERSION = 20, 10
_ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "GELUActivation": ("Gelu", {}),
    "NewGELUActivation": ("Gelu", {"approximate": "tanh"}),
    "FastGELUActivation": ("Gelu", {"approximate": "tanh"}),
    "GELUTanh": ("Gelu", {"approximate": "tanh"}),
    "ReLU": ("Relu", {}),
}
_MOST_BYTES = 2**29  # of weights, which are in memory three times while the graph is made
# On a processor the fused form of a norm after a sum takes ten times as long as the plain one.
_SLOWER_FUSED = ["SkipLayerNormFusion"]
_WHOLE = 32  # keys are padded to a multiple of this: bf16 numbers of a 512-bit vector


class _Graph:
    """An ONNX model, built node by node."""

    def __init__(self, heads: int) -> None:
        import onnx

        self.heads = heads
        self.proto = onnx.ModelProto(ir_version=_IR_VERSION)
        self.proto.opset_import.add(version=_OPSET)
        self.proto.graph.name = "layers"

    def add(self, operator: str, *inputs: str, results: int = 1, **attributes: Any) -> Any:
        """Add a node; returns the name of its result, or a list of names if there are several."""
        from onnx import helper

        names = [f"{len(self.proto.graph.node)}.{at}" for at in range(results)]
        self.proto.graph.node.append(helper.make_node(operator, inputs, names, **attributes))
        return names[0] if results == 1 else names

    def constant(self, values: Tensor | NDArray[Any]) -> str:
        """Add weights or numbers; returns their name."""
        from onnx import numpy_helper

        array = values.detach().float().numpy() if isinstance(values, Tensor) else values
        name = f"constant {len(self.proto.graph.initializer)}"
        self.proto.graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def linear(self, rows: str, *linears: nn.Linear) -> str:
        weight = torch.cat([linear.weight for linear in linears]).T
        product = self.add("MatMul", rows, self.constant(weight))
        return str(self.add("Add", product, self.constant(torch.cat([x.bias for x in linears]))))

    def norm(self, rows: str, residual: str, norm: nn.LayerNorm) -> str:
        rows, scale = self.add("Add", rows, residual), self.constant(norm.weight)
        shift = self.constant(norm.bias)
        return str(self.add("LayerNormalization", rows, scale, shift, epsilon=norm.eps))

    def split_heads(self, rows: str, width: int, order: list[int]) -> str:
        shape = self.constant(np.array([0, -1, self.heads, width // self.heads]))
        return str(self.add("Transpose", self.add("Reshape", rows, shape), perm=order))

    def layer(self, hidden: str, parts: LayerParts, last: bool) -> str:
        width = parts.query.out_features
        rows = hidden
        if last:
            first, end, axis = (self.constant(np.array([number])) for number in (0, 1, 1))
            rows = self.add("Slice", hidden, first, end, axis)
            query = self.linear(rows, parts.query)
            both = self.linear(hidden, parts.key, parts.value)
            key, value = self.add("Split", both, results=2, axis=2, num_outputs=2)
        else:
            all_three = self.linear(hidden, parts.query, parts.key, parts.value)
            query, key, value = self.add("Split", all_three, results=3, axis=2, num_outputs=3)
        scale = self.constant(np.array((width // self.heads) ** -0.5, np.float32))
        query = self.split_heads(self.add("Mul", query, scale), width, [0, 2, 1, 3])
        scores = self.add("MatMul", query, self.split_heads(key, width, [0, 2, 3, 1]))
        weights = self.add("Softmax", self.add("Add", scores, "bias"), axis=-1)
        gathered = self.add("MatMul", weights, self.split_heads(value, width, [0, 2, 1, 3]))
        shape = self.constant(np.array([0, -1, width]))
        gathered = self.add("Reshape", self.add("Transpose", gathered, perm=[0, 2, 1, 3]), shape)
        rows = self.norm(self.linear(gathered, parts.attended), rows, parts.attended_norm)
        operator, attributes = _ACTIVATIONS[type(parts.activation).__name__]
        wide = self.add(operator, self.linear(rows, parts.widen), **attributes)
        return self.norm(self.linear(wide, parts.narrow), rows, parts.norm)

    def serialized(self, result: str, width: int) -> bytes:
        """The bytes of the model file, with `result` as its output."""
        from onnx import TensorProto, helper

        entries = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in (
                ("hidden", ("batch", "length", width)),
                ("bias", ("batch", 1, 1, "length")),
                (result, ("batch", 1, width)),
            )
        ]
        self.proto.graph.input.extend(entries[:2])
        self.proto.graph.output.extend(entries[2:])
        return bytes(self.proto.SerializeToString())


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


class _OnnxLayers(nn.Module):
    """All layers, in the place of the first one; the others are replaced by `_Passed`."""

    def __init__(self, session: OnnxSession) -> None:
        super().__init__()
        self._session = session

    def forward(self, hidden: Tensor, bias: Tensor, *_: Any, **__: Any) -> Tensor:
        """Map hidden states of shape (batch, length, width) to (batch, 1, width)."""
        return torch.from_numpy(self._session.run({"hidden": hidden.numpy(), "bias": bias.numpy()}))


class _Passed(nn.Module):
    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
        return hidden


def build_onnx(model: Any, threads: int) -> list[nn.Module]:
    """Build these layers in fp32 for a classifier; they take an `attention_bias`. Returns none if
    its own layers are of an unknown kind or too large, or its logits would change."""
    parts = layers.layer_parts(model)
    size = sum(
        4 * weights.numel() for layer in parts for weights in nn.ModuleList(layer).parameters()
    )
    known = all(type(layer.activation).__name__ in _ACTIVATIONS for layer in parts)
    if not parts or not known or size > _MOST_BYTES:
        return []
    graph, hidden = _Graph(model.config.num_attention_heads), "hidden"
    for layer in parts:
        hidden = graph.layer(hidden, layer, last=layer is parts[-1])
    session = OnnxSession(graph.serialized(hidden, parts[0].query.out_features), threads)
    quick = [_OnnxLayers(session), *(_Passed() for _ in parts[1:])]
    return quick if layers.gives_same_logits(model, quick, layers.attention_bias) else []


class _Product(nn.Module):
    """A product with fixed weights, which private operators of PyTorch lay out beforehand for the
    processor's kernel. If they are missing, it is an ordinary product."""

    def __init__(self, linears: list[nn.Linear], dtype: torch.dtype) -> None:
        super().__init__()
        self.bias = torch.cat([linear.bias for linear in linears]).detach().to(dtype)
        weight = torch.cat([linear.weight for linear in linears]).detach().to(dtype)
        self.packed = True
        try:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, None)
            self(weight[:1])
        except (RuntimeError, AttributeError):
            self.weight, self.packed = weight, False

    def forward(self, rows: Tensor) -> Tensor:
        if not self.packed:
            return nn.functional.linear(rows, self.weight, self.bias)
        linear = torch.ops.mkldnn._linear_pointwise
        return linear(rows, self.weight, self.bias, "none", [], "")  # type: ignore[no-any-return]


class _Layer(nn.Module):
    def __init__(self, parts: LayerParts, heads: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads, self.dtype, self.width = heads, dtype, parts.query.out_features
        query = copy.deepcopy(parts.query).requires_grad_(False)
        for weights in query.parameters():
            weights.mul_((self.width // heads) ** -0.5)
        self.inward = _Product([query, parts.key, parts.value], dtype)
        self.attended, self.widen, self.narrow = (
            _Product([linear], dtype) for linear in (parts.attended, parts.widen, parts.narrow)
        )
        self.attended_norm, self.norm = (
            copy.deepcopy(norm).to(dtype) for norm in (parts.attended_norm, parts.norm)
        )
        self.activation = parts.activation

    def forward(self, hidden: Tensor, bias: Tensor, *_: Any, **__: Any) -> Tensor:
        """Compute hidden states of shape (batch, length, width)."""
        hidden = hidden.to(self.dtype)
        rows = self.attended_norm(self.attended(self._attend(hidden, bias)).add_(hidden))
        return self.norm(self.narrow(self.activation(self.widen(rows))).add_(rows))  # type: ignore[no-any-return]

    def _attend(self, hidden: Tensor, bias: Tensor) -> Tensor:
        query, key, value = self.inward(hidden).split(self.width, dim=-1)
        keys = bias.shape[-1]
        scores = self._heads(query) @ self._heads(key, keys).transpose(2, 3)
        weights = scores.add_(bias).softmax(dim=-1)
        gathered: Tensor = weights @ self._heads(value, keys)
        return gathered.transpose(1, 2).reshape(hidden.shape)

    def _heads(self, rows: Tensor, length: int = 0) -> Tensor:
        """(batch, length, width) -> (batch, heads, length, size), with zeros up to `length`."""
        batch, filled, width = rows.shape
        split = rows.view(batch, filled, self.heads, width // self.heads).transpose(1, 2)
        if filled >= length:
            return split.contiguous()
        padded = rows.new_empty(batch, self.heads, length, width // self.heads)
        padded[:, :, :filled] = split
        padded[:, :, filled:] = 0.0
        return padded


class _Bf16LastLayer(LastLayer):
    """The last layer in bf16, with its result in fp32 for the head."""

    def forward(self, hidden: Tensor, mask: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
        return super().forward(hidden.bfloat16(), mask).float()


def bf16_bias(mask: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """The `attention_bias` for these layers."""
    return layers.attention_bias(mask, dtype, _WHOLE)


def build_bf16(model: Any) -> list[nn.Module]:
    """Build these layers in bf16 for a classifier. Returns none if its own layers are of an unknown
    kind, or if the same layers in fp32 would change its logits."""
    parts, heads = layers.layer_parts(model), model.config.num_attention_heads
    if not parts:
        return []
    with torch.inference_mode():
        exact: list[nn.Module] = [_Layer(layer, heads, torch.float32) for layer in parts[:-1]]
        exact.append(LastLayer(parts[-1], heads))
        if not layers.gives_same_logits(model, exact, lambda mask: bf16_bias(mask, torch.float32)):
            return []
        quick: list[nn.Module] = [_Layer(layer, heads, torch.bfloat16) for layer in parts[:-1]]
        return [*quick, copy.deepcopy(_Bf16LastLayer(parts[-1], heads)).bfloat16()]
