"""`python -m finetune gate`: say if a run's model may replace an older one."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from finetune import api
from finetune.cli import file_arguments
from finetune.cli.outputs import check_outputs, write_output
from finetune.evaluation import gate, release
from finetune.runs.store import default_root, named_run


def main(arguments: list[str] | None = None) -> int:
    """Judge from a terminal. Returns 0 if the new model passed, 1 if it failed, 2 if in doubt."""
    about = (
        "Say if a run's model may replace an older one. Exit status: 0 it passed; 1 it failed, "
        "because more right answers were lost than --max_lost, or the 95% interval of the gain is "
        "below --min_gain; 2 it could not be judged: other rows, rows that were trained on, or too "
        "few to tell (fewer than 30, or --min_gain lies within the interval)."
    )
    parser = argparse.ArgumentParser("python -m finetune gate", description=about)
    parser.add_argument("--new", type=Path, required=True, help="a run's name, id or folder")
    parser.add_argument("--old", required=True, help="another one, or a Hub model: namespace/name")
    parser.add_argument("--runs", type=Path, default=default_root(), help="where runs are kept")
    golden = (
        "labelled rows that both models answer; without it their validation pairs are compared. "
        "Its hash is kept in uploads/.golden beside the runs, and training on it is refused"
    )
    parser.add_argument("--golden", type=Path, help=golden)
    lost = "right answers that may be lost (default 0); not used of scores"
    parser.add_argument("--max_lost", type=int, default=0, help=lost)
    gain = "of the metric that chooses the best model (default -0.01)"
    parser.add_argument("--min_gain", type=float, default=-0.01, help=gain)
    parser.add_argument("--json", type=Path, help="a file to write the judgement to")
    comment = "a file to write it to as Markdown, for a pull request's comment"
    parser.add_argument("--markdown", type=Path, help=comment)
    file_arguments.add_columns(parser, "of the golden file; ")
    args = parser.parse_args(arguments)
    check_outputs(parser, {"json": args.json, "markdown": args.markdown}, [args.golden])
    new, request = named_run(args.new, args.runs), None
    old = release.named_model(args.old, args.runs)
    if args.golden is not None:
        request = file_arguments.request_from_arguments(args, new, args.golden)
    judged = api.gate(new, old, args.golden, args.max_lost, args.min_gain, request)
    print(gate.as_text(judged))
    if args.json:
        values = asdict(judged) | {"status": judged.status}
        write_output(args.json, json.dumps(values, indent=2, ensure_ascii=False) + "\n")
    if args.markdown:
        write_output(args.markdown, gate.as_markdown(judged))
    return judged.status
