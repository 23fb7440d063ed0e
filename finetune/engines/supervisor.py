"""Carries a run out on another engine: the work of its worker process on this machine.

The worker submits the attempt or follows a running one, writes its events into the run's folder,
passes on a stop request, and fetches the saved files. It may be killed at any moment; the run's
next worker continues from the spec.

Events come as lines of the job's output, `@finetune ATTEMPT OFFSET JSON`. The offset is the line's
position in the job's own `events.jsonl`. It shows repeated and missing lines. All other output of a
job goes to the run's log.
"""

import contextlib
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import NamedTuple

from finetune.engines import registry
from finetune.engines.base import AttemptStatus, Engine, EngineSpec, read_spec, write_spec
from finetune.errors import FinetuneError, WrongAccount
from finetune.messages import message as _
from finetune.runs import events
from finetune.runs.events import Event, Phase
from finetune.runs.run import Run

Show = Callable[[Event], None]
Describe = Callable[[Event], str]
MARK = "@finetune "
_LINE = re.compile(MARK + r"(\d+) (\d+) (\{.*\}|)")


class LogLine(NamedTuple):
    """A line of `events.jsonl` without its newline, perhaps empty, and its byte offset there."""

    attempt: int
    offset: int
    line: bytes

    @property
    def end(self) -> int:
        """Byte offset of the next line."""
        return self.offset + len(self.line) + 1

    def encode(self) -> str:
        return f"{MARK}{self.attempt} {self.offset} {self.line.decode()}"


def decode(text: str) -> LogLine | None:
    """Parse the `LogLine` in a line of output; None for other or incomplete lines."""
    match = _LINE.fullmatch(text.rstrip("\r\n"))
    return LogLine(int(match[1]), int(match[2]), match[3].encode()) if match else None


def split(content: bytes, attempt: int, begin: int) -> list[LogLine]:
    """Split a part of `events.jsonl` that begins at byte `begin` into its whole lines."""
    lines = []
    for line in content[: content.rfind(b"\n") + 1].split(b"\n")[:-1]:
        lines.append(LogLine(attempt, begin, line))
        begin = lines[-1].end
    return lines


POLL = 3.0  # seconds between two requests for the attempt's status
STOP_LIMIT = 180.0  # seconds for an attempt to save and end after a stop, before it is killed
SILENCE = 600.0  # seconds without an answer of the engine before the run is given up
_LAST = (events.Finished, events.Stopped, events.Failed)
_RESUME = _("Resume goes on from the last checkpoint.")


def carry_out(
    run: Run,
    token: str = "",
    show: Show = lambda event: None,
    describe: Describe = lambda event: "",
    open_engine: Callable[[EngineSpec, str], Engine] = registry.open_engine,
) -> int:
    """Carry a run out on the engine of its spec, as its worker. Returns the exit status. `show` is
    called with every event that is written; `describe` returns the lines that it writes, which are
    not printed again if they are in the attempt's log."""
    try:
        spec = read_spec(run)
        registry.find_engine(spec.engine).check_config(run.config())
        engine = open_engine(spec, token)
        ended = _Attempt(run, engine, show, describe).carry_out()
        # Of an engine whose attempt is restarted after losing its machine.
        for _restart in range(int(spec.options.get("max_failures", 0))):
            if not ended.lost or run.stop_requested() or run.state().end_recorded:
                break
            run.resume()
            ended = _Attempt(run, engine, show, describe).carry_out()
    except Exception as error:
        failed = events.failure_event(error, _("A file of the run"), _RESUME)
        show(failed)
        if run.exists():  # otherwise it was deleted
            run.append(failed)
        return 1
    summary = run.state()
    if not summary.end_recorded:
        last: events.Event = events.Failed(error=_reason(ended), remedy=_RESUME)
        if run.stop_requested():
            last = events.Stopped(
                step=run.checkpoint_step(), seconds=summary.worked_until_now,
                discarded=run.discard_requested(),
            )  # fmt: skip
        show(last)
        run.append(last)
    summary = run.state()
    if summary.status == "finished":
        shutil.rmtree(run.checkpoints_folder, ignore_errors=True)
    if summary.discarded:
        run.discard()
    return 0 if summary.status in ("finished", "stopped") else 1


def _reason(ended: AttemptStatus) -> str:
    """Return the reason why an attempt ended, if the attempt gave none."""
    code = ended.exit_code or 0
    number = -code if code < 0 else code - 128  # of a signal, as Python and as a shell report it
    if number == signal.SIGKILL:
        return _(
            "The run's process was killed, perhaps for want of memory: a smaller batch size or "
            "maximum length takes less."
        )
    with contextlib.suppress(ValueError):  # there is no such signal
        return _("The run's process was ended by {signal}.", signal=signal.Signals(number).name)
    return ended.reason or _("The run's process has ended without a word.")


