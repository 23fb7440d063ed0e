"""The linter, the type checker and the check of imports, beside the tests in a process of their
own. A run of all tests starts them first and asks for their findings last."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
TOOLS = ("ruff check .", "ruff format --check .", "lint-imports", "mypy")
Found = tuple[float, str]  # seconds, and what a tool says if it found anything


def is_wanted(config: pytest.Config) -> bool:
    """True if all tests are run, and by this process."""
    chosen = config.option.keyword or config.option.markexpr not in ("", "not long")
    return (
        config.args_source is pytest.Config.ArgsSource.TESTPATHS
        and not chosen
        and not config.option.collectonly
        and not hasattr(config, "workerinput")
    )


class Quality:
    """A plugin of pytest: a run with findings fails."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "quality")
        self._results: dict[str, Future[Found]] = {
            tool: self._pool.submit(_run, tool) for tool in TOOLS
        }

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.INTERRUPTED:
            self._pool.shutdown(cancel_futures=True)
        elif any(result.result()[1] for result in self._results.values()):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        done = {tool: each.result() for tool, each in self._results.items() if each.done()
                and not each.cancelled()}  # fmt: skip
        for tool, (_, findings) in done.items():
            if findings:
                terminalreporter.section(tool, red=True)
                terminalreporter.write(findings)
        taken = ", ".join(f"{tool} {seconds:.0f} s" for tool, (seconds, _) in done.items())
        terminalreporter.write_line(f"beside the tests: {taken}")


def _run(tool: str) -> Found:
    began = time.monotonic()
    name, *options = tool.split()
    command = [str(Path(sys.executable).with_name(name)), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    findings = done.stdout + done.stderr if done.returncode else ""
    return time.monotonic() - began, findings or ("it failed\n" if done.returncode else "")
