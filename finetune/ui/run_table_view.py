"""The table of runs as HTML: sortable heads, a box to compare, a button that opens. Text escaped.

Clicks are told to the server by `script`, which listens on the table as a whole. Which runs are
ticked the page knows itself, and tells as a whole.
"""

from __future__ import annotations

import html
import time

from finetune.jobs.run_table import COLUMNS, RunGroup, RunRow
from finetune.runs.grids import SeedSpread
from finetune.ui import tab_links
from finetune.ui.i18n import gettext
from finetune.ui.run_view import duration

# A click anywhere in the table; what was meant is in the data attributes of the clicked part.
_CLICKS = """
let clicked = performance.now();  // above what an earlier drawing of this page may have counted to
element.addEventListener('click', (event) => {
  const part = event.target.closest('button[data-do]');
  if (part) trigger('click', {do: part.dataset.do, what: part.dataset.what, at: clicked += 1});
});
"""
# The boxes are this page's own: a table that is drawn anew is ticked as the old one was. Requests
# may come in another order than they were sent, hence `at`.
_BOXES = """
const chosen = new Set();
let at = performance.now();  // above what an earlier drawing of this page may have counted to
const boxes = () => element.querySelectorAll('input[data-do=choose]');
element.addEventListener('change', (event) => {
  const box = event.target.closest('input[data-do=choose]');
  if (!box) return;
  const full = box.checked && chosen.size >= %d;
  if (full) box.checked = false;
  else if (box.checked) chosen.add(box.dataset.what);
  else chosen.delete(box.dataset.what);
  trigger('select', {runs: [...chosen], full, at: at += 1});
});
watch('value', () => {
  const shown = new Set();
  for (const box of boxes()) {
    shown.add(box.dataset.what);
    box.checked = chosen.has(box.dataset.what);
  }
  if (element.querySelector('[data-whole]'))
    for (const run of chosen) if (!shown.has(run)) chosen.delete(run);
});
"""
HEADS = {
    "name": "Run",
    "status": "Status",
    "dataset": "Pairs",
    "checkpoint": "Checkpoint",
    "f1": "F1",
    "accuracy": "Accuracy",
    "best_epoch": "Best epoch",
    "seconds": "Duration",
    "samples_per_second": "Samples/s",
    "created": "When",
}
assert set(HEADS) == set(COLUMNS)
STATUSES = {
    "waiting": "\u25cb",
    "running": "\u25b6",
    "finished": "\u2713",
    "stopped": "\u25a0",
    "failed": "\u2715",
    "interrupted": "\u26a0",
}
NONE = "\u2013"


def script(most: int) -> str:
    """What the browser does in the table.

    Args:
        most: runs that may be ticked at once.
    """
    return _CLICKS + _BOXES % most


def empty() -> str:
    """While there is no run."""
    text = gettext(
        "Nothing has been trained yet. Open the <b>Train</b> tab and press <b>Train</b>; every run "
        "is kept here, with its curves, its model and its log."
    )
    return f'<p class="ft-note">{text}</p>' + tab_links.link_row(
        tab_links.tab_link("train", gettext("Open Train"))
    )


def nothing_found() -> str:
    """While the filter leaves none."""
    text = gettext("No run has all of these words. Clear the box to see all.")
    return f'<p class="ft-note">{text}</p>'


