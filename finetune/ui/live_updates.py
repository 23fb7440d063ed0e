"""The live view of one run: status, curves, what happens now, first batch and log.

It has a route of its own, since a Gradio event costs the server 6 ms and the browser 50. A browser
sends the marks of the parts it shows. New parts are drawn once for all who watch.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import gradio as gr
from markupsafe import Markup

from finetune.errors import StoreError
from finetune.hub import downloads
from finetune.inference import decision_rule
from finetune.jobs import service
from finetune.runs.events import FirstBatch, Phase
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED, RunSummary
from finetune.ui import charts, elements, feedback, i18n, run_view
from finetune.ui.charts import ChartView
from finetune.ui.html import asset, macro, render
from finetune.ui.i18n import gettext

FRESH = 0.5  # of a browser's wait; for so long a drawing is shown to everyone as it is
_MAX_DRAWINGS = 200
_WAIT_FEW, _WAIT_MANY = 400, 1600  # milliseconds between a browser's questions
_WAIT_ENDED = 1000  # the same for a run that has ended
_MAX_RATE = 20  # questions a second, until every browser waits for _WAIT_MANY
_WINDOW = 2.0  # seconds over which questions are counted

Parts = dict[str, tuple[str, str]]  # name -> mark of the state it shows, content


def view(prefix: str = "") -> gr.HTML:
    """A live view with a prefix to its elements' ids. Its value is the id of the run to watch; if
    empty, the view takes no room."""
    parts = asset("live.html").format(prefix=prefix)
    template = f'<div class="ft-live" data-empty>{parts}</div>'
    script = asset("live.js") + asset("part_tabs.js") + elements.TAB_LINKS
    return gr.HTML("", html_template=template, js_on_load=script, elem_id=f"{prefix}watched")


@dataclass
class _Drawing:
    """The parts of one run in one language and one `ChartView`, drawn from the run's state at the
    time `at`."""

    at: float = float("-inf")  # on the monotonic clock
    ended: bool = False
    parts: Parts = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


_drawings: dict[tuple[str, str, ChartView], _Drawing] = {}
# Recent questions of browsers: time, and the seconds each was told to wait.
_asked: deque[tuple[float, float]] = deque(maxlen=500)


def changes(store: RunStore, run: Run, shown: Mapping[str, str]) -> tuple[Parts, int]:
    """Return the parts whose marks differ from those `shown`, and the milliseconds until the
    browser should ask again. `shown` has the fields of its `ChartView` too."""
    view = ChartView.read(shown)
    if len(_drawings) > _MAX_DRAWINGS:
        _drawings.clear()
    drawing = _drawings.setdefault((str(run.folder), i18n.language(), view), _Drawing())
    # The more browsers ask, the longer each waits. A browser that asks every 400 ms is counted five
    # times: each question for its own wait.
    now, least = time.monotonic(), _WAIT_ENDED if drawing.ended else _WAIT_FEW
    seconds = sum(wait for at, wait in list(_asked) if at > now - _WINDOW)
    wait = min(max(round(1000 * seconds / _WINDOW / _MAX_RATE), least), _WAIT_MANY)
    with drawing.lock:
        if time.monotonic() - drawing.at >= FRESH * wait / 1000:
            _draw(store, run, drawing, view)
            drawing.at = time.monotonic()
        parts = {name: part for name, part in drawing.parts.items() if shown.get(name) != part[0]}
    _asked.append((now, wait / 1000))
    return parts, wait


def _draw(store: RunStore, run: Run, drawing: _Drawing, view: ChartView) -> None:
    """Redraw the parts whose mark has changed."""
    summary = run.state()
    place = service.queue_place(store, run) if summary.status == "waiting" else (0, 0)
    try:
        dataset, damaged = run.config().dataset, ""
    except StoreError as error:
        dataset, damaged = "", feedback.show_errors(error)
    now = moment(summary, dataset)
    state = (summary.status, place, run.stop_requested())
    rule_file = 0  # when it was written
    with contextlib.suppress(OSError):
        rule_file = (run.best / "config.json").stat().st_mtime_ns
    gone = gettext("The app does not answer. What runs goes on; this page tries again by itself.")
    batch, total, ended = summary.first_batch, summary.total_steps, summary.status in ENDED
    bar, share = macro("macros.html", "progress_bar"), summary.step / total if total else 0.0
    # Part -> what it depends on, and how it is drawn.
    current: dict[str, tuple[Any, Any]] = {
        "verdict": (
            (summary.count if ended else 0, ended, damaged, rule_file),
            lambda: damaged + run_view.verdict(store, run, summary),
        ),
        "bar": ((state, summary.count), lambda: run_view.bar(run, summary, place)),
        "action": (state, lambda: run_view.action(run, summary)),
        "progress": ((summary.step, total), lambda: bar(gettext("training steps"), share)),
        "cards": ((state, summary.count, rule_file), lambda: run_view.cards(run, summary)),
        "announced": (
            (state, summary.phase, run_view.quarters(summary)),
            lambda: run_view.announcement(summary, place),
        ),
        **_charts(run, summary, view, rule_file),
        "remark": (len(summary.baselines), lambda: run_view.remark(summary)),
        "details-title": ("", lambda: gettext("Details")),
        "lesson-tab": ("", lambda: gettext("What is happening")),
        "batch-tab": ("", lambda: gettext("First batch")),
        "code-tab": ("", lambda: gettext("The code")),
        "log-tab": ("", lambda: gettext("Log")),
        "lesson": (now, lambda: render("lesson.html", moment=now)),
        "batch": (batch.time if batch else 0, lambda: first_batch(batch)),
        "code": ((damaged, summary.saved_step is not None), lambda: damaged or code(run)),
        "log": (run.log_size(), run.log_tail),
        "gone": ("", lambda: gone),
        "state": (state, lambda: summary.status),
    }
    drawing.ended = ended
    for name, (basis, draw) in current.items():
        mark = f"{hash(basis):x}"
        if name not in drawing.parts or drawing.parts[name][0] != mark:
            drawing.parts[name] = (mark, draw())


def _charts(run: Run, summary: RunSummary, view: ChartView, rule_file: int) -> dict[str, Any]:
    """The charts among the parts of `_draw`."""
    total, best = summary.total_steps, summary.best
    scored = len(summary.curve), str(best and best.metrics)  # the kept model is scored once more
    now = round(summary.latest) if view.across == "time" else 0  # its axis grows
    steps = (view, len(summary.train), summary.step, total, scored)
    stride = max(1, len(summary.train) // 60)  # small charts are not drawn at each of many steps
    small = cache(lambda: charts.small_charts(summary, view))
    current: dict[str, Any] = {
        "tools": (view, lambda: render("chart_tools.html", view=view, of=charts)),
        "loss": (steps, lambda: charts.loss_chart(summary, view)),
        "scores": (
            (view, scored, total, len(summary.baselines), rule_file, now),
            lambda: charts.score_chart(summary, decision_rule.read_rule(run.best).threshold, view),
        ),
    }
    known = summary.count if summary.status in ENDED else len(summary.train) // stride
    basis = (view, known, stride, total, now)
    for name in charts.SMALL:
        current[name] = (basis, lambda name=name: small()[name])
    return current


def moment(summary: RunSummary, dataset: str = "") -> str:
    """Return the run's moment in `templates/lesson.html`. `dataset` is the configuration's dataset,
    which is loaded before a checkpoint."""
    if summary.status == "stopped" and not summary.step:
        return "unbegun"
    if summary.status != "running":
        return summary.status
    if summary.phase == Phase.DOWNLOAD:
        return "data" if summary.detail == dataset else "checkpoint"
    return summary.phase


def code(run: Run) -> Markup:
    """The plain script, and a link to it with the run's values once there is a model."""
    script = downloads.SCRIPT.read_text(encoding="utf-8")
    return render("code.html", script=script, run=run)


def first_batch(batch: FirstBatch | None) -> Markup:
    """The first batch: its form, shapes, lengths and tokens; empty if there is none."""
    if batch is None or not batch.ids or not batch.shapes.get("input_ids"):
        return Markup()
    gap = next((n for n, position in enumerate(batch.positions) if position != n), -1)
    return render("first_batch.html", batch=batch, gap=gap)
