"""`python -m finetune deploy user/name --hardware t4-small`: this project as a Space of one's own.

Its files go as one commit. What is billed is made only after a yes to its price, and sleeps when
nobody is there. Source: https://huggingface.co/docs/huggingface_hub/guides/manage-spaces
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, Volume

from finetune.errors import FinetuneError, PublishError
from finetune.hub.client import HubClient, default_sleep_time, full_repo_id, stored_token

ROOT = Path(__file__).resolve().parent.parent.parent
MOUNT = "/data"
_PRICES = "https://huggingface.co/docs/hub/spaces-gpus"
_FREE = "cpu-basic"  # hardware
_MARK = "finetune/__init__.py"  # a Space that has it is one of ours


@dataclass(frozen=True)
class SpaceRequest:
    """The Space to make; the help of `main` says more."""

    name: str  # `user/name` or `organisation/name`
    hardware: str = ""  # as the Hub names it; empty for what it has, or the free
    private: bool = False  # of a new Space; one that exists stays as it is
    bucket: str = ""  # `user/name`; empty for the Space's own disk
    sleep_time: int | None = None  # seconds without a visitor; None for what it has, or an hour


def project_files(root: Path = ROOT) -> dict[str, Path]:
    """Path in the Space -> file: what git tracks, as it is now on the disk."""
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
    request: SpaceRequest,
    token: str | None,
    root: Path = ROOT,
    say: Callable[[str], None] = lambda line: None,
    agrees: Callable[[str], bool] = lambda price: False,
) -> str:
    """Make or update the Space; its address.

    Everything is checked, and `agrees` asked with the price of what is billed, before anything is
    made. Doing it again changes what differs; what is no longer among the project's files is
    removed from the Space.
    """
    # 1. What is asked for, what is there, and what it costs.
    names = [name for name in (request.name, request.bucket) if name]
    for name in names:
        if name.count("/") != 1:
            raise PublishError(
                "{name!r} does not say whose it is.", "Give it as user/name.", name=name
            )
        full_repo_id(name, "")
    files = project_files(root)
    hub = HubClient(token)
    account = hub.account()
    for name in names:
        account.check_may_write(name)
    present = hub.call(f"Looking for {request.name}", lambda: hub.space_files(request.name))
    if present and present != {"README.md"} and _MARK not in present:
        raise PublishError(
            "The Space {name} exists and holds something else.",
            "Choose another name.",
            name=request.name,
        )
    request = _with_hardware(hub, request, present is not None)
    price = f"{request.hardware}: {hub.hardware(request.hardware)}"
    say(f"Signed in as {account.name}. {price}.")
    if request.sleep_time is not None and not agrees(price):
        raise PublishError(
            "{hardware} is billed, and nobody has agreed to that; nothing was done.",
            "Answer the question in a terminal with yes, or add --yes; cpu-basic is free.",
            hardware=request.hardware,
        )
    # 2. The Space, its files and its hardware.
    if present is None:
        hub.create_space(request.name, request.hardware, request.sleep_time, request.private)
        say(f"Made the {'private ' * request.private}Space {request.name}.")
    if request.bucket:
        hub.call(f"Mounting {request.bucket}", lambda: _mount(hub, request))
        say(f"Runs are kept in the bucket {request.bucket}, mounted at {MOUNT}.")
    hub.call(f"Sending the files to {request.name}", lambda: _send(hub, request.name, files))
    say(f"Sent {_size(files)}.")
    if present is not None:
        hub.call(f"Asking for {request.hardware}", lambda: _set_hardware(hub, request))
    if request.sleep_time is not None:
        minutes = request.sleep_time / 60
        say(f"It sleeps after {minutes:,.0f} minutes without a visitor, and costs nothing then.")
    return f"{hub.api.endpoint}/spaces/{request.name}"


def _with_hardware(hub: HubClient, request: SpaceRequest, exists: bool) -> SpaceRequest:
    """With the hardware that it shall have, and when that sleeps; None where it is free."""
    hardware, sleep_time = _FREE, None
    if exists:
        runtime = hub.call(
            f"Asking how {request.name} is", lambda: hub.api.get_space_runtime(request.name)
        )
        hardware = runtime.requested_hardware or runtime.hardware or _FREE
        sleep_time = runtime.sleep_time if (runtime.sleep_time or 0) > 0 else None
    hardware = request.hardware or hardware
    usual = default_sleep_time(hardware)
    sleep_time = usual and (request.sleep_time or sleep_time or usual)
    return replace(request, hardware=hardware, sleep_time=sleep_time)


def _mount(hub: HubClient, request: SpaceRequest) -> None:
    """Mount the bucket where runs are kept; other volumes of the Space stay."""
    api = hub.api
    api.create_bucket(request.bucket, private=True, exist_ok=True)
    volumes = api.get_space_runtime(request.name).volumes or []
    others = [volume for volume in volumes if volume.mount_path != MOUNT]
    ours = Volume(type="bucket", source=request.bucket, mount_path=MOUNT)
    api.set_space_volumes(request.name, [*others, ours])
    api.add_space_variable(request.name, "FINETUNE_RUNS", f"{MOUNT}/runs")


def _send(hub: HubClient, name: str, files: dict[str, Path]) -> None:
    """All files as one commit, which names the one before it: of two, only one arrives."""
    head = hub.api.repo_info(name, repo_type="space").sha
    gone = sorted((hub.space_files(name) or set()) - set(files))
    additions = [CommitOperationAdd(path, file) for path, file in files.items()]
    hub.api.create_commit(
        name,
        [*additions, *map(CommitOperationDelete, gone)],
        commit_message="Finetune, by python -m finetune deploy",
        repo_type="space",
        parent_commit=head,
    )


def _set_hardware(hub: HubClient, request: SpaceRequest) -> None:
    runtime = hub.api.get_space_runtime(request.name)
    present = runtime.requested_hardware or runtime.hardware
    if present != request.hardware or request.sleep_time not in (None, runtime.sleep_time):
        hardware: Any = request.hardware
        hub.api.request_space_hardware(request.name, hardware, sleep_time=request.sleep_time)


def _size(files: dict[str, Path]) -> str:
    size = sum(path.stat().st_size for path in files.values())
    return f"{len(files)} files, {size / 1e6:.1f} MB"


def _agrees(price: str) -> bool:
    """Whether whoever sits at the terminal says yes; nobody does where there is none."""
    if not sys.stdin.isatty():
        return False
    print(f"That is billed by the Hub: {_PRICES}", flush=True)
    return input("Go on? [y/N] ").strip().lower() in ("y", "yes")


def _seconds(text: str) -> int:
    if (seconds := int(text)) < 1:
        raise argparse.ArgumentTypeError("give 1 or more: what is billed sleeps")
    return seconds


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0 done, 1 with the reason on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m finetune deploy",
        description="Make or update a Space with this project. Signs in with `hf auth login`'s "
        "token or HF_TOKEN. Hardware other than cpu-basic is billed by the minute while the Space "
        f"is awake; you are told its price and asked first. Prices stand at {_PRICES}.",
    )
    parser.add_argument("name", help="the Space, as user/name")
    parser.add_argument(
        "--hardware",
        default="",
        help="the Hub's name for it, such as t4-small, billed while the Space is awake (default: "
        f"{_FREE}, which is free, for a new Space, else what it has)",
    )
    parser.add_argument("--yes", action="store_true", help="agree to the price; for scripts")
    parser.add_argument("--private", action="store_true", help="make a new Space private")
    parser.add_argument(
        "--bucket", default="", help="keep runs in this bucket, as user/name; made if need be"
    )
    parser.add_argument(
        "--sleep_time",
        type=_seconds,
        help="seconds without visitors until it sleeps, on hardware that is billed (default: as it "
        "is, or an hour where it would never sleep)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="list the files and their size, and ask nobody"
    )
    args = parser.parse_args(arguments)
    request = SpaceRequest(args.name, args.hardware, args.private, args.bucket, args.sleep_time)
    agrees = (lambda price: True) if args.yes else _agrees
    try:
        if args.dry_run:
            files = project_files()
            print(
                *(f"{path.stat().st_size:>10,}  {name}" for name, path in files.items()), sep="\n"
            )
            print(f"{_size(files)} would go to {request.name}. What that costs: {_PRICES}")
            return 0
        address = deploy_space(request, stored_token(), say=print, agrees=agrees)
    except FinetuneError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    print(f"The Hub builds it now, which takes some minutes; its page shows the log.\n{address}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
