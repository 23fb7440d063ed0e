"""A saved model as ONNX, checked against PyTorch.

Source: https://docs.pytorch.org/docs/stable/onnx_export.html
"""

import contextlib
import inspect
import itertools
import json
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from finetune import disk, hub_errors
from finetune.data import checkpoints
from finetune.environment import logs
from finetune.errors import ModelError
from finetune.hub.model_card import EXAMPLES
from finetune.runs.run import NOTES, read_notes
from finetune.training import layers, model

TOLERANCE = 1e-4  # of a logit


def export_onnx(folder: Path, to: Path) -> float:
    """Export a saved model to ONNX. The file appears complete and verified, or not at all.
    ModelError if the model cannot be loaded, exported or written, or its logits change.

    Its inputs are int64 of shape (batch, length), both dynamic. Its metadata has as JSON the names
    of the classes (`labels`), the longest input in tokens (`max_length`) and the person's choices,
    such as a threshold and from when on it is sure (`finetune`, see `decision_rule`). Returns the
    largest difference of a logit.
    """
    tokenizer, classifier = model.load_saved_model(folder)
    longest = checkpoints.most_tokens(classifier.config.to_dict()) or checkpoints.DEFAULT_LENGTH
    max_length = min(tokenizer.model_max_length, longest)
    with disk.writing(to, ModelError, ""):
        to.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=to.parent, prefix=".onnx-") as temporary:
            file = Path(temporary) / to.name
            _write(tokenizer, classifier, max_length, file, read_notes(folder))
            difference = max_logit_difference(file, tokenizer, classifier, max_length)
            # Weights that do not fit into the file lie beside it; they move before the file does.
            for path in sorted(file.parent.iterdir(), reverse=True):
                shutil.move(path, to.with_name(path.name))
    return difference


def _batch(tokenizer: Any, classifier: Any, size: int, length: int) -> dict[str, torch.Tensor]:
    """The model's inputs for some pairs, padded; the first is cut to `length` tokens."""
    repeats = [1 + length // (2 + 2 * row) for row in range(size)]
    columns = [[f"{sentence} " * count for count in repeats] for sentence in EXAMPLES[0]]
    options = {"truncation": True, "max_length": length, "padding": True, "return_tensors": "pt"}
    encoded = tokenizer(*columns, **options)
    parameters = inspect.signature(classifier.forward).parameters
    return {name: values for name, values in encoded.items() if name in parameters}


def _write(
    tokenizer: Any, classifier: Any, max_length: int, to: Path, notes: dict[str, Any]
) -> None:
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    classifier.config.use_cache = False  # a decoder would return what it keeps for the next token
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
        cause = hub_errors.chain(error)[-1]  # without the exporter's advice
        raise ModelError(
            "A {model_type} model cannot be exported: {error}",
            "Encoders such as BERT, RoBERTa, DistilBERT and DeBERTa can.",
            model_type=classifier.config.model_type, error=logs.first_line(cause),
        ) from error  # fmt: skip
    assert program is not None, "the exporter was told to use dynamo"
    labels = [classifier.config.id2label[index] for index in range(classifier.config.num_labels)]
    for name, value in {"labels": labels, "max_length": max_length, NOTES: notes}.items():
        program.model.metadata_props[name] = json.dumps(value, ensure_ascii=False)
    program.save(str(to))


@contextlib.contextmanager
def _with_last_layer(classifier: Any) -> Iterator[None]:
    """Let a classifier whose head reads only the first token compute its last layer only for that
    token, if its layers are of a known kind. Saves a sixth of the work of six layers."""
    parts = layers.layer_parts(classifier)
    last = [layers.LastLayer(part, classifier.config.num_attention_heads) for part in parts[-1:]]
    trimmed = [*layers.layer_stack(classifier)[:-1], *last]
    if not last or not layers.gives_same_logits(classifier, trimmed, layers.attention_bias):
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
    """The largest difference of a logit between ONNX Runtime and PyTorch, over batches of several
    sizes and lengths, most with padding; ModelError if it is too large."""
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
            "The exported model does not agree with PyTorch: a logit differs by "
            "{worst:.2g}, and {tolerance:g} is allowed.",
            "Nothing was written; use the model with PyTorch.",
            worst=worst,
            tolerance=TOLERANCE,
        )
    return worst
