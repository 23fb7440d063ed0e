"""Deploy this project as a Space.

Its files are one commit. Billed hardware is requested only after its price was accepted, and sleeps
when nobody uses it. Source: https://huggingface.co/docs/huggingface_hub/guides/manage-spaces
"""

import contextlib
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, Volume

from finetune.environment import project
from finetune.errors import PublishError
from finetune.hub.client import HubClient, default_sleep_time

MOUNT = "/data"
FREE = "cpu-basic"  # hardware
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
    the hardware is billed. A repeated call changes only what differs; files that the project no
    longer has are removed from the Space. The help of `cli.deploy` describes the arguments.
    """
    # 1. What is requested, what exists, and what it costs.
    files, hub = project_files(root), HubClient(token)
    account = hub.account()
    name, bucket = account.repo_id(name), bucket and account.repo_id(bucket)
    present = hub.space_files(name, _MARK)
    former, former_sleep_time = ("", 0) if present is None else _hardware_of(hub, name)
    hardware = hardware or former or FREE
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
    _send(hub, name, files, gone)
    sleep_time = sleep_time and (former_sleep_time or sleep_time)
    if former:
        kind: Any = hardware
        hub.change(
            f"Asking for {hardware}",
            lambda: hub.api.request_space_hardware(name, kind, sleep_time=sleep_time),
            lambda: _hardware_of(hub, name) == (hardware, sleep_time or 0) or None,
        )
    return f"{hub.api.endpoint}/spaces/{name}"


def _hardware_of(hub: HubClient, name: str) -> tuple[str, int]:
    """Return a Space's hardware and its sleep time in seconds; 0 if it never sleeps or is free."""
    runtime = hub.call(f"Asking how {name} is", lambda: hub.api.get_space_runtime(name))
    hardware = str(runtime.requested_hardware or runtime.hardware or FREE)
    sleeps = default_sleep_time(hardware) and runtime.sleep_time
    return hardware, max(0, sleeps or 0)


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
    action, message = f"Sending the files to {name}", "Finetune, by python -m finetune deploy"
    additions = [CommitOperationAdd(path, file) for path, file in files.items()]
    head = hub.call(action, lambda: hub.api.repo_info(name, repo_type="space").sha)
    upload = partial(hub.api.preupload_lfs_files, name, additions, repo_type="space")
    hub.call(action, partial(upload, free_memory=False))
    operations = [*additions, *map(CommitOperationDelete, gone)]
    hub.commit(action, name, operations, message, "space", head)
