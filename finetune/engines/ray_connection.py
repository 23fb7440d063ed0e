"""The connection to a Ray cluster: its address, and Ray itself, imported when it is needed."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from finetune import owners
from finetune.engines.base import EngineSpec
from finetune.errors import JobError
from finetune.messages import message as _

ADDRESS = "RAY_ADDRESS"  # the variable that names the owner's cluster
INSTALL = "pip install -r finetune/engines/requirements-ray.txt"
NAMESPACE = "finetune"  # of the actors' and groups' names
CONNECT_LIMIT = 20.0  # seconds for the cluster to answer
_ADDRESS = re.compile(r"([\w.-]+|\[[0-9a-fA-F:.]+\]):(\d+)")
_connecting = threading.Lock()


def cluster_address(spec: EngineSpec) -> str:
    """Return HOST:PORT of the cluster. A shared app accepts only the owner's, because a visitor's
    own worker writes the run's folder."""
    named = str(spec.options.get("address", "")) if owners.policy().owner_asks else ""
    address = named or os.environ.get(ADDRESS, "")
    if not address:
        raise JobError(
            "No Ray cluster is named.",
            "Give --address HOST:PORT, or set RAY_ADDRESS=HOST:PORT.",
        )
    if not _ADDRESS.fullmatch(address):  # `local` would start a cluster, `auto` join any
        raise JobError(
            "{address!r} is no address of a Ray cluster.",
            "Give HOST:PORT, as `ray start --head` shows it, by --address or RAY_ADDRESS.",
            address=address,
        )
    return address


def import_ray() -> Any:
    """Import Ray. Raises a `JobError` with the command that installs it if it is missing."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.exceptions
        import ray.util
        from ray import cloudpickle  # noqa: F401
    except ImportError as error:
        raise JobError(
            "Ray is not installed here ({error}).",
            INSTALL,
            error=error,
        ) from error
    return ray


@contextlib.contextmanager
def connected(spec: EngineSpec) -> Iterator[Any]:
    """Yield Ray connected to the cluster. Its errors become a `JobError`."""
    ray, address = import_ray(), cluster_address(spec)
    try:
        with _connecting:
            _connect(ray, address)
        yield ray
    except (ray.exceptions.RayError, OSError, RuntimeError) as error:
        raise _no_answer(address, str(error)) from error


def _no_answer(address: str, reason: str) -> JobError:
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    return JobError(
        "The Ray cluster at {address} does not answer: {reason}.",
        "See that it runs (`ray status --address {address}`), and that this machine belongs to it.",
        address=address,
        reason=" ".join(lines)[:300],
    )


def _connect(ray: Any, address: str) -> None:
    """Connect this process, in a thread because Ray itself tries for a minute."""
    if ray.is_initialized():
        return
    host, port = address.rsplit(":", 1)
    socket.create_connection((host.strip("[]"), int(port)), CONNECT_LIMIT / 2).close()
    failures: list[Exception] = []

    def connect() -> None:
        try:
            ray.init(
                address=address,
                namespace=NAMESPACE,
                log_to_driver=False,
                ignore_reinit_error=True,
                logging_level="ERROR",
            )
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=connect, name="ray", daemon=True)
    thread.start()
    thread.join(CONNECT_LIMIT)
    if thread.is_alive():
        raise _no_answer(address, _("it was asked for {n} seconds", n=int(CONNECT_LIMIT)))
    if failures and "ersion mismatch" in str(failures[0]):
        raise JobError(
            "The Ray cluster at {address} is of another version: {reason}",
            "Install the same Ray and Python on all machines: pip install ray=={version}",
            address=address,
            reason=" ".join(str(failures[0]).split())[:300],
            version=version("ray"),
        ) from failures[0]
    if failures:
        raise _no_answer(address, str(failures[0])) from failures[0]
