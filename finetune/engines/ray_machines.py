"""The machines of a Ray cluster: the connection to them, a run's share of them, and whether a
machine meets the run's requirements. Ray itself is imported when it is needed."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from finetune import owners
from finetune.engines import ray_node
from finetune.engines.base import EngineSpec
from finetune.environment import project
from finetune.errors import JobError
from finetune.messages import message as _
from finetune.runs.run import SPEC, Run

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
            "No Ray cluster is named.", "Give --address HOST:PORT, or set RAY_ADDRESS=HOST:PORT."
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
        raise JobError("Ray is not installed here ({error}).", INSTALL, error=error) from error
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


SOURCE = str(project.ROOT)
_PACKAGES = ("torch", "transformers", "ray")  # must have the same version on all machines
_LOOK_LIMIT = 120.0  # seconds for a machine to start a process and look for the run's folder
_KINDS = ("CPU", "GPU")


def choose_bundle(ray: Any, ranks: int, nodes: int) -> tuple[dict[str, int], list[Any]]:
    """Return the resources of each process, and the machines that have them. A process gets a GPU
    if there are any, otherwise a share of a machine's CPUs."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    sizes = {kind: [int(node["Resources"].get(kind, 0)) for node in alive] for kind in _KINDS}
    kind, amount = "GPU", 1
    if not any(sizes["GPU"]):
        kind, most = "CPU", sorted(sizes["CPU"], reverse=True)
        amount = max(1, most[min(nodes, len(most)) - 1] // -(-ranks // nodes))
    room = [size // amount for size in sizes[kind]]
    enough = max(room) >= ranks if nodes == 1 else sum(room) >= ranks
    if not enough or sum(map(bool, room)) < nodes:
        machines = zip(alive, sizes["CPU"], sizes["GPU"], strict=True)
        raise JobError(
            "The run needs {ranks} x {amount} {kind} on {nodes} machine(s); the Ray cluster has "
            "{machines}.",
            "Lower num_processes or nodes, spread it over more nodes, or add machines.",
            ranks=ranks,
            amount=amount,
            kind=kind,
            nodes=nodes,
            machines=", ".join(
                f"{node['NodeManagerAddress']} ({cpus} CPU, {gpus} GPU)"
                for node, cpus, gpus in machines
            ),
        )
    return {kind: amount}, [node for node, places in zip(alive, room, strict=True) if places]


def check_nodes(ray: Any, run: Run, nodes: list[Any], name: str = SPEC) -> None:
    """Run a task on each machine to check that it has the run's folder and requirements. `name` is
    a file in the folder."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    file = str(run.folder.resolve() / name)
    ray.cloudpickle.register_pickle_by_value(ray_node)
    look = ray.remote(num_cpus=0, max_retries=0)(ray_node.describe_node)
    here = ray_node.describe_node(file, SOURCE, _PACKAGES)
    answers = {}
    for node in nodes:
        place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        task = look.options(scheduling_strategy=place)
        answers[task.remote(file, SOURCE, _PACKAGES)] = node
    answered, _ = ray.wait(list(answers), num_returns=len(answers), timeout=_LOOK_LIMIT)
    for answer, node in answers.items():
        machine = node["NodeManagerAddress"]
        if answer not in answered:
            raise JobError(
                "The machine {name} of the Ray cluster has not answered within {n} seconds.",
                "See in its log why it starts no process, or take it out of the cluster.",
                name=machine,
                n=int(_LOOK_LIMIT),
            )
        compare_machine(machine, ray.get(answer), here, run.folder.resolve())


def compare_machine(name: str, there: dict[str, Any], here: dict[str, Any], folder: Path) -> None:
    """Check that a machine has the same folders and packages as this one."""
    if there["text"] != here["text"] or not there["writable"]:
        raise JobError(
            "The run's folder {folder} is not on the machine {name}, or cannot be written there.",
            "Keep the runs in a folder that all machines share (--runs, or FINETUNE_RUNS).",
            folder=folder,
            name=name,
        )
    if not there["source"]:
        raise JobError(
            "This project's folder {folder} is not on the machine {name}.",
            "Put it into a folder that all machines share, or at the same place on each.",
            folder=SOURCE,
            name=name,
        )
    for package, value in here["versions"].items():
        if there["versions"][package] != value:
            raise JobError(
                "{package} is {there} on the machine {name}, and {here} here.",
                "Install {package} {here} on {name}.",
                package=package,
                there=there["versions"][package],
                here=value,
                name=name,
            )
