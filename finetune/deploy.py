"""`python -m finetune.deploy user/name --hardware t4-small`: this project as a Space of one's own.

Makes or updates the Space through the Hub's API: its files as one commit, its hardware, and where
asked for a bucket that keeps the runs. Free of torch. The token is the stored login's or HF_TOKEN;
it is an argument of the client alone and reaches no file, line or error.

Source: https://huggingface.co/docs/huggingface_hub/guides/manage-spaces
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, Volume

from finetune import catalog
from finetune.errors import FinetuneError, PublishError
from finetune.hub import Account, Hub, repo_id, sleep_time, stored_token

ROOT = Path(__file__).resolve().parent.parent
TOP = ("app.py", "finetune", "tests", "assets", "requirements.txt", "README.md", "LICENSE")
MOUNT, VARIABLE = "/data", "FINETUNE_RUNS"
RUNS = f"{MOUNT}/runs"
_PRICES = "https://huggingface.co/docs/hub/spaces-gpus"
_MARK = "finetune/__init__.py"  # a Space that has it is one of ours
_HUBS_OWN = {".gitattributes"}  # made by the Hub with the repository
PATIENCE = 1800.0  # seconds to wait for a Space to run: the Hub's own limit of a start
_SETTLED = 30.0  # seconds that a Space which ran before may take to begin with the new files
_FAILED = ("NO_APP_FILE", "CONFIG_ERROR", "BUILD_ERROR", "RUNTIME_ERROR")
_ASLEEP = ("PAUSED", "STOPPED", "SLEEPING", "DELETING")


@dataclass(frozen=True)
class Wanted:
    """The Space to make.

    Args:
        name: `user/name` or `organisation/name`.
        hardware: as the Hub names it; it is billed while the Space is awake.
        private: whether a new Space is private; one that exists stays as it is.
        bucket: `user/name` of a bucket that keeps the runs, made where there is none; empty for
            the Space's own disk, which is cleared at every restart.
        sleep_time: seconds without a visitor after which it sleeps, -1 for never; None for an
            hour where the Space is new and its hardware is paid for, else as it is.
    """

    name: str
    hardware: str = "t4-small"
    private: bool = False
    bucket: str = ""
    sleep_time: int | None = None

    def check(self) -> Wanted:
        """This, if the Hub would take the names; asks nobody.

        Raises:
            PublishError: naming what it would not take.
        """
        for name in filter(None, (self.name, self.bucket)):
            if name.strip().count("/") != 1:
                raise PublishError(f"{name!r} does not say whose it is.", "Give it as user/name.")
            repo_id(name, "")
        if self.sleep_time is not None and self.sleep_time < -1:
            raise PublishError(
                f"The sleep time is {self.sleep_time} seconds.", "Give -1 for never, or more."
            )
        return self


def files(root: Path = ROOT) -> dict[str, Path]:
    """Path in the Space -> file: exactly what git tracks, as it is now on the disk.

    Where there is no git, the project's own files and folders.

    Raises:
        PublishError: when the folder does not hold the project.
    """
    found = {name: root / name for name in _tracked(root) or _listed(root)}
    kept = {name: path for name, path in sorted(found.items()) if path.is_file()}
    if missing := [name for name in ("app.py", "README.md", _MARK) if name not in kept]:
        raise PublishError(
            f"{root} has no {' and no '.join(missing)}.", "Run this from a copy of the project."
        )
    return kept


def _tracked(root: Path) -> list[str]:
    """What git knows below the folder; empty where it is no work tree, or there is no git."""
    try:
        done = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return [name for name in done.stdout.decode("utf-8", "surrogateescape").split("\0") if name]


def _listed(root: Path) -> Iterator[str]:
    for name in TOP:
        path = root / name
        for one in path.rglob("*") if path.is_dir() else [path]:
            inside = one.relative_to(root)
            hidden = any(part.startswith((".", "__pycache__")) for part in inside.parts)
            if one.is_file() and not hidden and one.suffix != ".pyc":
                yield inside.as_posix()


def deploy(
    wanted: Wanted,
    token: str | None,
    root: Path = ROOT,
    say: Callable[[str], None] = lambda line: None,
) -> str:
    """Make or update the Space; its address.

    Everything is checked before anything is made. Doing it again changes what differs and sends
    no file twice; what is no longer among the project's files is removed from the Space.

    Args:
        token: of someone who may write there; used for these calls only.
        root: the project's folder.
        say: called with a line for every step taken.

    Raises:
        PublishError: when a name, the token or the hardware is wrong, the Space is something
            else, or the Hub refuses or does not answer. It says what is there already.
    """
    wanted.check()
    sent = files(root)
    hub = Hub(token, again="run this again", kept="it goes on from what is there")
    account = hub.account()
    _check_owner(account, wanted)
    price = hub.hardware(wanted.hardware)
    say(f"Signed in as {account.name}. {wanted.hardware}: {price}.")
    exists = _is_ours(hub, wanted.name)
    if wanted.sleep_time is None and not exists:
        wanted = replace(wanted, sleep_time=sleep_time(wanted.hardware))
    if not exists:
        hub.call(f"Making {wanted.name}", lambda: _create(hub.api, wanted))
        say(f"Made the {'private ' * wanted.private}Space {wanted.name}.")
    left = "" if exists else f" The Space {wanted.name} was made, but holds no files yet."
    if wanted.bucket:
        hub.call(f"Mounting {wanted.bucket}", lambda: _mount(hub.api, wanted), left)
        say(f"Runs are kept in the bucket {wanted.bucket}, mounted at {MOUNT}.")
    sha = hub.call(
        f"Sending the files to {wanted.name}",
        lambda: _commit(hub.api, wanted.name, sent, exists),
        left,
    )
    say(f"Sent {_counted(sent)} as commit {sha[:12]}.")
    left = " The files are there; only the hardware is not what was asked for."
    asked = hub.call(
        f"Asking for {wanted.hardware}", lambda: _ask_for_hardware(hub.api, wanted), left
    )
    say(f"{'Asked for' if asked else 'It has'} {wanted.hardware}.")
    if sleep_time(wanted.hardware) is not None:
        runtime = hub.call("Asking how it sleeps", lambda: hub.api.get_space_runtime(wanted.name))
        say(_sleeps(runtime.sleep_time))
    return f"{catalog.endpoint()}/spaces/{wanted.name}"


def follow(
    name: str,
    token: str | None,
    say: Callable[[str], None] = lambda line: None,
    patience: float = PATIENCE,
    every: float = 5.0,
) -> None:
    """Wait until a Space that was sent its files runs.

    Args:
        say: called with a line whenever its stage is another.
        patience: seconds after which it is given up.
        every: seconds between two looks.

    Raises:
        PublishError: when it does not build or start, is paused, or is not there in that time.
    """
    hub = Hub(token, again="look at its page", kept="its files are there")
    began, before, built = time.monotonic(), "", False
    while True:
        runtime = hub.call(f"Asking how {name} is", lambda: hub.api.get_space_runtime(name))
        stage, passed = str(runtime.stage), time.monotonic() - began
        if stage != before:
            say(f"Stage: {stage.lower().replace('_', ' ')}.")
        built = built or stage != "RUNNING"
        if stage == "RUNNING" and (built or passed >= _SETTLED):
            return
        page = f"{catalog.endpoint()}/spaces/{name}"
        if stage in _FAILED:
            told = " ".join(str(runtime.raw.get("errorMessage") or "").split())[:300]
            raise PublishError(
                f"The Space {name} ended as {stage}{': ' * bool(told)}{told}.",
                f"Read its log at {page}?logs=build.",
            )
        if stage in _ASLEEP:
            raise PublishError(f"The Space {name} is {stage.lower()}.", f"Wake it at {page}.")
        if passed > patience:
            raise PublishError(
                f"After {patience / 60:.0f} minutes the Space {name} is {stage.lower()}.",
                f"Look at its log at {page}?logs=build.",
            )
        before = stage
        time.sleep(every)


def _sleeps(seconds: int | None) -> str:
    if seconds is None or seconds < 0:
        return "It never sleeps, and is billed all the time; --sleep_time 3600 changes that."
    return f"It sleeps after {seconds / 60:,.0f} minutes without a visitor, and costs nothing then."


def _check_owner(account: Account, wanted: Wanted) -> None:
    for name in filter(None, (wanted.name, wanted.bucket)):
        if not account.may_write(name):
            raise PublishError(
                f"{account.name} may not write to {name.split('/')[0]!r}.",
                f"Choose one of: {', '.join([*account.namespaces, *account.repos])}.",
            )


def _is_ours(hub: Hub, name: str) -> bool:
    """Whether the Space exists; what is not this project is not written over."""

    def look() -> set[str] | None:
        if not hub.api.repo_exists(name, repo_type="space"):
            return None
        return set(hub.api.list_repo_files(name, repo_type="space")) - _HUBS_OWN

    held = hub.call(f"Looking for {name}", look)
    # A Space that the Hub's page made holds a README and nothing else.
    if held and held - {"README.md"} and _MARK not in held:
        raise PublishError(
            f"The Space {name} exists and holds something else.", "Choose another name."
        )
    return held is not None


def _create(api: HfApi, wanted: Wanted) -> None:
    # With its hardware at once: on the free one the Hub refuses Gradio Spaces to free accounts.
    hardware: Any = wanted.hardware
    api.create_repo(
        wanted.name,
        repo_type="space",
        space_sdk="gradio",
        private=wanted.private or None,
        space_hardware=hardware,
        space_sleep_time=wanted.sleep_time,
    )


def _mount(api: HfApi, wanted: Wanted) -> None:
    """The bucket where runs are kept; other volumes of the Space stay."""
    api.create_bucket(wanted.bucket, private=True, exist_ok=True)
    ours = Volume(type="bucket", source=wanted.bucket, mount_path=MOUNT)
    mounted = api.get_space_runtime(wanted.name).volumes or []
    others = [one for one in mounted if one.mount_path != MOUNT]
    if [one.to_dict() for one in mounted] != [one.to_dict() for one in (*others, ours)]:
        api.set_space_volumes(wanted.name, [*others, ours])
    api.add_space_variable(wanted.name, VARIABLE, RUNS)


def _commit(api: HfApi, name: str, sent: dict[str, Path], exists: bool) -> str:
    """All files as one commit; the Space is what the project is, or what it was before."""
    operations: list[Any] = [CommitOperationAdd(path, file) for path, file in sent.items()]
    head = None
    if exists:
        held = set(api.list_repo_files(name, repo_type="space"))
        gone = sorted(held - _HUBS_OWN - set(sent))
        operations += [CommitOperationDelete(path) for path in gone]
        head = api.repo_info(name, repo_type="space").sha
    commit = api.create_commit(
        name,
        repo_type="space",
        operations=operations,
        commit_message="Finetune, by python -m finetune.deploy",
        parent_commit=head,
    )
    return str(commit.oid)


def _ask_for_hardware(api: HfApi, wanted: Wanted) -> bool:
    """Whether it had to be asked for."""
    runtime = api.get_space_runtime(wanted.name)
    has = runtime.requested_hardware or runtime.hardware
    if has == wanted.hardware and wanted.sleep_time in (None, runtime.sleep_time):
        return False
    hardware: Any = wanted.hardware
    api.request_space_hardware(wanted.name, hardware, sleep_time=wanted.sleep_time)
    return True


def _counted(sent: dict[str, Path]) -> str:
    size = sum(path.stat().st_size for path in sent.values())
    return f"{len(sent)} files, {size / 1e6:.1f} MB"


def _deploy(wanted: Wanted, wait: bool) -> None:
    def tell(line: str) -> None:
        print(line, flush=True)

    token = stored_token()
    address = deploy(wanted, token, say=tell)
    if wait:
        follow(wanted.name, token, tell)
        tell("It runs.")
    else:
        tell("The Hub builds it now, which takes some minutes; its page shows the log.")
    tell(address)


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0 done, 1 with the reason on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m finetune.deploy",
        description="Make or update a Space with this project. Signs in with `hf auth login`'s "
        "token or HF_TOKEN. Hardware other than cpu-basic is billed by the minute while the Space "
        f"is awake; its price is told first, and stands at {_PRICES}.",
    )
    parser.add_argument("name", help="the Space, as user/name")
    parser.add_argument(
        "--hardware",
        default=Wanted.hardware,
        help="the Hub's name for it (default: %(default)s); billed while the Space is awake",
    )
    parser.add_argument("--private", action="store_true", help="make a new Space private")
    parser.add_argument(
        "--bucket", default="", help="keep runs in this bucket, as user/name; made if need be"
    )
    parser.add_argument(
        "--sleep_time",
        type=int,
        help="seconds without visitors until it sleeps, -1 for never (default: an hour for a new "
        "Space on paid hardware, else as it is)",
    )
    parser.add_argument(
        "--wait", action="store_true", help="come back when the Space runs, or has failed to"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="list the files and their size, and ask nobody"
    )
    chosen = parser.parse_args(arguments)
    wanted = Wanted(chosen.name, chosen.hardware, chosen.private, chosen.bucket, chosen.sleep_time)
    try:
        if chosen.dry_run:
            wanted.check()
            for name, path in (sent := files()).items():
                print(f"{path.stat().st_size:>10,}  {name}")
            print(f"{_counted(sent)} would go to {wanted.name} on {wanted.hardware}.")
            print(f"What that costs: {_PRICES}")
        else:
            _deploy(wanted, chosen.wait)
    except FinetuneError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
