"""The layers of BERT and its kin, made anew to answer on a processor: the same numbers, sooner.

Query, key and value are one product, of weights laid out beforehand. Attention is plain products
with the keys padded to whole vectors, for a softmax over rows that end in a part of one takes twice
as long. And where the head reads the first token alone, the last layer computes the others' keys
and values and nothing else of them. A model is known by the names of its parts.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_WHOLE = 32  # keys are padded to a multiple of this: bf16 numbers of a 512-bit vector
_SAME = 1e-4  # by which logits of the same model in fp32 may differ, as a part of their size
# Where the layers of BERT, RoBERTa, ELECTRA and their kin, and those of DistilBERT, have their
# parts: query, key, value, output and norm of attention; both products and norm after it.
_BERT = (
    "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
    "attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm",
)  # fmt: skip
_DISTILBERT = (
    "attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin", "sa_layer_norm",
    "ffn.lin1", "ffn.lin2", "output_layer_norm",
)  # fmt: skip


def _parts(layer: nn.Module) -> list[Any] | None:
    """The parts of a layer that is a known one, in the order of `_BERT`; last its activation."""
    bert = hasattr(layer, "intermediate")
    try:
        parts = [layer.get_submodule(name) for name in (_BERT if bert else _DISTILBERT)]
        layers: Any = layer
        activation = layers.intermediate.intermediate_act_fn if bert else layers.ffn.activation
    except AttributeError:
        return None
    plain = all(type(part) in (nn.Linear, nn.LayerNorm) for part in parts)
    biased = all(part.bias is not None for part in parts)
    return [*parts, activation] if plain and biased else None


class _Product(nn.Module):
    """A product with fixed weights, laid out beforehand as the processor's kernel wants them, by
    private operators of PyTorch; where they are missing, the ordinary one serves."""

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


class Layer(nn.Module):
    """One transformer layer (Vaswani et al. 2017) with its normalisation after each sum. With
    `first_only` it returns the first token alone, of shape (batch, 1, width), in fp32."""

    def __init__(self, parts: list[Any], heads: int, first_only: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads, self.first_only, self.dtype = heads, first_only, dtype
        query, key, value, attended, attended_norm, widen, narrow, norm, self.activation = parts
        self.width = query.out_features
        query = copy.deepcopy(query).requires_grad_(False)
        for weights in query.parameters():
            weights *= (self.width // heads) ** -0.5
        groups = [[query], [key, value]] if first_only else [[query, key, value]]
        self.inward = nn.ModuleList(_Product(group, dtype) for group in groups)
        self.attended, self.widen, self.narrow = (
            _Product([linear], dtype) for linear in (attended, widen, narrow)
        )
        self.attended_norm = copy.deepcopy(attended_norm).to(dtype)
        self.norm = copy.deepcopy(norm).to(dtype)

    def forward(self, hidden: Tensor, mask: Tensor, *_: Any, **__: Any) -> Tensor:
        """Hidden states of shape (batch, length, width); the mask is of `attention_bias`."""
        hidden = hidden.to(self.dtype)
        rows: Tensor = hidden[:, :1] if self.first_only else hidden
        rows = self.attended_norm(self.attended(self._attend(rows, hidden, mask)).add_(rows))
        rows = self.norm(self.narrow(self.activation(self.widen(rows))).add_(rows))
        return rows.float() if self.first_only else rows

    def _attend(self, rows: Tensor, hidden: Tensor, mask: Tensor) -> Tensor:
        """What the `rows` gather from all of `hidden`, of the shape of `rows`."""
        if self.first_only:
            query, key_value = self.inward[0](rows), self.inward[1](hidden)
            key, value = key_value.split(self.width, dim=-1)
        else:
            query, key, value = self.inward[0](hidden).split(self.width, dim=-1)
        keys = mask.shape[-1]
        scores = self._heads(query) @ self._heads(key, keys).transpose(2, 3)
        shares = scores.add_(mask).softmax(dim=-1)
        gathered: Tensor = shares @ self._heads(value, keys)
        return gathered.transpose(1, 2).reshape(rows.shape)

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


def attention_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to attention's scores, of shape (batch, 1, 1, keys), of a mask (batch, length).
    A model passes a mask of four dimensions on to its layers as it is."""
    keys = -(-mask.shape[1] // _WHOLE) * _WHOLE
    bias = torch.full((len(mask), 1, 1, keys), torch.finfo(dtype).min, dtype=dtype)
    bias[:, 0, 0, : mask.shape[1]].masked_fill_(mask.bool(), 0.0)
    return bias


def optimize_layers(model: Any, dtype: torch.dtype) -> list[nn.Module]:
    """Put `Layer`s in the place of a classifier's layers, if it then answers random tokens as
    before; returns its own layers, none where it keeps them. Its attention mask must be
    `attention_bias`'s then."""
    stack, heads = _stack(model), getattr(model.config, "num_attention_heads", 0)
    own, parts = list(stack), [_parts(layer) for layer in stack]
    if not parts or None in parts:
        return []
    lengths = torch.tensor([[3], [7], [11], [16], [19], [24]])
    mask = (torch.arange(24) < lengths).long()
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, model.config.vocab_size, mask.shape, generator=draw)
    with torch.inference_mode():
        expected = model(input_ids=tokens, attention_mask=mask).logits
        for judged in (torch.float32, dtype):
            last = len(parts) - 1
            quick = [
                Layer(layer or [], heads, at == last, judged).eval()
                for at, layer in enumerate(parts)
            ]
            put_layers(model, quick)
            if judged == torch.float32 and not _agrees(model, tokens, mask, expected):
                put_layers(model, own)
                return []
    return own


def put_layers(model: Any, layers: Sequence[nn.Module]) -> None:
    """Let a model compute with other layers."""
    stack = _stack(model)
    for at, layer in enumerate(layers):
        stack[at] = layer


def _stack(model: Any) -> Any:
    """The list of a model's layers; an empty one where it has none of their number."""
    depth = getattr(model.config, "num_hidden_layers", 0)
    stacks = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    return next((stack for stack in stacks if len(stack) == depth > 0), nn.ModuleList())


def _agrees(model: Any, tokens: Tensor, mask: Tensor, expected: Tensor) -> bool:
    try:
        logits = model(input_ids=tokens, attention_mask=attention_bias(mask, torch.float32)).logits
        largest = expected.abs().max().clamp(min=1e-2)
        return bool((logits - expected).abs().max() <= _SAME * largest)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
        return False  # a model that does something else with its layers' results
