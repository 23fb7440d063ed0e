"""`python -m finetune export`: a saved model as ONNX, checked against PyTorch.

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

from finetune import disk, hub_errors
from finetune.data import checkpoints
from finetune.errors import FinetuneError, ModelError
from finetune.training import model

TOLERANCE = 1e-4  # of a logit


@dataclass(frozen=True)
class Exported:
    """A file whose answers were compared with PyTorch's."""

    inputs: list[str]  # names; each is int64 of shape (batch, length), both free
    bytes: int  # of the file, and of `<file>.data` where the weights do not fit into one
    difference: float  # the largest of a logit


def export_onnx(folder: Path, to: Path, max_length: int) -> Exported:
    """Write a saved model as ONNX; the file is there whole and verified, or not at all.

    The classes' names and `max_length` are in its metadata, as JSON.

    Args:
        folder: what `model.save_model` wrote.
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
            "max_length is {max_length} but the model reads from 2 to {limit} tokens.",
            "Give another one.",
            max_length=max_length,
            limit=limit or "any",
        )
    temporary = to.with_name(f".{to.name}.{secrets.token_hex(4)}")
    try:
        temporary.mkdir(parents=True)
        _write(tokenizer, classifier, max_length, temporary / to.name)
        worst = max_logit_difference(temporary / to.name, tokenizer, classifier, max_length)
        size = sum(path.stat().st_size for path in temporary.iterdir())
        for path in sorted(temporary.iterdir(), reverse=True):  # the weights before what names them
            os.replace(path, to.with_name(path.name))
    except OSError as error:
        raise disk.failure(to, error, ModelError, "") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Exported(_input_names(tokenizer, classifier), size, worst)


def _input_names(tokenizer: Any, classifier: Any) -> list[str]:
    """What the tokenizer gives and the model takes."""
    parameters = inspect.signature(classifier.forward).parameters
    return [name for name in tokenizer.model_input_names if name in parameters]


def _write(tokenizer: Any, classifier: Any, max_length: int, to: Path) -> None:
    names = _input_names(tokenizer, classifier)
    example = _random_batch(tokenizer, classifier, 2, 8)
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # With dynamo: the older exporter gave logits 0.02 off for batches unlike its example.
            program = torch.onnx.export(
                classifier,
                kwargs={name: example[name] for name in names},
                output_names=["logits"],
                dynamic_shapes=dict.fromkeys(names, free),
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # the exporter raises whatever its passes do
        raise ModelError(
            "A {model_type} model cannot be exported: {error}",
            "Encoders such as BERT, RoBERTa, DistilBERT and DeBERTa can.",
            model_type=classifier.config.model_type,
            error=_reason(error),
        ) from error
    assert program is not None, "the exporter was told to use dynamo"
    labels = [classifier.config.id2label[index] for index in range(classifier.config.num_labels)]
    program.model.metadata_props["labels"] = json.dumps(labels, ensure_ascii=False)
    program.model.metadata_props["max_length"] = json.dumps(max_length)
    program.save(str(to))


def _reason(error: BaseException) -> str:
    """The innermost cause's first line: the exporter wraps it in pages of advice."""
    return hub_errors.first_line(hub_errors.chain(error)[-1])


def max_logit_difference(file: Path, tokenizer: Any, classifier: Any, max_length: int) -> float:
    """The largest difference of a logit between onnxruntime and PyTorch, over batches of several
    sizes and lengths, most with padding."""
    import onnxruntime

    names, worst = _input_names(tokenizer, classifier), 0.0
    lengths = {max(2, min(length, max_length)) for length in (3, 17, max_length // 2, max_length)}
    try:
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        for length, size in ((length, size) for length in lengths for size in (1, 2, 5)):
            batch = _random_batch(tokenizer, classifier, size, length)
            (logits,) = session.run(["logits"], {name: batch[name].numpy() for name in names})
            with torch.no_grad():
                expected = classifier(**{name: batch[name] for name in names}).logits.float()
            difference = (torch.from_numpy(logits) - expected).abs().max()
            worst = max(worst, difference.nan_to_num(torch.inf).item())
    except Exception as error:  # onnxruntime's errors have no common base
        raise ModelError(
            "onnxruntime cannot run what was exported: {error}",
            "The log has the rest.",
            error=_reason(error),
        ) from error
    if worst > TOLERANCE:
        raise ModelError(
            "The exported model answers otherwise than PyTorch: a logit differs by "
            "{worst:.2g}, and {tolerance:g} is allowed.",
            "Nothing was written; use the model with PyTorch.",
            worst=worst,
            tolerance=TOLERANCE,
        )
    return worst


def _random_batch(tokenizer: Any, classifier: Any, size: int, length: int) -> Any:
    """Random tokens as pairs of sentences; the first example is `length` long, others shorter."""
    generator = torch.Generator().manual_seed(size * 100_003 + length)
    count = min(len(tokenizer), classifier.config.vocab_size)
    special = torch.tensor(tokenizer.all_special_ids)
    ordinary = torch.arange(count)[~torch.isin(torch.arange(count), special)]
    examples = []
    for index in range(size):
        own = max(2, length - index * length // (size + 1))
        example = {"input_ids": ordinary[torch.randint(len(ordinary), (own,), generator=generator)]}
        if "token_type_ids" in tokenizer.model_input_names:
            example["token_type_ids"] = (torch.arange(own) >= own // 2).long()
        examples.append({name: row.tolist() for name, row in example.items()})
    return DataCollatorWithPadding(tokenizer)(examples)


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0 done, 1 with the reason on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m finetune export",
        description="Write a saved model as ONNX, and verify it.",
    )
    parser.add_argument("--model", type=Path, required=True, help="a from_pretrained folder")
    parser.add_argument("--to", type=Path, required=True, help="the file to make")
    length_help = "the longest input it is verified with (default: 128)"
    parser.add_argument("--max_length", type=int, default=128, help=length_help)
    args = parser.parse_args(arguments)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it names every package it lacks
    try:
        exported = export_onnx(args.model, args.to, args.max_length)
    except FinetuneError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    print(
        f"{args.to}: {exported.bytes / 1e6:,.1f} MB, inputs {', '.join(exported.inputs)}; "
        f"logits differ from PyTorch's by at most {exported.difference:.1g}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
