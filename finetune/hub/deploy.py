"""`python -m finetune deploy user/name --hardware t4-small`: this project as a Space of one's own.

Makes or updates the Space through the Hub's API: its files as one commit, its hardware, and where
asked for a bucket that keeps the runs. What is billed is made only after a yes to its price, and
sleeps when nobody is there. The token is the stored login's or HF_TOKEN; it reaches no file, line
or error.

Source: https://huggingface.co/docs/huggingface_hub/guides/manage-spaces
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, Volume

from finetune.environment import hub_connection
from finetune.errors import FinetuneError, PublishError
from finetune.hub.client import (
    HubClient,
    default_sleep_time,
    full_repo_id,
    may_still_arrive,
    stored_token,
)

ROOT = Path(__file__).resolve().parent.parent.parent
TOP = ("app.py", "finetune", "tests", "assets", "requirements.txt", "README.md", "LICENSE")
MOUNT = "/data"
_PRICES = "https://huggingface.co/docs/hub/spaces-gpus"
_FREE = "cpu-basic"  # hardware
_MARK = "finetune/__init__.py"  # a Space that has it is one of ours
_MADE_BY_HUB = {".gitattributes"}  # with the repository


@dataclass(frozen=True)
class SpaceRequest:
    """The Space to make.

    Args:
        name: `user/name` or `organisation/name`.
        hardware: as the Hub names it; empty for free hardware where the Space is new, else for
            what it has. All but the free is billed while the Space is awake.
        private: whether a new Space is private; one that exists stays as it is.
        bucket: `user/name` of a bucket that keeps the runs, made where there is none; empty for
            the Space's own disk, which is cleared at every restart.
        sleep_time: seconds without a visitor after which it sleeps, where its hardware is billed;
            None for what it has, or an hour where it has none.
    """

    name: str
    hardware: str = ""
    private: bool = False
    bucket: str = ""
    sleep_time: int | None = None

    @property
    def names(self) -> list[str]:
        """What is written to: the Space, and the bucket if there is one."""
        return [name for name in (self.name, self.bucket) if name]

    def check(self) -> SpaceRequest:
        """This, if the Hub would take the names; asks nobody.

        Raises:
            PublishError: naming what it would not take.
        """
        for name in self.names:
            if name.strip().count("/") != 1:
                raise PublishError(f"{name!r} does not say whose it is.", "Give it as user/name.")
            full_repo_id(name, "")
        if self.sleep_time is not None and self.sleep_time < 1:
            raise PublishError(
                f"The sleep time is {self.sleep_time} seconds.",
                "Give 1 or more: what is billed sleeps when nobody is there.",
            )
        return self


def project_files(root: Path = ROOT) -> dict[str, Path]:
    """Path in the Space -> file: exactly what git tracks, as it is now on the disk.

    Where there is no git, the project's own files and folders.

    Raises:
        PublishError: when the folder does not hold the project.
    """
    try:
        done = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True)
        names = done.stdout.decode("utf-8", "surrogateescape").split("\0")
    except (OSError, subprocess.CalledProcessError):  # no git, or no work tree
        names = []
    if not any(names):
        paths = [path for name in TOP for path in (root / name, *(root / name).rglob("*"))]
        names = [path.relative_to(root).as_posix() for path in paths if path.suffix != ".pyc"]
        names = [name for name in names if "/." not in name]
    files = {name: root / name for name in sorted(names) if (root / name).is_file()}
    if missing := [name for name in ("app.py", "README.md", _MARK) if name not in files]:
        raise PublishError(
            f"{root} has no {' and no '.join(missing)}.", "Run this from a copy of the project."
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

    Everything is checked before anything is made. Doing it again changes what differs and sends
    no file twice; what is no longer among the project's files is removed from the Space.

    Args:
        token: of someone who may write there; used for these calls only.
        root: the project's folder.
        say: called with a line for every step taken.
        agrees: asked with the price of hardware that is billed, before anything is made.

    Raises:
        PublishError: when a name, the token or the hardware is wrong, the Space is something
            else, nobody agrees to the price, or the Hub refuses or does not answer. It says what
            is there already.
    """
    request.check()
    files = project_files(root)
    # 1. What is there, and what it costs.
    hub = HubClient(token, again="run this again", kept="it goes on from what is there")
    account = hub.account()
    for name in request.names:
        account.check_may_write(name)
    exists = _is_ours(hub, request.name)
    request = _with_hardware(hub, request, exists)
    price = f"{request.hardware}: {hub.hardware(request.hardware)}"
    say(f"Signed in as {account.name}. {price}.")
    if request.sleep_time is not None and not agrees(price):
        raise PublishError(
            f"{request.hardware} is billed, and nobody has agreed to that; nothing was done.",
            "Answer the question in a terminal with yes, or add --yes; cpu-basic is free.",
        )
    # 2. The Space, and where its runs are kept.
    if not exists:
        hub.call(f"Making {request.name}", lambda: _create(hub.api, request))
        say(f"Made the {'private ' * request.private}Space {request.name}.")
    left = "" if exists else f" The Space {request.name} was made, but holds no files yet."
    if request.bucket:
        hub.call(f"Mounting {request.bucket}", lambda: _mount(hub.api, request), left)
        say(f"Runs are kept in the bucket {request.bucket}, mounted at {MOUNT}.")
    # 3. Its files and hardware.
    sha = _send(hub, request.name, files, left)
    say(f"Sent {_size(files)} as commit {sha[:12]}.")
    left = " The files are there; only the hardware is not what was asked for."
    asked = hub.call(
        f"Asking for {request.hardware}", lambda: _ask_for_hardware(hub.api, request), left
    )
    say(f"{'Asked for' if asked else 'It has'} {request.hardware}.")
    if request.sleep_time is not None:
        runtime = hub.call("Asking how it sleeps", lambda: hub.api.get_space_runtime(request.name))
        say(_sleeps(runtime.sleep_time))
    return f"{hub_connection.hub_endpoint()}/spaces/{request.name}"


