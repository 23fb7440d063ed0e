"""The live view of one run: status, curves and log, told in pieces as they change.

Its own route and not a Gradio event: a tick of Gradio's costs the server 6 ms and the browser 50,
for each visitor at every tick, which a training on the same processors feels. The browser asks with
the marks of what it has, more than twice a second while few watch and the run goes on, more seldom
else; what is new is drawn once for all who watch.
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
from finetune.runs.store import Run, RunStore
from finetune.runs.summary import ENDED, RunSummary
from finetune.ui import charts, course_view, feedback, i18n, run_view, tab_links
from finetune.ui.i18n import gettext

FRESH = 0.2  # seconds for which what was read of a run is good for whoever asks
_MOST = 200  # runs whose pieces are kept drawn, in each language that is asked for
_SOON, _LATE = 400, 1600  # milliseconds between a browser's questions: watched by few, by many
_STILL = 1000  # the same of a run that has ended, of which little can come
_MOST_ASKED = 20  # questions a second; so many until all wait for _LATE
_SPAN = 2.0  # seconds over which the questions are counted

_TEMPLATE = """
<div id="{p}status" data-part="status">{status}</div>
<div id="{p}live" class="sr-only" role="status" aria-live="polite" data-part="announced"></div>
<p class="ft-said ft-warn" data-part="gone" hidden>{gone}</p>
<div id="{p}lesson" data-part="lesson">{lesson}</div>
<div id="{p}loss-plot" data-part="loss">{loss}</div>
<div id="{p}score-plot" data-part="scores">{scores}</div>
<div id="{p}first-batch" data-part="batch"></div>
<details class="ft-log" id="{p}log"><summary id="{p}log-title" data-part="title">{title}</summary>
<textarea readonly rows="12" aria-labelledby="{p}log-title" data-part="log"></textarea></details>
"""
# The value is the id of the run to watch. `submit` tells Gradio that the run's state has turned.
# What is said while there is none is asked for once: the template is English.
_SCRIPT = """
let run = '', marks = {}, pending = false, wait = 1000;
const part = (name) => element.querySelector(`[data-part="${name}"]`);
const speaks = part('status').textContent !== '';
const take = (name, text) => {
  const box = part(name);
  if (name !== 'log') { box.innerHTML = text; return; }
  const end = box.scrollTop + box.clientHeight >= box.scrollHeight - 8;
  box.value = text;
  if (end) box.scrollTop = box.scrollHeight;
};
async function look() {
  if (pending || document.hidden || element.offsetParent === null) return;
  if (!run && (!speaks || marks.status !== undefined)) return;
  pending = true;
  const asked = run;
  try {
    const answer = await fetch(`finetune/watch/${asked}?${new URLSearchParams(marks)}`);
    part('gone').hidden = true;
    if (asked !== run) return;
    if (answer.status === 404) { run = ''; trigger('submit'); }
    wait = Number(answer.headers.get('x-wait')) || wait;
    if (answer.status !== 200) return;
    for (const [name, [mark, text]] of Object.entries(await answer.json())) {
      const before = marks[name];
      marks[name] = mark;
      if (name !== 'turn') take(name, text);
      else if (before !== undefined) trigger('submit');
    }
  } catch (error) {
    part('gone').hidden = false;
  } finally {
    pending = false;
    if (asked !== run) look();
  }
}
const follow = () => { run = String(props.value || ''); marks = {}; look(); };
watch('value', follow);
follow();
document.addEventListener('visibilitychange', look);
const again = () => { look(); setTimeout(again, wait); };
setTimeout(again, wait);
"""


def view(prefix: str = "", empty: bool = False) -> gr.HTML:
    """A live view in the current layout; its value is the id of the run to watch, "" for none.

    Args:
        prefix: of the elements' ids, where the page has several.
        empty: whether it says what to do while there is no run.
    """
    shown = {name: content for name, (_, content) in blank().items()}
    if not empty:
        shown["status"] = ""
    template = _TEMPLATE.format(p=prefix, **shown)
    script = _SCRIPT + tab_links.SCRIPT
    return gr.HTML("", html_template=template, js_on_load=script, elem_id=f"{prefix}watched")


def blank() -> dict[str, tuple[str, str]]:
    """Piece -> mark and content while there is no run, in the asker's language."""
    none = RunSummary()
    found = {
        "status": run_view.empty(),
        "loss": charts.loss_chart(none),
        "scores": charts.score_chart(none),
        "lesson": course_view.lesson("nothing"),
        **_around(),
    }
    return {name: ("", content) for name, content in found.items()}


