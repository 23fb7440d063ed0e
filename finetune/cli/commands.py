"""Commands that are no verb: each has a function, described by its docstring."""

import json
import sys
import time
from pathlib import Path

from finetune.cli import options
from finetune.data import checkpoint_catalog, model_cache
from finetune.hub.client import stored_token
from finetune.hub.deploy import FREE, deploy_space
from finetune.jobs import memory as stored_models
from finetune.jobs.evaluate import score
from finetune.runs.store import RunStore, named_run


def models(words: list[str] | None = None) -> int:
    """List the checkpoints to choose from and those on this disk, or remove one of the latter."""
    parser = options.parser_of("models", models.__doc__)
    parser.add_argument("--size", choices=["small", "base", "large"], default="")
    parser.add_argument("--languages", choices=["english", "other"], default="")
    parser.add_argument("--remove", metavar="NAME", help="remove a checkpoint from this disk")
    args = parser.parse_args(words)
    if args.remove:
        removed = stored_models.remove_model(RunStore(args.root), args.remove)
        print(f"{removed.name}: {removed.bytes / 1e6:,.0f} MB removed; the Hub still has it")
        return 0
    for entry in checkpoint_catalog.matching(args.size, args.languages):
        checked = "" if entry.known else "; safetensors checked when chosen"
        print(
            f"{entry.name}\n  {entry.size}, {entry.millions:,.0f}M parameters, {entry.languages}, "
            f"up to {entry.tokens:,} tokens, {entry.licence}, at most "
            f"{entry.weight_bytes / 1e6:,.0f} MB to download{checked}\n  {entry.purpose}"
        )
    for model in model_cache.list_models():
        used = time.strftime("%Y-%m-%d", time.localtime(model.used))
        print(f"on this disk: {model.name}, {model.bytes / 1e6:,.0f} MB, last used {used}")
    return 0


def evaluate(words: list[str] | None = None) -> int:
    """Score a run's model with the sentences swapped, or on the sealed test set."""
    parser = options.parser_of("evaluate", evaluate.__doc__)
    parser.add_argument("--run", type=Path, required=True, help="a run's name, id or folder")
    parser.add_argument("--open_test", action="store_true", help="open the test set")
    args = parser.parse_args(words)
    run = named_run(args.run, args.root)
    score(run, args.open_test)
    if args.open_test:
        opened = run.state().opened[-1]
        print(json.dumps({"step": opened.step, **opened.metrics}))
    else:
        from finetune.evaluation import report

        summary = run.state()
        order = report.evaluate_run(run, summary).analysis.order
        assert order is not None, "it was just measured"
        changes = {"mean change": order.difference}
        if summary.task.has_right:
            changes = {"changed answers": order.flips}
        print(json.dumps({"pairs": order.pairs, **changes}))
    return 0


def deploy(words: list[str] | None = None) -> int:
    """Make or update a Space with this project. Signs in with `hf auth login`'s token or HF_TOKEN.
    Hardware other than cpu-basic is billed while the Space is awake; you are told its price and
    asked first. Such a Space sleeps after an hour without visitors."""
    parser = options.parser_of("deploy", deploy.__doc__, of_runs=False)
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
