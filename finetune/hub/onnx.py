"""`python -m finetune export`: a saved model as ONNX, checked against PyTorch.

Source: https://docs.pytorch.org/docs/stable/onnx_export.html
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import itertools
import json
import logging
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from finetune import disk, hub_errors
from finetune.data import checkpoints
from finetune.errors import ModelError
from finetune.evaluation import quantization
from finetune.hub.model_card import EXAMPLES
from finetune.inference import quantized
from finetune.inference.quantized import QuantizationReport
from finetune.metrics.catalog import F1, metric_name
from finetune.runs.run import Run
from finetune.runs.store import default_root, named_run
from finetune.training import layers, model

TOLERANCE = 1e-4  # of a logit


def export_onnx(folder: Path, to: Path) -> float:
    """Write a saved model as ONNX; the file is there whole and verified, or not at all.

    Its inputs are int64 of shape (batch, length), both free. The classes' names and the longest
    input in tokens are in its metadata, as JSON. Returns the largest difference of a logit.

    Raises:
        ModelError: when it cannot be loaded, exported or written, or answers otherwise.
    """
    tokenizer, classifier = model.load_saved_model(folder)
    longest = checkpoints.most_tokens(classifier.config.to_dict()) or checkpoints.DEFAULT_LENGTH
    max_length = min(tokenizer.model_max_length, longest)
    with disk.writing(to, ModelError, ""):
        to.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=to.parent, prefix=".onnx-") as temporary:
            file = Path(temporary) / to.name
            _write(tokenizer, classifier, max_length, file)
            difference = max_logit_difference(file, tokenizer, classifier, max_length)
            # Weights that do not fit into the file lie beside it; they go before what names them.
            for path in sorted(file.parent.iterdir(), reverse=True):
                shutil.move(path, to.with_name(path.name))
    return difference


def _batch(tokenizer: Any, classifier: Any, size: int, length: int) -> dict[str, torch.Tensor]:
    """What the model takes of some pairs, padded; the first is cut to `length` tokens."""
    repeats = [1 + length // (2 + 2 * row) for row in range(size)]
    columns = [[f"{sentence} " * count for count in repeats] for sentence in EXAMPLES[0]]
    options = {"truncation": True, "max_length": length, "padding": True, "return_tensors": "pt"}
    encoded = tokenizer(*columns, **options)
    parameters = inspect.signature(classifier.forward).parameters
    return {name: values for name, values in encoded.items() if name in parameters}


def _write(tokenizer: Any, classifier: Any, max_length: int, to: Path) -> None:
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    try:
        example = _batch(tokenizer, classifier, 2, 8)
        with warnings.catch_warnings(), _with_last_layer(classifier):
            warnings.simplefilter("ignore")
            # With dynamo: the older exporter gave logits 0.02 off for batches unlike its example.
            program = torch.onnx.export(
                classifier,
                kwargs=example,
                output_names=["logits"],
                dynamic_shapes=dict.fromkeys(example, free),
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # the exporter raises whatever its passes do
        raise ModelError(
            "A {model_type} model cannot be exported: {error}",
            "Encoders such as BERT, RoBERTa, DistilBERT and DeBERTa can.",
            model_type=classifier.config.model_type,
            error=hub_errors.first_line(hub_errors.chain(error)[-1]),  # it wraps it in advice
        ) from error
    assert program is not None, "the exporter was told to use dynamo"
    labels = [classifier.config.id2label[index] for index in range(classifier.config.num_labels)]
    program.model.metadata_props["labels"] = json.dumps(labels, ensure_ascii=False)
    program.model.metadata_props["max_length"] = json.dumps(max_length)
    program.save(str(to))


@contextlib.contextmanager
def _with_last_layer(classifier: Any) -> Iterator[None]:
    """Let a classifier whose head reads the first token alone compute its last layer for that
    token, where its layers are known: a sixth less work of six layers."""
    parts = layers.layer_parts(classifier)
    last = [layers.LastLayer(part, classifier.config.num_attention_heads) for part in parts[-1:]]
    trimmed = [*layers.layer_stack(classifier)[:-1], *last]
    if not last or not layers.answers_alike(classifier, trimmed, layers.attention_bias):
        yield
        return

    def with_bias(_: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        return args, kwargs | {"attention_mask": layers.attention_bias(kwargs["attention_mask"])}

    own = layers.put_layers(classifier, trimmed)
    hook = classifier.register_forward_pre_hook(with_bias, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()
        layers.put_layers(classifier, own)


def max_logit_difference(file: Path, tokenizer: Any, classifier: Any, max_length: int) -> float:
    """The largest difference of a logit between onnxruntime and PyTorch, over batches of several
    sizes and lengths, most with padding."""
    import onnxruntime

    worst = 0.0
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    for size, length in itertools.product((1, 2, 5), (8, 17, 64, max_length)):
        batch = _batch(tokenizer, classifier, size, min(length, max_length))
        (logits,) = session.run(["logits"], {name: batch[name].numpy() for name in batch})
        with torch.no_grad():
            expected = classifier(**batch).logits.float()
        difference = (torch.from_numpy(logits) - expected).abs().max()
        worst = max(worst, difference.nan_to_num(torch.inf).item())
    if worst > TOLERANCE:
        raise ModelError(
            "The exported model answers otherwise than PyTorch: a logit differs by "
            "{worst:.2g}, and {tolerance:g} is allowed.",
            "Nothing was written; use the model with PyTorch.",
            worst=worst,
            tolerance=TOLERANCE,
        )
    return worst


def main(arguments: list[str] | None = None) -> int:
    """Export from a terminal."""
    parser = argparse.ArgumentParser(
        prog="python -m finetune export",
        description="Write a saved model as ONNX, and verify it; of a run in int8 too, where that "
        "is as good and faster.",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", type=Path, help="a from_pretrained folder")
    source.add_argument("--run", type=Path, help="a run's id, or its folder")
    parser.add_argument("--runs", type=Path, default=default_root(), help="where runs are kept")
    parser.add_argument(
        "--to",
        type=Path,
        required=True,
        help="the file to make; a run's int8 lies beside it, as a.int8.onnx beside a.onnx",
    )
    args = parser.parse_args(arguments)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it names every package it lacks
    if args.run is None:
        _export(args.model, args.to)
    else:
        _export_run(named_run(args.run, args.runs), args.to)
    return 0


def _export(folder: Path, to: Path) -> None:
    difference = export_onnx(folder, to)
    print(f"{to}: its logits differ from PyTorch's by at most {difference:.1g}")


def _export_run(run: Run, to: Path) -> None:
    """In int8 too if that is kept, as `a.int8.onnx` beside `a.onnx`; no other file is touched."""
    if run.best.resolve() in to.resolve().parents:
        raise ModelError("{to} is in the folder of the run's model.", "Name another file.", to=to)
    small, step = to.with_name(f"{to.stem}.int8{to.suffix}"), run.kept_step()
    _export(run.best, to)
    report = quantization.quantize_model(run, to, step)
    print(_described(report))
    if report.kept:
        with disk.writing(small, ModelError, ""), disk.replacing(small) as new:
            shutil.copy2(run.best / quantized.MODEL, new)
        print(f"{small}: the model in int8")
    elif small.exists():
        print(f"{small} was there before and is left as it is: it is not of this export")


def _described(report: QuantizationReport) -> str:
    """What int8 changes, in a line."""
    (accuracy, accuracy8), (f1, f18) = report.accuracy, report.f1
    speed, speed8 = report.pairs_per_second
    measure = metric_name(F1.name, report.classes)
    return (
        f"int8 ({report.kind}) on {report.pairs:,} validation pairs: accuracy {accuracy:.3f} -> "
        f"{accuracy8:.3f}, {measure} {f1:.3f} -> {f18:.3f} (p = {report.p:.2g}), {speed:.0f} -> "
        f"{speed8:.0f} pairs/s; {'it is used' if report.kept else 'it is not used'}"
    )
