"""Damage: what a crash, a full disk or another program may leave of a file."""

import io
import json
import random

import numpy as np

_ODD = (None, [], {}, "", "odd", -1, 0, 1e308, 10**40, True, float("nan"), [[1]], {"odd": []})


def damages(path):
    """Descriptions and contents that may stand in the place of a file's; None: it is missing."""
    content = path.read_bytes()
    yield "missing", None
    yield "empty", b""
    yield "half of it", content[: len(content) // 2]
    yield "noise", random.Random(1).randbytes(500)
    yield "zeros", bytes(len(content))
    match path.suffix:
        case ".json" if content.strip():
            yield from _other_json(content)
        case ".jsonl":
            yield from _other_events(content)
        case ".npz":
            yield from _other_arrays(content)


def _other_json(content):
    for what, value in _variants(json.loads(content)):
        yield what, json.dumps(value).encode()


def _other_events(content):
    """One kind of event otherwise, wherever it stands."""
    happened = [json.loads(line) for line in content.splitlines()]
    for kind in dict.fromkeys(event["event"] for event in happened):
        first = next(event for event in happened if event["event"] == kind)
        variants = [(f"no {kind}", None), *_variants(first)]
        for what, variant in variants:
            if variant is not None and not (isinstance(variant, dict) and "event" in variant):
                continue
            lines = [variant if event["event"] == kind else event for event in happened]
            text = "".join(json.dumps(line) + "\n" for line in lines if line is not None)
            yield f"{kind}: {what}", text.encode()


def _variants(value, where=""):
    """A JSON value with one part of it missing, or odd."""
    for odd in _ODD:
        if type(odd) is not type(value) or odd != value:
            yield f"{where or 'all'} = {odd!r}", odd
    if isinstance(value, dict):
        for name, part in value.items():
            rest = {other: kept for other, kept in value.items() if other != name}
            yield f"{where}.{name} missing", rest
            for what, changed in _variants(part, f"{where}.{name}"):
                yield what, value | {name: changed}
    if isinstance(value, list) and value:
        yield f"{where} shorter", value[:-1]
        yield f"{where} longer", [*value, value[-1]]
        for what, changed in _variants(value[0], f"{where}[0]"):
            yield what, [changed, *value[1:]]


def _other_arrays(content):
    with np.load(io.BytesIO(content)) as file:
        arrays = dict(file)
    for name, array in arrays.items():
        rest = {other: kept for other, kept in arrays.items() if other != name}
        yield f"no {name}", _npz(rest)
        text, lost = array.astype(str), np.full(array.shape, np.nan)
        for what, other in (
            ("text", text), ("objects", text.astype(object)), ("not numbers", lost),
            ("fewer", array[:-1] if array.ndim else array.reshape(1)), ("one number", np.array(7)),
            ("large", array * 0 + 99), ("deeper", array[None]), ("negative", array * 0 - 5),
        ):  # fmt: skip
            yield f"{name}: {what}", _npz(rest | {name: other})
        if array.ndim == 2:
            yield f"{name}: one class", _npz(rest | {name: array[:, :1]})
            yield f"{name}: more classes", _npz(rest | {name: np.hstack([array, array])})


def _npz(arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()
