"""The machines of a Ray cluster: a run's share of them, and whether a machine meets the run's
requirements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from finetune.engines import ray_node
from finetune.environment import project
from finetune.errors import JobError
from finetune.runs.run import SPEC, Run

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
