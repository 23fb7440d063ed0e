"""A Ray cluster as an engine, whose machines share the folder of the runs.

An attempt is a placement group with one actor per process (`ray_node`). They are detached and
named, so that a later worker of the run finds them. The process of rank 0 writes events, models and
checkpoints into the run's folder itself; the worker here only checks that all processes are alive.
Ray itself is imported when it is needed.
"""

import contextlib
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from finetune import owners
from finetune.engines import base, ray_node
from finetune.engines.base import ATTEMPT, LOST, AttemptStatus, Engine, EngineSpec, Shown
from finetune.environment import project
from finetune.errors import JobError
from finetune.messages import message as _
from finetune.runs.run import SPEC, Run

ADDRESS = "RAY_ADDRESS"  # the variable that names the owner's cluster
INSTALL = "pip install -r finetune/engines/requirements-ray.txt"
NAMESPACE = "finetune"  # of the actors' and groups' names
SOURCE = str(project.ROOT)
_ADDRESS = re.compile(r"([\w.-]+|\[[0-9a-fA-F:.]+\]):(\d+)")
_PACKAGES = ("torch", "transformers", "ray")  # must have the same version on all machines
_KINDS = ("CPU", "GPU")
_CONNECT_LIMIT = 20.0  # seconds for the cluster to answer
_LOOK_LIMIT = 120.0  # seconds for a machine to start a process and look for the run's folder
_ANSWER_LIMIT = 10.0  # seconds for an actor to answer a question
_LOOK = 0.5  # seconds between two requests for new output
_connecting = threading.Lock()


class RayOptions(base.EngineOptions):
    """Options of a Ray cluster."""

    address: Annotated[
        str, Shown(_("Address of the cluster"), _("Empty for that of RAY_ADDRESS."), "HOST:6379")
    ] = ""
    """The Ray cluster, as HOST:PORT; that of the environment variable RAY_ADDRESS where empty."""
    nodes: Annotated[int, Shown(_("Machines"), _("Over which its processes are spread."))] = Field(
        1, ge=1, le=64
    )
    """How many machines of the cluster the run's processes are spread over."""
    max_failures: int = Field(3, ge=0)
    """How often a run whose machine was lost goes on from its last checkpoint on others."""


class RayCluster(Engine):
    """The engine. Every method raises a `JobError` if Ray is missing or does not answer."""

    name, label = "ray", _("Ray cluster")
    Options = RayOptions
    owners_options = ("address",)
    owners_variables = (ADDRESS,)
    places = 8

    def __init__(self, token: str = "") -> None:
        self._shown = 0  # lines of output that `follow` has yielded

    @classmethod
    def is_offered(cls) -> bool:
        """True if the owner asks or has set an address. Visitors cannot set one."""
        return owners.policy().owner_asks or bool(os.environ.get(ADDRESS))

    @classmethod
    def missing(cls) -> tuple[str, str]:
        return ("", "") if find_spec("ray") else (_("Ray is not installed here."), INSTALL)

    @classmethod
    def confines_follower(cls) -> bool:
        """False if the owner has named a cluster: everyone who reaches it has its machines."""
        return not os.environ.get(ADDRESS)

    def price(self, spec: EngineSpec) -> float:
        import_ray()
        cluster_address(spec)
        return 0.0

    def submit(self, run: Run, spec: EngineSpec) -> str:
        ranks, nodes = run.config().num_processes, RayOptions(**spec.options).nodes
        if ranks < nodes:
            raise JobError(
                "num_processes is {processes}, and they cannot be spread over {nodes} machines.",
                "Set num_processes to {nodes} or more, or nodes to {processes}.",
                processes=ranks, nodes=nodes,
            )  # fmt: skip
        strategy = {ranks: "STRICT_SPREAD", 1: "STRICT_PACK"}.get(nodes, "SPREAD")
        job = _job(run, spec)
        with connected(spec) as ray:
            bundle, machines = choose_bundle(ray, ranks, nodes)
            check_nodes(ray, run, machines)
            group = _find_group(ray, job) or ray.util.placement_group(
                [bundle] * ranks, strategy=strategy, name=job, lifetime="detached"
            )
            try:
                _start_actors(ray, run, spec, job, group, bundle)
            except BaseException:
                _release(ray, job)
                raise
        return job

    def state(self, run: Run, spec: EngineSpec) -> AttemptStatus:
        with connected(spec) as ray:
            group = _find_group(ray, spec.job)
            if group is None:
                if run.state().end_recorded:
                    return AttemptStatus("ended", 0)
                reason = _("The Ray cluster does not know the run.")
                return AttemptStatus("ended", lost=True, reason=reason)
            if ray.util.placement_group_table(group)["state"] == "PENDING":
                return AttemptStatus("waiting")
            codes, gone = _ask_ranks(ray, spec.job, group.bundle_count)
            state = _judge(codes, gone)
            if state.lost:
                _release(ray, spec.job)
            return state

    def knows(self, run: Run, spec: EngineSpec) -> bool:
        with connected(spec) as ray:
            return _find_group(ray, spec.missing) is not None

    def follow(self, run: Run, spec: EngineSpec) -> Iterator[str]:
        """Yield rank 0's output; called again, only the lines not yet yielded."""
        with connected(spec) as ray:
            while (head := _find_actor(ray, f"{spec.job}.0")) is not None:
                try:
                    answer = head.output.remote(self._shown)
                    lines, ended = ray.get(answer, timeout=_ANSWER_LIMIT)
                except ray.exceptions.GetTimeoutError:  # it is waiting for its machine
                    continue
                except ray.exceptions.RayActorError:  # `state` reports it
                    return
                self._shown += len(lines)
                yield from lines
                if ended:
                    return
                time.sleep(_LOOK)

    def stop(self, run: Run, spec: EngineSpec, now: bool = False) -> None:
        # The run's STOP file is in the folder that its process looks at, once it has begun.
        if now or self.state(run, spec).status == "waiting":
            with connected(spec) as ray:
                _release(ray, spec.job)

    def fetch(self, run: Run, spec: EngineSpec) -> bytes:
        """Return nothing: all is in the run's folder. Frees the attempt's place in the cluster."""
        with connected(spec) as ray:
            _release(ray, spec.job)
        self._shown = 0
        return b""

    def remove(self, run: Run, spec: EngineSpec) -> None:
        if not (spec.job or spec.is_unheard):
            return
        # On a cluster that does not answer, the process ends once the run's folder has gone.
        with contextlib.suppress(JobError), connected(spec) as ray:
            _release(ray, spec.job or _job(run, spec))
            ray.shutdown()  # this process is an app's, which stays


