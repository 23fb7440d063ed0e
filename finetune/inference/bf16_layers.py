"""Layers of BERT and its kin in bf16, which answer batches on a processor in half the time.

Query, key and value are one product, with weights laid out beforehand. Attention consists of plain
products, with the keys padded to whole vectors: a softmax over rows that end in a partial vector
takes twice as long. The last layer is a `LastLayer`.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from finetune.training import layers
from finetune.training.layers import LastLayer, LayerParts

_WHOLE = 32  # keys are padded to a multiple of this: bf16 numbers of a 512-bit vector


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
            return functional.linear(rows, self.weight, self.bias)
        linear = torch.ops.mkldnn._linear_pointwise
        return linear(rows, self.weight, self.bias, "none", [], "")  # type: ignore[no-any-return]


class _Layer(nn.Module):
    """A layer made of a model's parts."""

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


def bias(mask: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """The `attention_bias` for these layers."""
    return layers.attention_bias(mask, dtype, _WHOLE)


def build(model: Any) -> list[nn.Module]:
    """Build these layers in bf16 for a classifier. Returns none if its own layers are of an unknown
    kind, or if the same layers in fp32 would change its logits."""
    parts, heads = layers.layer_parts(model), model.config.num_attention_heads
    if not parts:
        return []
    with torch.inference_mode():
        exact: list[nn.Module] = [_Layer(layer, heads, torch.float32) for layer in parts[:-1]]
        exact.append(LastLayer(parts[-1], heads))
        if not layers.gives_same_logits(model, exact, lambda mask: bias(mask, torch.float32)):
            return []
        quick: list[nn.Module] = [_Layer(layer, heads, torch.bfloat16) for layer in parts[:-1]]
        return [*quick, copy.deepcopy(_Bf16LastLayer(parts[-1], heads)).bfloat16()]