def table(
    found: list[RunRow | RunGroup], opened: str, by: str, descending: bool, whole: bool = True
) -> str:
    """The table.

    Args:
        opened: id of the run shown below.
        by, descending: how it is sorted.
        whole: whether these are all the runs there are.
    """
    heads = "".join(_head(name, by, descending) for name in COLUMNS)
    lines = []
    for one in found:
        if isinstance(one, RunGroup):
            lines.append(_group(one))
            lines += [_row(member, opened, "ft-member") for member in one.rows]
        else:
            lines.append(_row(one, opened))
    return (
        f'<div class="ft-rows ft-runs" role="region"{" data-whole" * whole} '
        f'aria-label="{html.escape(gettext("Runs"))}" tabindex="0"><table><thead><tr><th scope="col">'
        f'<span class="sr-only">{html.escape(gettext("Compare"))}</span></th>{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _head(name: str, by: str, descending: bool) -> str:
    sort = ("descending" if descending else "ascending") if name == by else "none"
    arrow = {"descending": "\u2193", "ascending": "\u2191", "none": ""}[sort]
    kind = ' class="ft-num"' if _is_number(name) else ""
    return (
        f'<th scope="col" aria-sort="{sort}"{kind}><button type="button" data-do="sort" '
        f'data-what="{name}">{html.escape(gettext(HEADS[name]))} '
        f'<i aria-hidden="true">{arrow}</i></button></th>'
    )


def _is_number(name: str) -> bool:
    return name in ("f1", "accuracy", "best_epoch", "seconds", "samples_per_second")


def _group(one: RunGroup) -> str:
    count, done = one.count, one.finished
    name = html.escape(one.rows[0].name.rpartition(", seed ")[0] or one.rows[0].name)
    state = gettext("{n} finished", n=done)
    if done < count:
        state = gettext("{n} of {count} finished", n=done, count=count)
    said = gettext(
        "{count} seeds, {state}: mean \u00b1 standard deviation; 95%: where the mean over other "
        "seeds lies",
        count=count,
        state=state,
    )
    cells = [
        f'<td colspan="4"><b>{name}</b><small>{html.escape(said)}</small></td>',
        f'<td class="ft-num">{spread(one.f1)}</td>',
        f'<td class="ft-num">{spread(one.accuracy)}</td>',
        '<td colspan="4"></td>',
    ]
    return f'<tr class="ft-of-group"><td></td>{"".join(cells)}</tr>'


def spread(one: SeedSpread | None) -> str:
    """`0.871 \u00b1 0.004` and the mean's interval; one run alone has neither."""
    if one is None:
        return NONE
    text = f"{one.mean:.3f}" + (f" \u00b1 {one.deviation:.3f}" if one.count > 1 else "")
    if one.interval is None:
        return text
    low, high = one.interval
    ends = gettext("{low:.3f} to {high:.3f}", low=low, high=high)
    return f"{text}<small>95%: {ends}</small>"


def _row(one: RunRow, opened: str, kind: str = "") -> str:
    """A row; of a group's member only what tells it from the others is named."""
    name = html.escape(one.name)
    short = html.escape(one.name.rpartition(", ")[2]) if kind else name
    box = (
        f'<td><input type="checkbox" data-do="choose" data-what="{one.id}" '
        f'aria-label="{html.escape(gettext("Compare {name}", name=one.name))}"></td>'
    )
    tags = "".join(f'<span class="ft-tag">{html.escape(tag)}</span>' for tag in one.tags)
    current = ' aria-current="true"' if one.id == opened else ""
    cells = [
        f'<td><button type="button" class="ft-open" data-do="open" data-what="{one.id}"'
        f"{current}>{short}</button>{tags}</td>",
        f"<td>{_status(one)}</td>",
        f"<td>{html.escape(one.dataset)}</td>",
        f"<td>{html.escape(one.checkpoint)}</td>",
        *(
            f'<td class="ft-num">{text}</td>'
            for text in (
                _score(one.f1),
                _score(one.accuracy),
                NONE if one.best_epoch is None else f"{one.best_epoch:.2f}".removesuffix(".00"),
                NONE if one.seconds is None else duration(one.seconds),
                NONE if one.samples_per_second is None else f"{one.samples_per_second:,.0f}",
            )
        ),
        f"<td>{when(one.created)}</td>",
    ]
    classes = " ".join(filter(None, [kind, "ft-opened" if one.id == opened else ""]))
    return f'<tr class="{classes}">{box}{"".join(cells)}</tr>'


def _status(one: RunRow) -> str:
    text = gettext(one.status)
    if one.place:
        text = gettext("{status}, no. {place} in the queue", status=text, place=one.place)
    text = gettext("configuration damaged") if one.damaged else text
    mark = "\u26a0" if one.damaged else STATUSES[one.status]
    return (
        f'<span class="ft-state ft-{one.status}"><i aria-hidden="true">{mark}</i>'
        f"{html.escape(text)}</span>"
    )


def _score(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}"


def when(seconds: float) -> str:
    """The server's local time, to the minute."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else NONE
    except (ValueError, OverflowError, OSError):
        return NONE
