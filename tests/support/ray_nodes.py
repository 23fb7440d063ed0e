"""A Ray cluster on this machine, in processes of its own: `python -m tests.support.ray_nodes`.

Its head has no processors, so that runs are carried out on the nodes that are added. Each line of
its standard input is a command, each answered by a line; it ends with the input.
"""

import contextlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

INSTALL = "pip install -r finetune/engines/requirements-ray.txt"
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason=f"Ray is not installed ({INSTALL})"
)
ROOT = Path(__file__).resolve().parent.parent.parent
# A node that does not answer is given up after six seconds, instead of a minute.
_HEALTH = {
    "health_check_initial_delay_ms": 2000, "health_check_period_ms": 1000,
    "health_check_timeout_ms": 2000, "health_check_failure_threshold": 3,
}  # fmt: skip


class Nodes:
    """The nodes of a running cluster, known by the pids of their raylets."""

    def __init__(self, process):
        self._process = process
        self.address = self._ask("address")

    def _ask(self, command):
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        assert answer, "the cluster has ended"
        return answer

    def add(self):
        """Add a node of one processor."""
        return int(self._ask("add"))

    def kill(self, node):
        """Kill a node's processes, as if its machine had lost its power."""
        assert self._ask(f"kill {node}") == "killed"


@contextlib.contextmanager
def running_cluster(home):
    """A cluster without nodes, but for its head; in a folder whose path is short enough for its
    sockets."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        variables = {
            "HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled",
            "RAY_TMPDIR": folder,
        }  # fmt: skip
        (Path(folder) / "ray").mkdir()  # Ray writes its address there, and does not make it
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.ray_nodes", folder], cwd=ROOT, text=True,
            env={**os.environ, **variables, "RAY_worker_niceness": "0"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        try:
            yield Nodes(process)
        finally:
            process.stdin.close()
            try:
                process.wait(60)
            finally:
                process.kill()


def main(folder):
    """Start the head, and answer commands."""
    from ray.cluster_utils import Cluster

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Ray prints there
    head = {"num_cpus": 0, "include_dashboard": False, "temp_dir": folder}
    cluster = Cluster(True, head_node_args={**head, "_system_config": _HEALTH})
    nodes = {}
    for line in sys.stdin:
        match line.split():
            case ["address"]:
                answers.write(f"{cluster.address}\n")
            case ["add"]:
                node = cluster.add_node(num_cpus=1)
                pid = node.all_processes["raylet"][0].process.pid
                nodes[pid] = node
                answers.write(f"{pid}\n")
            case ["kill", pid]:
                cluster.remove_node(nodes.pop(int(pid)), allow_graceful=False)
                answers.write("killed\n")
    cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
