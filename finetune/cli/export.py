"""`python -m finetune export`: a saved model as ONNX, compared with PyTorch."""

from __future__ import annotations

import argparse
import logging
import shutil
from pathlib import Path

from finetune import disk
from finetune.errors import ModelError
from finetune.inference import quantized
from finetune.metrics.catalog import metric_name
from finetune.runs.store import default_root, named_run


def main(arguments: list[str] | None = None) -> int:
    """Export from a terminal."""
    parser = argparse.ArgumentParser(
        prog="python -m finetune export",
        description="Write a saved model as ONNX, and verify it; of a run in int8 too, where that "
        "is as good and faster.",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", type=Path, help="a from_pretrained folder")
    source.add_argument("--run", type=Path, help="a run's name, id or folder")
    parser.add_argument("--runs", type=Path, default=default_root(), help="where runs are kept")
    parser.add_argument(
        "--to",
        type=Path,
        required=True,
        help="the file to make; a run's int8 lies beside it, as a.int8.onnx beside a.onnx",
    )
    args = parser.parse_args(arguments)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # names every missing package
    run, to = named_run(args.run, args.runs) if args.run else None, args.to
    folder = (run.best if run else args.model).resolve()
    if folder in to.resolve().parents and (run or to.suffix != ".onnx"):
        raise ModelError("{to} is in the folder of the model.", "Name another file.", to=to)
    from finetune.hub.onnx import export_onnx

    step = run.best_step() if run else 0
    difference = export_onnx(run.best if run else args.model, to)
    print(f"{to}: its logits differ from PyTorch's by at most {difference:.1g}")
    if run is None:
        return 0
    from finetune.evaluation import quantization

    report = quantization.quantize_model(run, to, step)
    small = to.with_name(f"{to.stem}.int8{to.suffix}")
    scores = ", ".join(
        f"{metric_name(name, report.classes)} {before:.3f} -> {after:.3f}"
        for name, (before, after) in report.scores.items()
    )
    p = f" (p = {report.p:.2g})" if report.p is not None else ""
    speed, speed8 = report.pairs_per_second
    print(
        f"int8 ({report.kind}) on {report.pairs:,} validation pairs: {scores}{p}, {speed:.0f} -> "
        f"{speed8:.0f} pairs/s; {'it is used' if report.kept else 'it is not used'}"
    )
    if report.kept:
        with disk.writing(small, ModelError, ""), disk.replacing(small) as new:
            shutil.copy2(run.best / quantized.MODEL, new)
        print(f"{small}: the model in int8")
    elif small.exists():
        print(f"{small} was there before and is left as it is: it is not of this export")
    return 0