def _around() -> dict[str, str]:
    """What is said beside a run and not of it."""
    gone = gettext("The app does not answer. What runs goes on; this page tries again by itself.")
    return {"gone": gone, "title": gettext("Log")}


@dataclass
class _Drawn:
    """What is known of one run, and the pieces drawn of it in one language.

    Attributes:
        at: when it was read, on the monotonic clock.
        marks: piece -> what it was drawn from.
        pieces: piece -> HTML, or text for the log.
    """

    at: float = 0.0
    marks: dict[str, str] = field(default_factory=dict)
    pieces: dict[str, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


_drawn: dict[tuple[str, str], _Drawn] = {}


def _key(run: Run) -> tuple[str, str]:
    return str(run.folder), i18n.language()


class Pace:
    """How long a browser waits between two questions: longer where many ask, so that what trains
    here is left alone, and never so long that somebody waits for two seconds."""

    def __init__(self) -> None:
        self._asked: deque[tuple[float, float]] = deque()  # when, and for how long it was let go

    def wait(self, run: Run, now: float | None = None) -> int:
        """Note a question; milliseconds until the one who asked should ask again.

        Args:
            run: what was asked about, read before.
            now: on the monotonic clock.
        """
        now = time.monotonic() if now is None else now
        while self._asked and self._asked[0][0] <= now - _SPAN:
            self._asked.popleft()
        # Who asks every 400 ms is here five times: each question stands for the time it lets pass.
        watchers = sum(seconds for _, seconds in self._asked) / _SPAN
        least = _STILL if _over(run) else _SOON
        wait = min(max(round(1000 * watchers / _MOST_ASKED), least), _LATE)
        self._asked.append((now, wait / 1000))
        return wait


pace = Pace()


def _over(run: Run) -> bool:
    kept = _drawn.get(_key(run))
    return kept is not None and kept.marks.get("turn", "").partition(".")[0] in ENDED


def known(run: Run) -> bool:
    """Whether what was last read of a run is still good: then `changes` touches no disk."""
    kept = _drawn.get(_key(run))
    return kept is not None and time.monotonic() - kept.at < FRESH


def changes(store: RunStore, run: Run, seen: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Piece -> mark and content, of those that are not as the browser has them.

    Args:
        seen: piece -> mark that this browser was last told.
    """
    if len(_drawn) > _MOST:
        _drawn.clear()
    kept = _drawn.setdefault(_key(run), _Drawn())
    with kept.lock:
        if time.monotonic() - kept.at >= FRESH:
            _draw(store, run, kept)
            kept.at = time.monotonic()
        marks = dict(kept.marks)
        return {name: (mark, kept.pieces[name]) for name, mark in marks.items()
                if seen.get(name) != mark}  # fmt: skip


def _draw(store: RunStore, run: Run, kept: _Drawn) -> None:
    summary = service.run_summary(store, run)
    place = service.queue_place(store, run) if summary.status == "waiting" else (0, 0)
    state = f"{summary.status}.{place[0]}.{place[1]}.{run.stop_requested():d}"
    steps = f"{summary.step}.{summary.total_steps}.{summary.count if not summary.step else 0}"
    dataset, damaged = _pairs(run)
    moment = course_view.moment(summary, dataset)
    wanted: dict[str, tuple[str, Any]] = {
        "status": (
            f"{state}.{summary.count}.{hash(run.title()):x}.{bool(damaged):d}",
            lambda: damaged + run_view.status_html(run, summary, place),
        ),
        "announced": (
            f"{state}.{summary.phase}.{run_view.quarters(summary)}",
            lambda: run_view.announcement(summary, place),
        ),
        "loss": (steps, lambda: charts.loss_chart(summary)),
        "scores": (
            f"{len(summary.validation)}.{summary.total_steps}.{len(summary.baselines)}",
            lambda: charts.score_chart(summary),
        ),
        "lesson": (moment, lambda: course_view.lesson(moment)),
        "batch": (
            f"{summary.peeked.time if summary.peeked else 0}",
            lambda: course_view.first_batch(summary.peeked),
        ),
        "log": (str(run.log_size()), run.log_tail),
        **{name: ("", lambda text=text: text) for name, text in _around().items()},
        "turn": (state, lambda: ""),
    }
    for name, (mark, draw) in wanted.items():
        if kept.marks.get(name) != mark:
            kept.pieces[name] = draw()
            kept.marks[name] = mark


def _pairs(run: Run) -> tuple[str, str]:
    """The dataset of its configuration; "" and what is wrong where that cannot be read."""
    try:
        return run.config().dataset, ""
    except StoreError as error:
        return "", feedback.show_errors(error)
