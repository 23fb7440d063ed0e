"""`python -m finetune predict`: answer every row of a file with a run's model."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from pathlib import Path

from finetune.cli import engine_arguments, file_arguments
from finetune.cli.outputs import check_outputs
from finetune.inference.file_request import check_columns
from finetune.runs.store import default_root, named_run


def main(arguments: list[str] | None = None) -> int:
    """Predict a file from a terminal."""
    about = (
        "Predict every row of a file with a run's model. The result has the file's columns as they "
        "are, then prediction, a probability_ of each class, trained_on, error, and decision (the "
        "answer or unsure) if a bound is kept with the model; if the file has one of these, all "
        "those added end in _2 (or _3, ...)."
    )
    parser = argparse.ArgumentParser("python -m finetune predict", description=about)
    parser.add_argument("--run", type=Path, required=True, help="a run's name, id or folder")
    parser.add_argument("--runs", type=Path, default=default_root())
    formats = "CSV, TSV, JSONL, JSON (these also as .gz), Parquet, XLSX, XLS or ODS"
    parser.add_argument("--file", type=Path, required=True, help=formats)
    result = "where the result goes; its ending says as what: .csv, .tsv, .jsonl, .json, .parquet"
    parser.add_argument("--out", type=Path, required=True, help=result)
    about = "where the rows go that the model is unsure of, by what `sure` has kept with it"
    parser.add_argument("--review", type=Path, help=about)
    file_arguments.add_columns(parser)
    for name in ("both_orders", "calibrated"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument(
        "--threshold", action=argparse.BooleanOptionalAction, default=True,
        help="use the threshold saved with the model (default)",
    )  # fmt: skip
    engine_arguments.add_file_arguments(parser)
    args = parser.parse_args(arguments)
    from tqdm import tqdm

    from finetune.inference.files import predict_file
    from finetune.inference.result_files import ERROR, SUFFIXES

    outputs = {"out": args.out, "review": args.review}
    for name, path in outputs.items():
        if path and path.suffix.lower() not in SUFFIXES:
            parser.error(f"--{name} is {path}: end its name in one of {', '.join(SUFFIXES)}")
    check_outputs(parser, outputs, [args.file])
    os.environ["HF_HUB_OFFLINE"] = "1"
    run = named_run(args.run, args.runs)
    request = file_arguments.request_from_arguments(
        args, run, args.file, args.both_orders, args.threshold, args.calibrated
    )
    trained = run.state().columns
    request = check_columns(request, args.file, trained, run.config().encoding)
    scoring = engine_arguments.scorer_from_arguments(args, run)
    with tqdm(unit="row") as bar, scoring as scorer:
        report, _ = predict_file(
            run, request, args.file, args.out,
            lambda done, total: bar.update(done - bar.n), scorer=scorer,
            review=args.review,
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
