"""The live view of one run: status, curves and log, sent in parts as they change.

It has a route of its own: a tick of a Gradio event costs the server 6 ms and the browser 50, for
each visitor, which slows a training on the same processors. The browser asks with the marks of the
parts it shows, and what is new is drawn once for all who watch.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from finetune.errors import StoreError
from finetune.jobs import service
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED, RunSummary
from finetune.ui import charts, course_view, feedback, i18n, run_view, tab_links, theme
from finetune.ui.i18n import gettext

FRESH = 0.2  # seconds for which a drawing is shown to everyone without reading the run again
_MAX_DRAWINGS = 200
_WAIT_FEW, _WAIT_MANY = 400, 1600  # milliseconds between a browser's questions
_WAIT_ENDED = 1000  # the same for a run that has ended
_MAX_RATE = 20  # questions a second, until every browser waits for _WAIT_MANY
_WINDOW = 2.0  # seconds over which questions are counted

Parts = dict[str, tuple[str, str]]  # name -> mark of the state it shows, content


def view(prefix: str = "", empty: bool = False) -> gr.HTML:
    """A live view in the current layout; its value is the id of the run to watch, "" for none.

    Args:
        prefix: of the elements' ids, where the page has several.
        empty: whether it says what to do while there is no run.
    """
    contents = {name: content for name, (_, content) in blank().items()}
    if not empty:
        contents["status"] = ""
    template = theme.asset("live.html").format(prefix=prefix, **contents)
    script = theme.asset("live.js") + tab_links.SCRIPT
    return gr.HTML("", html_template=template, js_on_load=script, elem_id=f"{prefix}watched")


def blank() -> Parts:
    """The parts shown while there is no run, in the asker's language."""
    summary = RunSummary()
    contents = {
        "status": run_view.empty(),
        "loss": charts.loss_chart(summary),
        "scores": charts.score_chart(summary),
        "lesson": course_view.lesson("nothing"),
        **_labels(),
    }
    return {name: ("", content) for name, content in contents.items()}


def _labels() -> dict[str, str]:
    gone = gettext("The app does not answer. What runs goes on; this page tries again by itself.")
    return {"gone": gone, "title": gettext("Log")}


class Pace:
    """Spreads the browsers' questions: the more ask, the longer each waits for the next one."""

    def __init__(self) -> None:
        self._asked: deque[tuple[float, float]] = deque()  # when, and the wait that was answered

    def wait(self, run: Run, now: float | None = None) -> int:
        """Note a question about a run; milliseconds until this browser should ask again."""
        now = time.monotonic() if now is None else now
        while self._asked and self._asked[0][0] <= now - _WINDOW:
            self._asked.popleft()
        # A browser that asks every 400 ms is counted five times: each question for its own wait.
        watchers = sum(seconds for _, seconds in self._asked) / _WINDOW
        drawing = _drawings.get(_key(run))
        least = _WAIT_ENDED if drawing is not None and drawing.ended else _WAIT_FEW
        wait = min(max(round(1000 * watchers / _MAX_RATE), least), _WAIT_MANY)
        self._asked.append((now, wait / 1000))
        return wait


pace = Pace()


@dataclass
class _Drawing:
    """The parts of one run in one language, as last drawn from the run as it was `at`."""

    at: float = float("-inf")  # on the monotonic clock
    ended: bool = False
    parts: Parts = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


_drawings: dict[tuple[str, str], _Drawing] = {}


def _key(run: Run) -> tuple[str, str]:
    return str(run.folder), i18n.language()


def changes(store: RunStore, run: Run, shown: Mapping[str, str]) -> Parts:
    """The parts whose marks differ from those of the parts that a browser shows."""
    if len(_drawings) > _MAX_DRAWINGS:
        _drawings.clear()
    drawing = _drawings.setdefault(_key(run), _Drawing())
    with drawing.lock:
        if time.monotonic() - drawing.at >= FRESH:
            _draw(store, run, drawing)
            drawing.at = time.monotonic()
        return {name: part for name, part in drawing.parts.items() if shown.get(name) != part[0]}


def _draw(store: RunStore, run: Run, drawing: _Drawing) -> None:
    """Draw anew those parts whose mark has changed."""
    summary = service.run_summary(store, run)
    place = service.queue_place(store, run) if summary.status == "waiting" else (0, 0)
    try:
        dataset, damaged = run.config().dataset, ""
    except StoreError as error:
        dataset, damaged = "", feedback.show_errors(error)
    moment = course_view.moment(summary, dataset)
    state = (summary.status, place, run.stop_requested())
    batch, total = summary.first_batch, summary.total_steps
    # Part -> what it depends on, and how it is drawn.
    current: dict[str, tuple[Any, Any]] = {
        "status": (
            (state, summary.count, run.title(), damaged),
            lambda: damaged + run_view.status_html(run, summary, place),
        ),
        "announced": (
            (state, summary.phase, run_view.quarters(summary)),
            lambda: run_view.announcement(summary, place),
        ),
        "loss": ((summary.step, total, len(summary.train)), lambda: charts.loss_chart(summary)),
        "scores": (
            (len(summary.validation), total, len(summary.baselines)),
            lambda: charts.score_chart(summary),
        ),
        "lesson": (moment, lambda: course_view.lesson(moment)),
        "batch": (batch.time if batch else 0, lambda: course_view.first_batch(batch)),
        "log": (run.log_size(), run.log_tail),
        **{name: ("", lambda text=text: text) for name, text in _labels().items()},
        "state": (state, lambda: summary.status),
    }
    drawing.ended = summary.status in ENDED
    for name, (basis, draw) in current.items():
        mark = f"{hash(basis):x}"
        if name not in drawing.parts or drawing.parts[name][0] != mark:
            drawing.parts[name] = (mark, draw())
