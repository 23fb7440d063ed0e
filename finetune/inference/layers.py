"""The layers of BERT and its kin, made anew to answer on a processor: the same numbers, sooner.

What is saved: query, key and value are one product, of weights laid out beforehand. Attention is
plain products with the keys padded to whole vectors, for a softmax over rows that end in a part of
one takes twice as long. And where the head reads the first token alone, the last layer computes the
others' keys and values and nothing else of them. Embeddings and head stay the model's own.

Knows a model only by the names of its parts. Whether the answers are the same is not assumed:
`quicken` compares them, and leaves alone what differs.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_WHOLE = 32  # keys are padded to a multiple of this: bf16 numbers of a 512-bit vector
_SAME = 1e-4  # by which logits of the same model in fp32 may differ, as a part of their size


@dataclass(frozen=True)
class _Parts:
    """One layer's parts, whatever its family calls them."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    attended: nn.Linear
    attended_norm: nn.LayerNorm
    widen: nn.Linear
    activation: Any
    narrow: nn.Linear
    norm: nn.LayerNorm


def _parts(layer: Any) -> _Parts | None:
    """The parts of a layer of BERT, RoBERTa, ELECTRA or their kin, or of DistilBERT's."""
    try:
        if hasattr(layer, "ffn"):
            own, wide = layer.attention, layer.ffn
            found = _Parts(
                own.q_lin, own.k_lin, own.v_lin, own.out_lin, layer.sa_layer_norm,
                wide.lin1, wide.activation, wide.lin2, layer.output_layer_norm,
            )  # fmt: skip
        else:
            own, out = layer.attention.self, layer.attention.output
            found = _Parts(
                own.query, own.key, own.value, out.dense, out.LayerNorm,
                layer.intermediate.dense, layer.intermediate.intermediate_act_fn,
                layer.output.dense, layer.output.LayerNorm,
            )  # fmt: skip
    except AttributeError:
        return None
    plain = all(
        type(one) in (nn.Linear, nn.LayerNorm)
        for name, one in vars(found).items()
        if name != "activation"
    )
    return found if plain else None


class _Product(nn.Module):
    """A product with fixed weights, laid out beforehand as the processor's kernel wants them.

    The operators are those of `torch.compile`, none of PyTorch's public ones: where they are
    missing, the ordinary one serves."""

    def __init__(self, weights: list[Tensor], biases: list[Tensor], dtype: torch.dtype) -> None:
        super().__init__()
        weight = torch.cat(weights).detach().to(dtype)
        self.bias = torch.cat(biases).detach().to(dtype)
        self.packed = True
        try:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, None)
            self(weight[:1])
        except (RuntimeError, AttributeError):
            self.weight, self.packed = weight, False

    def forward(self, rows: Tensor) -> Tensor:
        if not self.packed:
            return functional.linear(rows, self.weight, self.bias)
        found: Tensor = torch.ops.mkldnn._linear_pointwise(
            rows, self.weight, self.bias, "none", [], ""
        )
        return found