def _is_ours(hub: HubClient, name: str) -> bool:
    """Whether the Space exists; what is not this project is not written over."""

    def list_files() -> set[str] | None:
        if not hub.api.repo_exists(name, repo_type="space"):
            return None
        return set(hub.api.list_repo_files(name, repo_type="space")) - _MADE_BY_HUB

    files = hub.call(f"Looking for {name}", list_files)
    # A Space that the Hub's page made holds a README and nothing else.
    if files and files - {"README.md"} and _MARK not in files:
        raise PublishError(
            f"The Space {name} exists and holds something else.", "Choose another name."
        )
    return files is not None


def _with_hardware(hub: HubClient, request: SpaceRequest, exists: bool) -> SpaceRequest:
    """With the hardware that it shall have, and when that sleeps; None where it is free."""
    present, sleep_time = "", None
    if exists:
        name = request.name
        runtime = hub.call(f"Asking how {name} is", lambda: hub.api.get_space_runtime(name))
        present = runtime.requested_hardware or runtime.hardware or ""
        sleep_time = runtime.sleep_time if (runtime.sleep_time or 0) > 0 else None
    hardware = request.hardware or present or _FREE
    usual = default_sleep_time(hardware)
    sleep_time = usual and (request.sleep_time or sleep_time or usual)
    return replace(request, hardware=hardware, sleep_time=sleep_time)


def _create(api: HfApi, request: SpaceRequest) -> None:
    # With its hardware at once: on the free one the Hub refuses Gradio Spaces to free accounts.
    hardware: Any = request.hardware
    api.create_repo(
        request.name,
        repo_type="space",
        space_sdk="gradio",
        private=request.private or None,
        space_hardware=hardware,
        space_sleep_time=request.sleep_time,
    )


