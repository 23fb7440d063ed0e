"""The transformer layers of a classifier: their parts, and replacements for them.

Only the layers of BERT and its kin are known, by the names of their parts. Replacements are tested
for equal answers of the whole model.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

# Maps a mask of shape (batch, length) to the one given to the layers.
MaskFunction = Callable[[Tensor], Tensor]
_SAME = 1e-4  # relative difference allowed between logits of the same model in fp32
# Names of the `LayerParts` in the layers of BERT, RoBERTa, ELECTRA and their kin, and in those of
# DistilBERT.
_BERT = (
    "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
    "attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm",
    "intermediate.intermediate_act_fn",
)  # fmt: skip
_DISTILBERT = (
    "attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin", "sa_layer_norm",
    "ffn.lin1", "ffn.lin2", "output_layer_norm", "ffn.activation",
)  # fmt: skip


class LayerParts(NamedTuple):
    """The parts of one transformer layer (Vaswani et al. 2017) that normalises after each sum."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    attended: nn.Linear
    attended_norm: nn.LayerNorm
    widen: nn.Linear
    narrow: nn.Linear
    norm: nn.LayerNorm
    activation: nn.Module


def layer_stack(model: Any) -> nn.ModuleList:
    """Return a model's transformer layers; an empty list if they share their weights."""
    depth = getattr(model.config, "num_hidden_layers", 0)
    stacks = (part for part in model.modules() if isinstance(part, nn.ModuleList))
    return next((stack for stack in stacks if len(stack) == depth > 0), nn.ModuleList())


def layer_parts(model: Any) -> list[LayerParts]:
    """Return the parts of each layer of a model; none if one of them is not known."""
    parts = []
    for layer in layer_stack(model):
        names = _BERT if hasattr(layer, "intermediate") else _DISTILBERT
        try:
            found: list[Any] = [layer.get_submodule(name) for name in names]
        except AttributeError:
            return []
        weighted = found[:-1]
        plain = all(type(part) in (nn.Linear, nn.LayerNorm) for part in weighted)
        if not plain or any(part.bias is None for part in weighted):
            return []
        parts.append(LayerParts(*found))
    return parts


def put_layers(model: Any, layers: Sequence[nn.Module]) -> list[nn.Module]:
    """Replace a model's layers. Returns those it had."""
    stack = layer_stack(model)
    own = list(stack)
    for at, layer in enumerate(layers):
        stack[at] = layer
    return own


def gives_same_logits(model: Any, layers: Sequence[nn.Module], mask_function: MaskFunction) -> bool:
    """True if other layers leave a model's logits of random tokens unchanged; restores its own."""
    lengths = torch.tensor([[3], [7], [11], [16], [19], [24]])
    mask = (torch.arange(24) < lengths).long()
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, model.config.vocab_size, mask.shape, generator=draw)
    with torch.inference_mode():
        expected = model(input_ids=tokens, attention_mask=mask).logits
        own = put_layers(model, layers)
        try:
            logits = model(input_ids=tokens, attention_mask=mask_function(mask)).logits
            largest = expected.abs().max().clamp(min=1e-2)
            return bool((logits - expected).abs().max() <= _SAME * largest)
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
            return False  # a model that uses its layers' results differently
        finally:
            put_layers(model, own)


def attention_bias(mask: Tensor, dtype: torch.dtype = torch.float32, multiple: int = 1) -> Tensor:
    """Return the bias added to attention scores, of shape (batch, 1, 1, keys), for a mask (batch,
    length). `keys` is the length rounded up to a `multiple`. Models pass on 4D masks unchanged."""
    least = torch.finfo(dtype).min
    bias = (1.0 - mask[:, None, None, :].to(dtype)) * least
    if multiple == 1:
        return bias
    return functional.pad(bias, (0, -mask.shape[1] % multiple), value=least)


class LastLayer(nn.Module):
    """The last layer, for a head that reads the first token alone. For the other tokens it computes
    keys and values only. It has no dropout, and returns shape (batch, 1, width)."""

    def __init__(self, parts: LayerParts, heads: int) -> None:
        super().__init__()
        self.parts, self.heads = nn.ModuleList(parts), heads

    def forward(self, hidden: Tensor, mask: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
        """Takes hidden states of shape (batch, length, width) and an attention mask of shape
        (batch, 1, queries, keys): an `attention_bias`, or false where there is no token."""
        parts: Any = LayerParts(*self.parts)
        rows = hidden[:, :1]
        query, key, value = (
            part(states).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part, states in ((parts.query, rows), (parts.key, hidden), (parts.value, hidden))
        )
        if mask is not None:
            mask = mask[:, :, :1, : hidden.shape[1]]
        gathered = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        rows = parts.attended_norm(parts.attended(gathered.transpose(1, 2).flatten(2)) + rows)
        return parts.norm(parts.narrow(parts.activation(parts.widen(rows))) + rows)  # type: ignore[no-any-return]


def compute_first_token_only(model: Any) -> None:
    """In the last layer, compute only keys and values for all tokens but the first, if the answers
    stay the same. For a classifier in fp32 without dropout; keeps its weights and their names."""
    stack, parts = layer_stack(model), layer_parts(model)
    if not parts or model.config._attn_implementation not in ("eager", "sdpa"):
        return
    last = LastLayer(parts[-1], model.config.num_attention_heads)
    if gives_same_logits(model, [*stack[:-1], last], lambda mask: mask):
        stack[-1].forward = last.forward