def _job(run: Run, spec: EngineSpec) -> str:
    return f"{run.id}.{spec.attempt}"


def _start_actors(
    ray: Any, run: Run, spec: EngineSpec, job: str, group: Any, bundle: dict[str, int]
) -> None:
    """Start one actor per process, each in its part of the group, once the group has its place."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    arguments = ["-m", "finetune", "train", "--run", str(run.folder.resolve())]
    variables = {ATTEMPT: str(spec.attempt), "PYTHONUNBUFFERED": "1"}
    variables |= owners.policy().worker_environment()
    ray.cloudpickle.register_pickle_by_value(ray_node)
    actor = ray.remote(ray_node.RankProcess)
    ranks = group.bundle_count
    for rank in range(ranks):
        actor.options(
            name=f"{job}.{rank}",
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_concurrency=8,  # it answers while it waits
            num_cpus=bundle.get("CPU", 0),
            num_gpus=bundle.get("GPU", 0),
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, rank),
        ).remote(f"{job}.0", rank, ranks, arguments, variables, SOURCE)


def _find_group(ray: Any, job: str) -> Any:
    try:
        return ray.util.get_placement_group(job)
    except ValueError:
        return None


def _find_actor(ray: Any, name: str) -> Any:
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return None


def _ask_ranks(ray: Any, job: str, ranks: int) -> tuple[dict[int, int | None], dict[int, str]]:
    """Return the exit codes of the processes whose actors answer (None while running), and the
    causes for those that will never answer."""
    codes: dict[int, int | None] = {}
    gone: dict[int, str] = {}
    questions = {}
    for rank in range(ranks):
        if (actor := _find_actor(ray, f"{job}.{rank}")) is None:
            gone[rank] = _("Its actor is not there any more.")
        else:
            questions[actor.exit_code.remote()] = rank
    if questions:
        ray.wait(list(questions), num_returns=len(questions), timeout=_ANSWER_LIMIT)
    for question, rank in questions.items():
        try:
            codes[rank] = ray.get(question, timeout=0)
        except (ray.exceptions.GetTimeoutError, ray.exceptions.ActorUnavailableError):
            codes[rank] = None  # the next answer, or Ray's own look at the machine, says more
        except ray.exceptions.RayActorError as error:
            gone[rank] = next(iter(str(error).splitlines()), "")
    return codes, gone


def _judge(codes: dict[int, int | None], gone: dict[int, str]) -> AttemptStatus:
    """Return the status of an attempt from its processes' exit codes."""
    if codes.get(0) == 0:  # the one that writes; the others have no work after it
        return AttemptStatus("ended", 0)
    for rank, cause in gone.items():
        reason = _("The machine of process {rank} has gone. {cause}", rank=rank, cause=cause)
        return AttemptStatus("ended", lost=True, reason=reason)
    for rank, code in codes.items():
        if code not in (None, 0, LOST):
            reason = _("Process {rank} of the run ended with exit code {n}.", rank=rank, n=code)
            return AttemptStatus("ended", code, reason)
    if LOST in codes.values():
        return AttemptStatus("ended", lost=True, reason=_("The run's processes lost each other."))
    return AttemptStatus("running")


def _release(ray: Any, job: str) -> None:
    """Kill an attempt's processes and free its place."""
    group = _find_group(ray, job)
    if group is None:
        return
    actors = [_find_actor(ray, f"{job}.{rank}") for rank in range(group.bundle_count)]
    actors = list(filter(None, actors))
    ended = [actor.end.remote() for actor in actors]
    if ended:
        ray.wait(ended, num_returns=len(ended), timeout=_ANSWER_LIMIT)
    for actor in actors:
        ray.kill(actor)
    ray.util.remove_placement_group(group)


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
    socket.create_connection((host.strip("[]"), int(port)), _CONNECT_LIMIT / 2).close()
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
    thread.join(_CONNECT_LIMIT)
    if thread.is_alive():
        raise _no_answer(address, _("it was asked for {n} seconds", n=int(_CONNECT_LIMIT)))
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


def check_nodes(ray: Any, run: Run, nodes: list[Any]) -> None:
    """Run a task on each machine to check that it has the run's folder and requirements."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    file = str(run.folder.resolve() / SPEC)
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
