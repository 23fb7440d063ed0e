"""`python -m finetune export`: a saved model as ONNX, checked against PyTorch.

A process of its own, so that no page loads torch for it. Knows a `from_pretrained` folder and a
file; nothing of runs.

Source: https://docs.pytorch.org/docs/stable/onnx_export.html
"""

from __future__ import annotations

import argparse
import inspect
import json
import logging
import os
import secrets
import shutil
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import DataCollatorWithPadding

from finetune import disk
from finetune.data import checkpoints
from finetune.errors import FinetuneError, ModelError
from finetune.training import model

TOLERANCE = 1e-4  # of a logit
_APART = 1_900_000_000  # bytes of weights beyond which protobuf cannot hold them in one file
_BATCHES = (1, 2, 5)


@dataclass(frozen=True)
class Exported:
    """A file whose answers were compared with PyTorch's.

    Args:
        file: the model; weights of more than 1.9 GB lie beside it in `<file>.data`.
        inputs: names of its inputs, each int64 of shape (batch, length), both free. Its output is
            `logits`, of shape (batch, classes).
        bytes: of all its files.
        difference: the largest difference of a logit.
    """

    file: Path
    inputs: list[str]
    bytes: int
    difference: float


def export_onnx(folder: Path, to: Path, max_length: int) -> Exported:
    """Write a saved model as ONNX; the file is there whole and verified, or not at all.

    The classes' names and `max_length` are in its metadata, as JSON.

    Args:
        folder: what `model.save` wrote.
        to: the file to make, or to replace.
        max_length: the longest input in tokens that it is verified with.

    Raises:
        ModelError: when there is no such model, its kind cannot be exported, its answers differ
            from PyTorch's by more than 1e-4, or the file cannot be written.
    """
    tokenizer, classifier = model.load_saved_model(folder)
    limit = checkpoints.most_tokens(classifier.config.to_dict())
    if max_length < 2 or (limit and max_length > limit):
        raise ModelError(
            f"max_length is {max_length} but the model reads from 2 to {limit or 'any'} tokens.",
            "Give another one.",
        )
    names = _inputs(tokenizer, classifier)
    aside = to.with_name(f".{to.name}.{secrets.token_hex(4)}")
    try:
        aside.mkdir(parents=True)
        made = aside / to.name
        _write(classifier, _batch(tokenizer, classifier, 2, 8), names, max_length, made)
        worst = max_logit_difference(made, tokenizer, classifier, max_length)
        size = sum(path.stat().st_size for path in aside.iterdir())
        for path in sorted(aside.iterdir(), reverse=True):  # the weights before what names them
            os.replace(path, to.with_name(path.name))
    except OSError as error:
        raise disk.failure(to, error, ModelError, "") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return Exported(to, names, size, worst)


class _Positional(torch.nn.Module):
    """The classifier with its inputs in order and its logits alone, as the exporter wants it."""

    def __init__(self, classifier: Any, names: list[str]) -> None:
        super().__init__()
        self._classifier, self._names = classifier, names

    def forward(self, *given: torch.Tensor) -> Any:
        return self._classifier(**dict(zip(self._names, given, strict=True))).logits


def _inputs(tokenizer: Any, classifier: Any) -> list[str]:
    """What the tokenizer gives and the model takes."""
    taken = inspect.signature(classifier.forward).parameters
    return [name for name in tokenizer.model_input_names if name in taken]


def _write(
    classifier: Any, example: dict[str, torch.Tensor], names: list[str], max_length: int, to: Path
) -> None:
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                _Positional(classifier, names),
                tuple(example[name] for name in names),
                input_names=names,
                output_names=["logits"],
                dynamic_shapes=(tuple(free for _ in names),),
                # The older exporter gave logits 0.02 off for batches unlike its example, without
                # a word.
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # the exporter raises whatever its passes do
        raise ModelError(
            f"A {classifier.config.model_type} model cannot be exported: {_reason(error)}",
            "Encoders such as BERT, RoBERTa, DistilBERT and DeBERTa can.",
        ) from error
    assert program is not None, "the exporter was told to use dynamo"
    labels = [classifier.config.id2label[index] for index in range(classifier.config.num_labels)]
    program.model.metadata_props["labels"] = json.dumps(labels, ensure_ascii=False)
    program.model.metadata_props["max_length"] = json.dumps(max_length)
    weights = sum(one.numel() * one.element_size() for one in classifier.parameters())
    program.save(str(to), external_data=weights > _APART)


