"""`python -m finetune monitor`: say if a run's model still holds on a file without labels."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from finetune.cli import file_arguments
from finetune.cli.outputs import check_outputs, write_output
from finetune.evaluation import file_shift, monitoring
from finetune.runs.store import default_root, named_run


def main(arguments: list[str] | None = None) -> int:
    """Judge a file from a terminal. Returns 0 if all is as before, otherwise 1."""
    about = (
        "Say if a run's model still holds on a file without labels: a random sample of its rows is "
        "compared with the run's validation pairs. Exit status: 0 as before; 1 changed, or train "
        "anew; 2 it could not be judged."
    )
    parser = argparse.ArgumentParser("python -m finetune monitor", description=about)
    parser.add_argument("run", type=Path, help="a run's name, id or folder")
    parser.add_argument("file", type=Path, help="the file, or the counts of one by --aggregates")
    parser.add_argument("--runs", type=Path, default=default_root(), help="where runs are kept")
    counts = "a JSON file to write the file's counts to: all that a judgement needs, and no text"
    parser.add_argument("--aggregates", type=Path, help=counts)
    labels = (
        "a file of the same columns, with labels of at least 30 rows drawn from it at random; rows "
        "with an empty label are not labelled (of several labels, [] says that a row has none)"
    )
    parser.add_argument("--labels", type=Path, help=labels)
    file_arguments.add_columns(parser)
    args = parser.parse_args(arguments)
    check_outputs(parser, {"aggregates": args.aggregates}, [args.file, args.labels])
    os.environ["HF_HUB_OFFLINE"] = "1"
    run = named_run(args.run, args.runs)
    request = file_arguments.request_from_arguments(args, run, args.file)
    judged, found = monitoring.monitor_file(run, args.file, request, args.labels)
    if args.aggregates:
        write_output(args.aggregates, json.dumps(asdict(found), ensure_ascii=False) + "\n")
    print(file_shift.sentence(judged), file=sys.stderr)
    print(json.dumps(asdict(judged), indent=2, ensure_ascii=False))
    return 0 if judged.verdict == "as before" else 1
