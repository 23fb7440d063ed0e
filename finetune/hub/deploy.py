"""`python -m finetune deploy user/name --hardware t4-small`: deploy this project as a Space.

Its files are one commit. Billed hardware is requested only after its price was accepted, and sleeps
when nobody uses it. Source: https://huggingface.co/docs/huggingface_hub/guides/manage-spaces
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, Volume

from finetune.environment import project
from finetune.errors import PublishError
from finetune.hub.client import HubClient, default_sleep_time, stored_token

MOUNT = "/data"
_FREE = "cpu-basic"  # hardware
_MARK = "finetune/__init__.py"  # marks a Space of this project


def project_files(root: Path = project.ROOT) -> dict[str, Path]:
    """The files of the project: path in the Space -> file. These are the files that git tracks, in
    their present state on disk."""
    names: list[str] = []
    with contextlib.suppress(OSError, subprocess.CalledProcessError):  # no git, or no work tree
        done = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True)
        names = done.stdout.decode("utf-8", "surrogateescape").split("\0")
    files = {name: root / name for name in sorted(names) if (root / name).is_file()}
    if missing := [name for name in ("app.py", "README.md", _MARK) if name not in files]:
        raise PublishError(
            "Git tracks no {missing} in {root}.",
            "Run this from a clone of the project.",
            missing=" and no ".join(missing),
            root=root,
        )
    return files


def deploy_space(
    name: str,
    token: str | None,
    agrees: Callable[[str], bool],
    hardware: str = "",
    private: bool = False,
    bucket: str = "",
    root: Path = project.ROOT,
) -> str:
    """Create or update a Space and print each step; returns its address.

    Before anything is changed, all arguments are checked, and `agrees` is called with the price if
    the
    hardware is billed. A repeated call changes only what differs; files that the project no longer
    has
    are removed from the Space. The help of `main` describes the arguments.
    """
    # 1. What is requested, what exists, and what it costs.
    files, hub = project_files(root), HubClient(token)
    account = hub.account()
    name, bucket = account.repo_id(name), bucket and account.repo_id(bucket)
    present = hub.space_files(name, _MARK)
    former, former_sleep_time = _former_hardware(hub, name) if present is not None else ("", None)
    hardware = hardware or former or _FREE
    price = f"{hardware}: {hub.price(hardware)}"
    print(f"Signed in as {account.name}. {price}.")
    sleep_time = default_sleep_time(hardware)
    if sleep_time and not agrees(price):
        raise PublishError(
            "{hardware} is billed, and nobody has agreed to that; nothing was done.",
            "Answer the question in a terminal with yes, or add --yes; cpu-basic is free.",
            hardware=hardware,
        )
    # 2. The Space, its files and its hardware.
    if present is None:
        hub.create_space(name, hardware, private)
        print(f"Made the {'private ' * private}Space {name}.")
    if bucket:
        hub.call(f"Mounting {bucket}", lambda: _mount(hub, name, bucket))
        print(f"Runs are kept in the bucket {bucket}, mounted at {MOUNT}.")
    gone = sorted((present or set()) - set(files))
    hub.call(f"Sending the files to {name}", lambda: _send(hub, name, files, gone))
    sleep_time = sleep_time and (former_sleep_time or sleep_time)
    if former:
        kind: Any = hardware
        hub.call(
            f"Asking for {hardware}",
            lambda: hub.api.request_space_hardware(name, kind, sleep_time=sleep_time),
        )
    return f"{hub.api.endpoint}/spaces/{name}"


def _former_hardware(hub: HubClient, name: str) -> tuple[str, int | None]:
    """The hardware of a Space, and the seconds after which it sleeps; None if it never does."""
    runtime = hub.call(f"Asking how {name} is", lambda: hub.api.get_space_runtime(name))
    sleep_time = runtime.sleep_time or 0
    hardware = runtime.requested_hardware or runtime.hardware or _FREE
    return str(hardware), sleep_time if sleep_time > 0 else None


def _mount(hub: HubClient, name: str, bucket: str) -> None:
    """Mount the bucket for runs; other volumes of the Space stay."""
    api = hub.api
    api.create_bucket(bucket, private=True, exist_ok=True)
    volumes = api.get_space_runtime(name).volumes or []
    others = [volume for volume in volumes if volume.mount_path != MOUNT]
    ours = Volume(type="bucket", source=bucket, mount_path=MOUNT)
    api.set_space_volumes(name, [*others, ours])
    api.add_space_variable(name, "FINETUNE_RUNS", f"{MOUNT}/runs")


def _send(hub: HubClient, name: str, files: dict[str, Path], gone: list[str]) -> None:
    """Commit all files with `parent_commit` set, so that concurrent deploys cannot both succeed."""
    additions = [CommitOperationAdd(path, file) for path, file in files.items()]
    hub.api.create_commit(
        name,
        [*additions, *map(CommitOperationDelete, gone)],
        commit_message="Finetune, by python -m finetune deploy",
        repo_type="space",
        parent_commit=hub.api.repo_info(name, repo_type="space").sha,
    )


def _agrees(price: str) -> bool:
    """Ask in the terminal; True if the answer is yes, False without a terminal."""
    if not sys.stdin.isatty():
        return False
    print("That is billed by the Hub: https://huggingface.co/docs/hub/spaces-gpus", flush=True)
    return input("Go on? [y/N] ").strip().lower() in ("y", "yes")


def main(arguments: list[str] | None = None) -> int:
    """Deploy from a terminal."""
    parser = argparse.ArgumentParser(
        prog="python -m finetune deploy",
        description="Make or update a Space with this project. Signs in with `hf auth login`'s "
        f"token or HF_TOKEN. Hardware other than {_FREE} is billed while the Space is awake; you "
        "are told its price and asked first. Such a Space sleeps after an hour without visitors.",
    )
    parser.add_argument("name", help="the Space, as user/name")
    hardware_help = f"such as t4-small (default: what the Space has, {_FREE} for a new one)"
    parser.add_argument("--hardware", default="", help=hardware_help)
    parser.add_argument("--yes", action="store_true", help="agree to the price; for scripts")
    parser.add_argument("--private", action="store_true", help="make a new Space private")
    bucket_help = "keep runs in this bucket, as user/name; made if need be"
    parser.add_argument("--bucket", default="", help=bucket_help)
    args = parser.parse_args(arguments)
    agrees = (lambda price: True) if args.yes else _agrees
    address = deploy_space(
        args.name, stored_token(), agrees, args.hardware, args.private, args.bucket
    )
    print(f"The Hub builds it now, which takes some minutes; its page shows the log.\n{address}")
    return 0