class Layer(nn.Module):
    """One transformer layer with its normalisation after each sum, without dropout.

    Source: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, as in Devlin et al. 2018.

    Args:
        parts: the layer it stands for; its weights are copied.
        heads: attention heads.
        first_only: return the first token alone, of shape (batch, 1, width), in fp32.
        dtype: what it computes in.
    """

    def __init__(self, parts: _Parts, heads: int, first_only: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads, self.first_only, self.dtype = heads, first_only, dtype
        self.width = parts.query.out_features
        scale = (self.width // heads) ** -0.5
        query, key, value = (
            (one.weight, one.weight.new_zeros(self.width) if one.bias is None else one.bias)
            for one in (parts.query, parts.key, parts.value)
        )
        query = (query[0] * scale, query[1] * scale)
        groups = [[query], [key, value]] if first_only else [[query, key, value]]
        self.inward = nn.ModuleList(
            _Product([one[0] for one in group], [one[1] for one in group], dtype)
            for group in groups
        )
        self.attended, self.widen, self.narrow = (
            _Product([one.weight], [one.bias], dtype)
            for one in (parts.attended, parts.widen, parts.narrow)
        )
        self.activation = parts.activation
        self.attended_norm = copy.deepcopy(parts.attended_norm).to(dtype)
        self.norm = copy.deepcopy(parts.norm).to(dtype)

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
            query = self.inward[0](rows)
            key, value = self.inward[1](hidden).split(self.width, dim=-1)
        else:
            query, key, value = self.inward[0](hidden).split(self.width, dim=-1)
        keys = mask.shape[-1]
        scores = self._heads(query) @ self._heads(key, keys).transpose(2, 3)
        shares = scores.add_(mask).softmax(dim=-1)
        found: Tensor = shares @ self._heads(value, keys)
        return found.transpose(1, 2).reshape(rows.shape)

    def _heads(self, rows: Tensor, length: int = 0) -> Tensor:
        """(batch, length, width) -> (batch, heads, length, size), with zeros up to `length`."""
        batch, given, width = rows.shape
        split = rows.view(batch, given, self.heads, width // self.heads).transpose(1, 2)
        if given >= length:
            return split.contiguous()
        padded = rows.new_empty(batch, self.heads, length, width // self.heads)
        padded[:, :, :given] = split
        padded[:, :, given:] = 0.0
        return padded


def attention_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to attention's scores: nothing for a token, the least number for padding.

    Of shape (batch, 1, 1, keys), the keys a whole number of vectors, of a mask (batch, length). A
    model passes a mask of four dimensions on to its layers as it is."""
    keys = -(-mask.shape[1] // _WHOLE) * _WHOLE
    bias = torch.full((len(mask), 1, 1, keys), torch.finfo(dtype).min, dtype=dtype)
    bias[:, 0, 0, : mask.shape[1]].masked_fill_(mask.bool(), 0.0)
    return bias


def optimize_layers(model: Any, dtype: torch.dtype) -> bool:
    """Put `Layer`s in the place of a classifier's layers, if it then answers as before.

    Judged in fp32, on random tokens of several lengths; `dtype` is set after that. Where they are
    replaced, the model's attention mask must be `attention_bias`'s; otherwise it is as it was."""
    stack = _stack(model)
    if stack is None:
        return False
    tokens, mask = _made_up(model)
    heads = model.config.num_attention_heads
    before, parts = list(stack), [_parts(layer) for layer in stack]
    with torch.inference_mode():
        wanted = model(input_ids=tokens, attention_mask=mask).logits
        for first_only in (True, False):
            _fill(stack, parts, heads, first_only, torch.float32)
            if _agree(model, tokens, mask, wanted):
                _fill(stack, parts, heads, first_only, dtype)
                return True
    for index, layer in enumerate(before):
        stack[index] = layer
    return False


def _stack(model: Any) -> Any:
    """The list of a model's layers, if all of them have the known parts."""
    depth = getattr(model.config, "num_hidden_layers", 0)
    for one in model.modules():
        if isinstance(one, nn.ModuleList) and len(one) == depth > 0:
            return one if all(_parts(layer) is not None for layer in one) else None
    return None


def _fill(stack: Any, parts: list[Any], heads: int, first_only: bool, dtype: torch.dtype) -> None:
    last = len(parts) - 1
    for index, one in enumerate(parts):
        stack[index] = Layer(one, heads, first_only and index == last, dtype).eval()


def _agree(model: Any, tokens: Tensor, mask: Tensor, wanted: Tensor) -> bool:
    try:
        found = model(input_ids=tokens, attention_mask=attention_bias(mask, torch.float32)).logits
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
        return False  # a model that does something else with its layers' results
    if found.shape != wanted.shape:
        return False
    return bool((found - wanted).abs().max() <= _SAME * wanted.abs().max().clamp(min=1e-2))


def _made_up(model: Any) -> tuple[Tensor, Tensor]:
    """Random tokens of several lengths in one batch, and their mask."""
    lengths = torch.tensor([3, 7, 11, 16, 19, 24])
    padding = getattr(model.config, "pad_token_id", None) or 0
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, model.config.vocab_size, (len(lengths), 24), generator=draw)
    mask = (torch.arange(24)[None] < lengths[:, None]).long()
    tokens[tokens == padding] = (padding + 1) % model.config.vocab_size
    return tokens.where(mask.bool(), padding), mask
