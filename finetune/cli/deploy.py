"""`python -m finetune deploy user/name --hardware t4-small`: make a Space of this project."""

from __future__ import annotations

import argparse
import sys

from finetune.hub import deploy
from finetune.hub.client import stored_token


def main(arguments: list[str] | None = None) -> int:
    """Deploy from a terminal."""
    parser = argparse.ArgumentParser(
        prog="python -m finetune deploy",
        description="Make or update a Space with this project. Signs in with `hf auth login`'s "
        f"token or HF_TOKEN. Hardware other than {deploy.FREE} is billed while the Space is awake; "
        "you are told its price and asked first. Such a Space sleeps after an hour without "
        "visitors.",
    )
    parser.add_argument("name", help="the Space, as user/name")
    hardware_help = f"such as t4-small (default: what the Space has, {deploy.FREE} for a new one)"
    parser.add_argument("--hardware", default="", help=hardware_help)
    parser.add_argument("--yes", action="store_true", help="agree to the price; for scripts")
    parser.add_argument("--private", action="store_true", help="make a new Space private")
    bucket_help = "keep runs in this bucket, as user/name; made if need be"
    parser.add_argument("--bucket", default="", help=bucket_help)
    args = parser.parse_args(arguments)
    agrees = (lambda price: True) if args.yes else _agrees
    address = deploy.deploy_space(
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
