"""What a confined process can do: `python -m tests.support.confined` tries it."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from finetune.environment import landlock
from finetune.environment.confinement import Confinement, visible_environment, with_temporary_folder

needs_landlock = pytest.mark.skipif(not landlock.abi(), reason="this kernel has no Landlock")
_READ_ELSEWHERE = "import sys; open(sys.argv[1], 'rb').read(1)"


def outcomes(actions, confinement, abi=0):
    """How each action ends before a process is confined and after: "done", or the error's name.

    Args:
        actions: a function of this module and its arguments, all text.
        abi: of Landlock, as if the kernel had no later one.
    """
    wanted = [*actions]
    with with_temporary_folder(confinement) as own:
        request = json.dumps([wanted, own.to_json(), abi])
        variables = visible_environment() | own.prepare()
        folder = Path(__file__).resolve().parent.parent.parent  # whose modules it loads unconfined
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.confined", request],
            env=variables, cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    before, after = json.loads(done.stdout)
    return before, after


def read(path):
    with open(path, "rb") as file:
        file.read(1)


def read_in_another_process(path):
    subprocess.run([sys.executable, "-c", _READ_ELSEWHERE, path], check=True, capture_output=True)


def read_in_a_thread(path):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(read, path).result()


def list_folder(path):
    os.listdir(path)


def write(path):
    with open(path, "a") as file:
        file.write("x")


def replace(path):
    """Write a file as `disk.write_atomically` does."""
    write(f"{path}.new")
    os.replace(f"{path}.new", path)


def make(path, kind, target=""):
    """Make a link or a pipe with a function of `os`, and remove it."""
    getattr(os, kind)(*filter(None, [target, path]))
    os.unlink(path)


def run(program):
    subprocess.run([program], check=True, capture_output=True)


def signal_parent():
    os.kill(os.getppid(), 0)


def read_parents(name):
    read(f"/proc/{os.getppid()}/{name}")


def _attempt(name, *arguments):
    try:
        globals()[name](*arguments)
    except (OSError, subprocess.CalledProcessError) as error:
        return type(error).__name__
    return "done"


def main(request):
    actions, confinement, abi = json.loads(request)
    if abi:
        landlock.abi = lambda: abi
    results = [[_attempt(*action) for action in actions]]
    Confinement.from_json(confinement).enter()
    results.append([_attempt(*action) for action in actions])
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1])
