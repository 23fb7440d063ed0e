"""The last layer computed for the token that the head reads: the same answers and gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from finetune.config import RunConfig
from finetune.data.sources import LABELS
from finetune.jobs import cost
from finetune.tasks.base import Target
from finetune.training import layers, model
from tests.support.families import write

TARGET = Target(tuple(LABELS))


def gradients(classifier: Any, tokens: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """The loss's gradient by every weight, after a batch."""
    classifier.train()
    batch = {"input_ids": tokens, "attention_mask": mask, "labels": torch.tensor([0, 1, 1])}
    classifier(**batch).loss.backward()
    return {name: weights.grad for name, weights in classifier.named_parameters()}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("family", ["Bert", "Roberta", "XLMRoberta", "Electra", "DistilBert"])
def test_its_weights_learn_the_same(
    tmp_path: Path, family: str, padded: bool, attention: str
) -> None:
    write(tmp_path, family)
    tokens = torch.randint(5, 20, (3, 9), generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([[9], [4], [7]]) if padded else torch.tensor([[9]])
    mask = (torch.arange(9) < lengths).long().expand(3, 9)
    sides = {}
    for dropout in (0.0, -1.0):
        torch.manual_seed(0)  # for the head
        _, classifier, _ = model.load_classifier(str(tmp_path), TARGET, 32, 0.0, attention)
        config = RunConfig(dropout=dropout, freeze_embeddings=False)
        classifier = model.apply_config(classifier, config)
        widths: list[int] = []
        layers.layer_stack(classifier)[-1].register_forward_hook(
            lambda _, inputs, output, widths=widths: widths.append(output.shape[1])
        )
        sides[dropout] = (gradients(classifier, tokens, mask), widths)
    assert (sides[0.0][1], sides[-1.0][1]) == ([1], [9])
    assert classifier.config.model_type in cost.SHORTENED
    assert sides[0.0][0].keys() == sides[-1.0][0].keys()
    for name, expected in sides[-1.0][0].items():
        assert torch.allclose(sides[0.0][0][name], expected, atol=1e-6), name
