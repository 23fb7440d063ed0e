"""Write the goldens anew: `python -m tests.goldens [arguments of pytest, such as -k check]`."""

import os
import subprocess
import sys

import pytest

from tests.goldens import golden


def main(arguments):
    os.environ[golden.RENEW] = "yes"
    status = pytest.main([str(golden.FOLDER), "-n", "0", "-m", "", *arguments])
    if not status and not arguments:
        for folder in ("check", "help", "page", "runs"):
            for path in {*(golden.FOLDER / folder).rglob("*.*")} - golden.SEEN:
                path.unlink()
    subprocess.run(["git", "add", "--intent-to-add", golden.FOLDER], check=False)
    subprocess.run(["git", "diff", "--stat", "--", golden.FOLDER], check=False)
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
