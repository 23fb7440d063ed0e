"""Code that is sent as is to a Ray cluster's machines, so it imports nothing of this project."""

import contextlib
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

LINGER = 60.0  # seconds to keep an ended process's output if nobody asks for it


def describe_node(file: str, source: str, packages: tuple[str, ...]) -> dict[str, Any]:
    """Describe this machine as a run would find it: whether a `file` of the run's folder can be
    read, and the `source` folder of this project is here, with the versions of some packages."""
    text = ""
    with contextlib.suppress(OSError):
        text = Path(file).read_text(encoding="utf-8")
    versions = {"Python": ".".join(platform.python_version_tuple()[:2])}
    for name in packages:
        versions[name] = "none"
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name).split("+")[0]  # the same for each kind of GPU
    has_source = (Path(source) / "finetune" / "__main__.py").is_file()
    writable = os.access(Path(file).parent, os.W_OK)
    return {"text": text, "writable": writable, "source": has_source, "versions": versions}


class RankProcess:
    """An actor that starts one of the `ranks` processes of a run on its machine, keeps its output
    and its exit code. `head` is the name of the actor of rank 0; Python gets the `arguments` and
    `variables`, and finds this project in the folder `source`."""

    def __init__(
        self, head: str, rank: int, ranks: int, arguments: list[str],
        variables: dict[str, str], source: str,
    ) -> None:  # fmt: skip
        self._rank, self._asked, self._address = rank, time.monotonic(), ("", 0)
        self._lines: list[str] = []
        paths = filter(None, [source, os.environ.get("PYTHONPATH", "")])
        environment = os.environ | variables | {"PYTHONPATH": os.pathsep.join(paths)}
        if ranks > 1:
            environment |= self._rendezvous(head, ranks)
        self._folder = tempfile.mkdtemp(prefix="finetune-")  # no name refers to a file here
        self._process = subprocess.Popen(
            [sys.executable, *arguments], env=environment, cwd=self._folder,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True, encoding="utf-8", errors="replace",
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        threading.Thread(target=self._attend, daemon=True).start()

    def _rendezvous(self, head: str, ranks: int) -> dict[str, str]:
        """Return the variables by which the processes find each other, as `torchrun` sets them."""
        import ray

        if self._rank == 0:
            with socket.socket() as free:
                free.bind(("", 0))
                self._address = (ray.util.get_node_ip_address(), free.getsockname()[1])
        else:
            self._address = ray.get(ray.get_actor(head).address.remote(), timeout=60)
        group = ray.util.get_current_placement_group()
        nodes = ray.util.placement_group_table(group)["bundles_to_node_id"]
        local = [rank for rank in range(ranks) if nodes[rank] == nodes[self._rank]]
        values = {
            "RANK": self._rank,
            "WORLD_SIZE": ranks,
            "LOCAL_RANK": local.index(self._rank),
            "LOCAL_WORLD_SIZE": len(local),
            "MASTER_ADDR": self._address[0],
            "MASTER_PORT": self._address[1],
        }
        return {name: str(value) for name, value in values.items()}

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line.rstrip("\n"))

    def _attend(self) -> None:
        """Wait for the end. If nobody asks for it, free the run's place."""
        import ray

        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
        while self._rank or time.monotonic() - self._asked < LINGER:
            time.sleep(1)
        ray.util.remove_placement_group(ray.util.get_current_placement_group())

    def address(self) -> tuple[str, int]:
        """Return host and port by which the processes find each other."""
        return self._address

    def exit_code(self) -> int | None:
        """Return the process's exit code; None while it runs."""
        self._asked = time.monotonic()
        return self._process.poll()

    def output(self, begin: int) -> tuple[list[str], bool]:
        """Return the output lines from number `begin` on, and whether these are all."""
        ended = not self._reader.is_alive()  # asked first
        return self._lines[begin:], ended

    def end(self) -> None:
        """Kill the process and those it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
