"""Commands that put a model to use: `predict` a file, `export` to ONNX, `deploy` a Space."""

from __future__ import annotations

import argparse
import json
import logging
import os
import shlex
import shutil
import sys
from pathlib import Path

from finetune import disk
from finetune.cli import options
from finetune.errors import ModelError
from finetune.hub.client import stored_token
from finetune.hub.deploy import FREE, deploy_space
from finetune.inference import quantized
from finetune.inference.file_request import check_columns
from finetune.metrics.catalog import metric_name
from finetune.runs.store import default_root, named_run


def predict(words: list[str] | None = None) -> int:
    """Predict every row of a file with a run's model. The result has the file's columns as they
    are, then prediction, a probability_ of each class, trained_on, error, and decision (the answer
    or unsure) if a bound is kept with the model; if the file has one of these, all those added end
    in _2 (or _3, ...)."""
    parser = options.parser_of(predict)
    parser.add_argument("--run", type=Path, required=True, help="a run's name, id or folder")
    parser.add_argument("--runs", type=Path, default=default_root())
    formats = "CSV, TSV, JSONL, JSON (these also as .gz), Parquet, XLSX, XLS or ODS"
    parser.add_argument("--file", type=Path, required=True, help=formats)
    result = "where the result goes; its ending says as what: .csv, .tsv, .jsonl, .json, .parquet"
    parser.add_argument("--out", type=Path, required=True, help=result)
    about = "where the rows go that the model is unsure of, by what `sure` has kept with it"
    parser.add_argument("--review", type=Path, help=about)
    options.add_columns(parser)
    for name in ("both_orders", "calibrated"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument(
        "--threshold", action=argparse.BooleanOptionalAction, default=True,
        help="use the threshold saved with the model (default)",
    )  # fmt: skip
    args = parser.parse_args(words)
    from tqdm import tqdm

    from finetune.inference.files import predict_file
    from finetune.inference.result_files import ERROR, SUFFIXES

    outputs = {"out": args.out, "review": args.review}
    for name, path in outputs.items():
        if path and path.suffix.lower() not in SUFFIXES:
            parser.error(f"--{name} is {path}: end its name in one of {', '.join(SUFFIXES)}")
    options.check_outputs(parser, outputs, [args.file])
    os.environ["HF_HUB_OFFLINE"] = "1"
    run = named_run(args.run, args.runs)
    request = options.file_request(
        args, run, args.file, args.both_orders, args.threshold, args.calibrated
    )
    request = check_columns(request, args.file, run.state().columns, run.config())
    with tqdm(unit="row") as bar:
        report, _ = predict_file(
            run, request, args.file, args.out,
            lambda done, total: bar.update(done - bar.n), review=args.review,
        )  # fmt: skip
    if args.review and "sure" not in report:
        bound = shlex.join(["--runs", str(args.runs), f"--run={args.run}"])
        print(
            f"{args.review} is not written: the model has no bound on such answers; keep one with "
            f"python -m finetune sure {bound}",
            file=sys.stderr,
        )
    if report["columns"][-1] != ERROR:
        names = ", ".join(report["columns"])
        print(f"{args.file} keeps its own columns; those added are {names}", file=sys.stderr)
    print(json.dumps(report, indent=2, ensure_ascii=False))
    return 0


def export(words: list[str] | None = None) -> int:
    """Write a saved model as ONNX, and verify it; of a run in int8 too, where that is as good and
    faster."""
    parser = options.parser_of(export)
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
    args = parser.parse_args(words)
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
        f"int8 ({report.kind}) on {report.pairs:,} validation rows: {scores}{p}, {speed:.0f} -> "
        f"{speed8:.0f} rows/s; {'it is used' if report.kept else 'it is not used'}"
    )
    if report.kept:
        with disk.writing(small, ModelError, ""), disk.replacing(small) as new:
            shutil.copy2(run.best / quantized.MODEL, new)
        print(f"{small}: the model in int8")
    elif small.exists():
        print(f"{small} was there before and is left as it is: it is not of this export")
    return 0


def deploy(words: list[str] | None = None) -> int:
    """Make or update a Space with this project. Signs in with `hf auth login`'s token or HF_TOKEN.
    Hardware other than cpu-basic is billed while the Space is awake; you are told its price and
    asked first. Such a Space sleeps after an hour without visitors."""
    parser = options.parser_of(deploy)
    parser.add_argument("name", help="the Space, as user/name")
    hardware_help = f"such as t4-small (default: what the Space has, {FREE} for a new one)"
    parser.add_argument("--hardware", default="", help=hardware_help)
    parser.add_argument("--yes", action="store_true", help="agree to the price; for scripts")
    parser.add_argument("--private", action="store_true", help="make a new Space private")
    bucket_help = "keep runs in this bucket, as user/name; made if need be"
    parser.add_argument("--bucket", default="", help=bucket_help)
    args = parser.parse_args(words)
    agrees = (lambda price: True) if args.yes else _agrees
    address = deploy_space(
        args.name, stored_token(), agrees, args.hardware, args.private, args.bucket
    )
    print(f"The Hub builds it now, which takes some minutes; its page shows the log.\n{address}")
    return 0


def _agrees(price: str) -> bool:
    """Ask in the terminal; True if the answer is yes, False without a terminal."""
    if not sys.stdin.isatty():
        return False
    print("That is billed by the Hub: https://huggingface.co/docs/hub/spaces-gpus", flush=True)
    return input("Go on? [y/N] ").strip().lower() in ("y", "yes")