def _mount(api: HfApi, request: SpaceRequest) -> None:
    """The bucket where runs are kept; other volumes of the Space stay."""
    api.create_bucket(request.bucket, private=True, exist_ok=True)
    mounted = api.get_space_runtime(request.name).volumes or []
    others = [volume for volume in mounted if volume.mount_path != MOUNT]
    ours = Volume(type="bucket", source=request.bucket, mount_path=MOUNT)
    if [one.to_dict() for one in mounted] != [one.to_dict() for one in (*others, ours)]:
        api.set_space_volumes(request.name, [*others, ours])
    api.add_space_variable(request.name, "FINETUNE_RUNS", f"{MOUNT}/runs")


def _send(hub: HubClient, name: str, files: dict[str, Path], left: str) -> str:
    """All files as one commit; the Space is what the project is, or what it was before.

    The commit names the one before it: of two, one of them late, only one arrives.
    """

    def commit() -> str:
        head = hub.api.repo_info(name, repo_type="space").sha
        held = set(hub.api.list_repo_files(name, repo_type="space"))
        gone = sorted(held - _MADE_BY_HUB - set(files))
        info = hub.api.create_commit(
            name,
            [*(CommitOperationAdd(path, file) for path, file in files.items()),
             *map(CommitOperationDelete, gone)],
            commit_message="Finetune, by python -m finetune deploy",
            repo_type="space",
            parent_commit=head,
        )  # fmt: skip
        return str(info.oid)

    try:
        return hub.call(f"Sending the files to {name}", commit, left)
    except PublishError as error:
        if not may_still_arrive(error):
            raise
        raise PublishError(f"{error.fact} They may still arrive.", error.remedy) from None


def _ask_for_hardware(api: HfApi, request: SpaceRequest) -> bool:
    """Whether it had to be asked for."""
    runtime = api.get_space_runtime(request.name)
    present = runtime.requested_hardware or runtime.hardware
    if present == request.hardware and request.sleep_time in (None, runtime.sleep_time):
        return False
    hardware: Any = request.hardware
    api.request_space_hardware(request.name, hardware, sleep_time=request.sleep_time)
    return True


def _sleeps(seconds: int | None) -> str:
    if seconds is None or seconds < 0:
        return "The Hub says that it never sleeps, and it is billed all the time: see its settings."
    return f"It sleeps after {seconds / 60:,.0f} minutes without a visitor, and costs nothing then."


def _size(files: dict[str, Path]) -> str:
    size = sum(path.stat().st_size for path in files.values())
    return f"{len(files)} files, {size / 1e6:.1f} MB"


def _agrees(price: str) -> bool:
    """Whether whoever sits at the terminal says yes; nobody does where there is none."""
    if not sys.stdin.isatty():
        return False
    print(f"That is billed by the Hub: {_PRICES}", flush=True)
    return input("Go on? [y/N] ").strip().lower() in ("y", "yes")


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
        default=SpaceRequest.hardware,
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
        type=int,
        help="seconds without visitors until it sleeps, on hardware that is billed (default: as it "
        "is, or an hour where it would never sleep)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="list the files and their size, and ask nobody"
    )
    args = parser.parse_args(arguments)
    request = SpaceRequest(args.name, args.hardware, args.private, args.bucket, args.sleep_time)
    try:
        if args.dry_run:
            _list_files(request.check())
        else:
            _deploy(request, args.yes)
    except FinetuneError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    return 0


def _list_files(request: SpaceRequest) -> None:
    files = project_files()
    for name, path in files.items():
        print(f"{path.stat().st_size:>10,}  {name}")
    hardware = request.hardware or f"what it has, or {_FREE} where it is new"
    print(f"{_size(files)} would go to {request.name} on {hardware}.")
    print(f"What that costs: {_PRICES}")


def _deploy(request: SpaceRequest, yes: bool) -> None:
    def say(line: str) -> None:
        print(line, flush=True)

    agrees = (lambda price: True) if yes else _agrees
    address = deploy_space(request, stored_token(), say=say, agrees=agrees)
    say("The Hub builds it now, which takes some minutes; its page shows the log.")
    say(address)


if __name__ == "__main__":
    sys.exit(main())