def _reason(error: BaseException) -> str:
    """The innermost cause's first line: the exporter wraps it in pages of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def max_logit_difference(file: Path, tokenizer: Any, classifier: Any, max_length: int) -> float:
    """The largest difference of a logit between onnxruntime and PyTorch, over batches of several
    sizes and lengths, most with padding.

    Raises:
        ModelError: when it is beyond 1e-4, naming the batch; or when onnxruntime cannot run it.
    """
    import onnxruntime

    names = _inputs(tokenizer, classifier)
    lengths = sorted({min(length, max_length) for length in (3, 17, max_length // 2, max_length)})
    worst, at = 0.0, ""
    try:
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        for length in (one for one in lengths if one > 1):
            for size in _BATCHES:
                batch = _batch(tokenizer, classifier, size, length)
                given = {name: batch[name].numpy() for name in names}
                found = torch.from_numpy(session.run(["logits"], given)[0])
                with torch.no_grad():
                    wanted = classifier(**{name: batch[name] for name in names}).logits.float()
                apart = (found - wanted).abs().max().nan_to_num(torch.inf).item()
                if apart > worst:
                    worst, at = apart, f"a batch of {size} with up to {length} tokens"
    except Exception as error:  # onnxruntime's errors have no common base
        raise ModelError(
            f"onnxruntime cannot run what was exported: {_reason(error)}", "The log has the rest."
        ) from error
    if worst > TOLERANCE:
        raise ModelError(
            f"The exported model answers otherwise than PyTorch: in {at} a logit differs by "
            f"{worst:.2g}, and {TOLERANCE:g} is allowed.",
            "Nothing was written; use the model with PyTorch.",
        )
    return worst


def _batch(tokenizer: Any, classifier: Any, size: int, length: int) -> dict[str, torch.Tensor]:
    """Random tokens as pairs of sentences; the first example is `length` long, others shorter."""
    draw = torch.Generator().manual_seed(size * 100_003 + length)
    count = min(len(tokenizer), classifier.config.vocab_size)
    ordinary = sorted(set(range(count)) - set(tokenizer.all_special_ids)) or list(range(count))
    examples = []
    for index in range(size):
        own = max(2, length - index * length // (size + 1))
        drawn = torch.randint(len(ordinary), (own,), generator=draw)
        examples.append(
            {
                "input_ids": [ordinary[one] for one in drawn.tolist()],
                "attention_mask": [1] * own,
                "token_type_ids": [int(place >= own // 2) for place in range(own)],
            }
        )
    known = {"input_ids", "attention_mask", *tokenizer.model_input_names}
    kept = [{name: one[name] for name in one if name in known} for one in examples]
    return dict(DataCollatorWithPadding(tokenizer)(kept))


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0 done, 1 with the reason on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m finetune export",
        description="Write a saved model as ONNX, and verify it.",
    )
    parser.add_argument("--model", type=Path, required=True, help="a from_pretrained folder")
    parser.add_argument("--to", type=Path, required=True, help="the file to make")
    parser.add_argument(
        "--max_length", type=int, default=128,
        help="the longest input it is verified with (default: 128)",
    )  # fmt: skip
    chosen = parser.parse_args(arguments)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it names every package it lacks
    try:
        made = export_onnx(chosen.model, chosen.to, chosen.max_length)
    except FinetuneError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    print(
        f"{made.file}: {made.bytes / 1e6:,.1f} MB, inputs {', '.join(made.inputs)}; "
        f"logits differ from PyTorch's by at most {made.difference:.1g}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