class _Attempt:
    def __init__(self, run: Run, engine: Engine, show: Show, describe: Describe) -> None:
        self._run, self._engine, self._show, self._describe = run, engine, show, describe
        self._spec = read_spec(run)
        self._output: SimpleQueue[str] = SimpleQueue()
        self._ended = threading.Event()
        self._stop_asked = 0.0  # when a stop was passed on
        # If another worker followed the attempt before: what that worker wrote.
        taken_up = bool(self._spec.job or self._spec.missing)
        self._known = set(run.events_file.read_bytes().split(b"\n")) if taken_up else set()
        self._shown: set[str] = set()  # lines that describe the attempt's events
        self._next = self._spec.sent  # the next byte of the attempt's events

    def carry_out(self) -> AttemptStatus:
        """Submit the attempt if needed, then follow it until it ends."""
        if missing := self._spec.missing:  # it is followed if the engine knows it again
            job = missing if self._engine.knows(self._run, self._spec) else ""
            if not job:
                self._run.append(events.Resumed(step=self._run.checkpoint_step()))
            self._spec = write_spec(self._run, self._spec, job=job, missing="")
        waits = not self._spec.job
        if waits:
            self._submit()
        elif self._run.state().end_recorded:
            try:
                waits = self._engine.state(self._run, self._spec).status != "ended"
            except FinetuneError:
                waits = True
        if waits:
            self._run.append(events.PhaseStarted(phase=Phase.WAIT, detail=self._spec.place))
        reader = threading.Thread(target=self._read, daemon=True)
        reader.start()
        try:
            state = self._follow()
        finally:
            self._ended.set()
        reader.join(5)
        self._take_output()
        if not self._run.state().end_recorded:  # otherwise all is here
            self._run.append(events.PhaseStarted(phase=Phase.FETCH))
        content = self._engine.fetch(self._run, self._spec)
        for log_line in split(content[self._next :], self._spec.attempt, self._next):
            self._take(log_line, last_too=True)
        missing = self._spec.job if state.missing else ""
        self._spec = write_spec(self._run, self._spec, job="", missing=missing)
        return state

    def _submit(self) -> None:
        """Submit the attempt. One whose submission was cut short is the same attempt."""
        run, former = self._run, self._spec
        run.append(events.PhaseStarted(phase=Phase.SUBMIT, detail=former.place))
        again = former.attempt and not former.submitted
        sent = former.sent if again else run.events_file.stat().st_size
        attempt = former.attempt + (not again)
        self._spec = write_spec(run, former, attempt=attempt, submitted=0.0, sent=sent)
        job = self._engine.submit(run, self._spec)
        # Read again: the engine has noted there what it keeps.
        self._spec = write_spec(run, read_spec(run), job=job, submitted=time.time())
        self._next = self._spec.sent

    def _read(self) -> None:
        """Pass the attempt's output on. After a lost connection the output starts again from its
        beginning; log lines already passed on are skipped."""
        passed: list[int] = []  # hashes of the log's lines
        while not self._ended.is_set():
            place = 0
            try:
                for line in self._engine.follow(self._run, self._spec):
                    if not line.startswith(MARK):
                        if passed[place : place + 1] == [hash(line)]:
                            place += 1
                            continue
                        passed.append(hash(line))
                        place = len(passed)
                    self._output.put(line)
            except Exception as error:  # the next answer of `state` tells if it is alive
                print(f"its output is not to be had: {error}", flush=True)
            self._ended.wait(POLL)

    def _follow(self) -> AttemptStatus:
        """Read the attempt's output and pass on a stop request, until the attempt has ended."""
        asked = answered = time.monotonic()
        while True:
            self._take_output()
            now = time.monotonic()
            overdue = bool(self._stop_asked) and now - self._stop_asked > STOP_LIMIT
            if self._run.stop_requested() and (overdue or not self._stop_asked):
                try:
                    self._engine.stop(self._run, self._spec, now=overdue or not self._run.exists())
                    self._stop_asked = now
                except FinetuneError as error:  # it will be asked again
                    print(f"the stop was not passed on: {error}", flush=True)
                    time.sleep(1)
            if time.monotonic() - asked < POLL:
                continue
            asked = time.monotonic()
            try:
                state = self._engine.state(self._run, self._spec)
                answered = asked
            except WrongAccount:
                raise
            except FinetuneError:
                if asked - answered > SILENCE:
                    raise
                continue
            if state.status == "ended":
                return state

    def _take_output(self) -> None:
        """Read the available output, for a moment or until there is no more."""
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            try:
                line = self._output.get(timeout=0.0 if self._ended.is_set() else 0.2)
            except Empty:
                return
            if log_line := decode(line):
                self._take(log_line)
            elif not line.startswith(MARK):  # a part of a line that was cut
                text = line.rstrip("\r\n")
                if text not in self._shown:
                    print(text, flush=True)

    def _take(self, log_line: LogLine, last_too: bool = False) -> None:
        """Write an event if it is the next one. The last event waits until the results are here
        (`last_too`), so that a run that has ended is complete."""
        if log_line.attempt != self._spec.attempt or log_line.offset != self._next:
            return
        event = events.from_json(log_line.line)
        if event is not None:
            self._shown.update(self._describe(event).splitlines())
        if isinstance(event, _LAST) and not last_too:
            return
        if log_line.line and log_line.line not in self._known:
            self._run.append_line(log_line.line)
            if event is not None:
                self._show(event)
        self._next = log_line.end
