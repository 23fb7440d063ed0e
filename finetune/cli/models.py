"""`python -m finetune models`: the checkpoints to choose from, and those on this disk."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from finetune.data import checkpoint_catalog, model_cache
from finetune.jobs import models
from finetune.runs.store import RunStore, default_root


def main(arguments: list[str] | None = None) -> int:
    """List checkpoints, or remove one from this disk."""
    parser = argparse.ArgumentParser(
        prog="python -m finetune models",
        description="List the checkpoints to choose from and those on this disk, or remove one of "
        "the latter.",
    )
    parser.add_argument("--size", choices=["small", "base", "large"], default="")
    parser.add_argument("--languages", choices=["english", "other"], default="")
    parser.add_argument("--remove", metavar="NAME", help="remove a checkpoint from this disk")
    parser.add_argument("--runs", type=Path, default=default_root(), help="where runs are kept")
    args = parser.parse_args(arguments)
    if args.remove:
        removed = models.remove_model(RunStore(args.runs), args.remove)
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
