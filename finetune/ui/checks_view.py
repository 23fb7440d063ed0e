"""An examination's report in HTML: figures, charts, findings, rows. All text escaped, so that
markup in a sentence is shown and never obeyed."""

from __future__ import annotations

import html
from collections.abc import Sequence

from finetune.data.check_report import CheckReport, Example, Finding, SplitSummary, TokenLengths
from finetune.data.preview import FirstRows
from finetune.jobs.check_jobs import CheckState
from finetune.ui import tab_links
from finetune.ui.i18n import gettext

WORDS = {"blocks": "Blocks training", "warns": "Warning", "notes": "Note"}
HEADS = ("line", "label", "note")  # of the columns beside the sentences
# What an examination does, in its own words.
DOINGS = (
    "starting", "opening the pairs", "reading train", "reading validation", "reading test",
    "counting classes, duplicates and leaks", "looking at the texts", "loading the tokenizer",
    "measuring lengths in tokens",
)  # fmt: skip
CLASSES = 12  # shown in the chart


def empty() -> str:
    """Before anything was examined."""
    text = gettext(
        "Choose pairs and press <b>Examine</b>: their sizes, classes, lengths and faults appear "
        "here before a minute of training is spent."
    )
    return f'<p class="ft-note">{text}</p>'


def _on() -> str:
    return tab_links.link_row(tab_links.tab_link("train", gettext("Train on these pairs")))


def progress(look: CheckState) -> str:
    """What an examination is doing, while it is."""
    if look.error:
        return (
            f'<div class="ft-said" role="alert"><b>{html.escape(look.error)}</b> '
            f"{html.escape(look.remedy)}</div>"
        )
    if not look.running:
        return ""
    rows = ""
    if look.done:
        rows = ": " + (
            gettext("{done:,} of {total:,} rows", done=look.done, total=look.total)
            if look.total
            else gettext("{n:,} rows", n=look.done)
        )
    what = gettext("Almost done: the lengths follow") if look.partial else gettext("Examining")
    anew = "" if look.partial else " ft-anew"
    share = 100 * look.done / look.total if look.total else 0
    bar = f'<i style="width:{share:.0f}%"></i>' if look.total else '<i class="ft-unknown"></i>'
    value = f' aria-valuenow="{share:.0f}"' if look.total else ""
    return (
        f'<div class="ft-status{anew}"><strong>{html.escape(what)}</strong></div>'
        f'<div class="ft-bar" role="progressbar" aria-label="{html.escape(gettext("examination"))}" '
        f'aria-valuemin="0" aria-valuemax="100"{value}>'
        f'{bar}</div><div class="ft-facts">{html.escape(gettext(look.doing) + rows)}</div>'
        f"{_first(look.glance) if look.glance else ''}"
    )


def _first(glance: FirstRows) -> str:
    """The first rows of a file as they stand in it, while all of it is being read."""
    caption = gettext("First rows of {file}", file=glance.source)
    names = [gettext("line"), *glance.columns]
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in names)
    body = "".join(
        f"<tr><td>{line:,}</td>"
        + "".join(f'<td dir="auto">{html.escape(cell)}</td>' for cell in cells)
        + "</tr>"
        for line, cells in glance.rows
    )
    more = gettext("and {n:,} more columns", n=glance.more) if glance.more else ""
    return (
        f'<p class="ft-facts">{html.escape(caption)} {html.escape(more)}</p><div class="ft-rows" '
        f'tabindex="0" role="region" aria-label="{html.escape(caption)}"><table><thead><tr>{head}'
        f"</tr></thead><tbody>{body}</tbody></table></div>"
    )


def overview(report: CheckReport, glance: FirstRows | None = None) -> str:
    """Verdict, source, rows a split, classes, lengths; or, where the columns are not clear, the
    first rows to choose them by."""
    if not report.corpus:
        return _verdict(report) + _source(report) + (_first(glance) if glance else "")
    return (
        f"{_verdict(report)}{_source(report)}{_cards(report)}"
        f"{_balance(report)}{histogram(report.lengths)}"
    )


def findings(report: CheckReport) -> str:
    """Every finding, the gravest first; its rows folded away."""
    if not report.findings:
        return f'<p class="ft-note">{html.escape(gettext("Nothing wrong was found."))}</p>'
    return "".join(_finding(one, bool(report.columns.get("sentence2"))) for one in report.findings)


def table(rows: Sequence[Example], paired: bool, caption: str) -> str:
    """Rows as a table; a sentence is set in its own direction."""
    if not rows:
        said = gettext("{what}: no row.", what=caption)
        return f'<p class="ft-note">{html.escape(said)}</p>'
    noted = any(row.note for row in rows)
    bare = not any(row.sentence1 or row.sentence2 or row.label for row in rows)
    heads = [] if bare else ["sentence1", *(["sentence2"] * paired), "label"]
    heads = ["line", *heads, *(["note"] * noted)]
    head = "".join(f'<th scope="col">{html.escape(gettext(name))}</th>' for name in heads)
    body = "".join(_row(row, heads) for row in rows)
    return (
        f'<div class="ft-rows" tabindex="0" role="region" aria-label="{html.escape(caption)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _row(row: Example, heads: Sequence[str]) -> str:
    cells = [f"<td>{html.escape(row.split)}&nbsp;{row.line:,}</td>"]
    for name in heads[1:]:
        direction = ' dir="auto"' if name.startswith("sentence") else ""
        cells.append(f"<td{direction}>{html.escape(getattr(row, name))}</td>")
    return f"<tr>{''.join(cells)}</tr>"


def _verdict(report: CheckReport) -> str:
    if report.blocked:
        facts = "".join(
            f"<li><b>{html.escape(one.title)}</b> {html.escape(one.action)}</li>"
            for one in report.blocked
        )
        return (
            f'<div class="ft-said" role="alert">{html.escape(gettext("Training is not possible yet:"))}'
            f"<ul>{facts}</ul></div>"
        )
    warnings = sum(one.severity == "warns" for one in report.findings)
    if warnings:
        text = (
            gettext("These pairs can be trained on, with <b>1 warning</b> below.")
            if warnings == 1
            else gettext(
                "These pairs can be trained on, with <b>{n} warnings</b> below.", n=warnings
            )
        )
        return f'<div class="ft-said ft-warn" role="status">{text}{_on()}</div>'
    text = gettext("These pairs can be trained on: open <b>Train</b>.")
    return f'<div class="ft-said ft-good" role="status">{text}{_on()}</div>'


def _source(report: CheckReport) -> str:
    columns = ", ".join(f"{what}: {name}" for what, name in report.columns.items() if name)
    revision = ""
    if report.revision:
        revision = " " + gettext("at {revision}", revision=report.revision[:10])
    notes = "".join(f"<br>{html.escape(note)}" for note in report.notes)
    print_ = gettext("fingerprint {digits}", digits=report.fingerprint[:16])
    print_ = f"<br>{html.escape(print_)}" if report.fingerprint else ""
    took = html.escape(gettext("examined in {seconds:.1f} s", seconds=report.seconds))
    return (
        f'<p class="ft-facts"><b>{html.escape(report.source)}</b>{html.escape(revision)} \u00b7 '
        f"{html.escape(columns)} \u00b7 {took}{notes}{print_}</p>"
    )


def _cards(report: CheckReport) -> str:
    cards = [_split_card(split, report) for split in report.splits]
    if report.majority:
        accuracy, f1 = report.majority["accuracy"], report.majority["f1"]
        kind = "F1" if len(report.labels) == 2 else "macro F1"
        beside = gettext("accuracy; {kind} {f1:.3f}", kind=kind, f1=f1)
        cards.append(
            f'<div class="ft-card"><span>{html.escape(gettext("majority baseline"))}</span>'
            f"<b>{accuracy:.3f}</b><small>{html.escape(beside)}</small></div>"
        )
    return f'<div class="ft-cards">{"".join(cards)}</div>' if cards else ""


def _split_card(split: SplitSummary, report: CheckReport) -> str:
    gone = sum(split.left_out.values())
    origin = gettext("rows")
    if split.name != split.origin:
        origin = gettext("cut from {split}", split=split.origin)
    if split.origin in report.read and split.name == split.origin:
        origin = gettext("of {n:,} rows", n=report.read[split.origin]) if gone else gettext("rows")
    why = "; ".join(f"{count:,} {reason}" for reason, count in split.left_out.items())
    return (
        f'<div class="ft-card" title="{html.escape(why)}"><span>{html.escape(split.name)}</span>'
        f"<b>{split.rows:,}</b><small>{html.escape(origin)}</small></div>"
    )


def _balance(report: CheckReport) -> str:
    """A bar a class: its share of the training rows."""
    train = next((split for split in report.splits if split.name == "train"), None)
    if train is None or not train.rows:
        return ""
    order = range(len(report.labels))
    if len(report.labels) > CLASSES:
        order = sorted(order, key=lambda label: -train.classes[label])[:CLASSES]  # type: ignore[assignment]
    rows = []
    for label in order:
        share = train.classes[label] / train.rows
        name = report.labels[label]
        mark = " \u2605" if name == report.positive_label and len(report.labels) == 2 else ""
        rows.append(
            f'<span dir="auto">{html.escape(name)}{mark}</span><div class="ft-bar" role="img" '
            f'aria-label="{html.escape(name)}: {share:.1%}"><i style="width:{100 * share:.1f}%">'
            f"</i></div><span>{share:.1%}<small> {train.classes[label]:,}</small></span>"
        )
    more = len(report.labels) - CLASSES
    rest = gettext("and {n:,} more classes", n=more) if more > 0 else ""
    star = "\u2605 " + gettext("the positive class, whose F1 is meant")
    below = html.escape(rest or (star if len(report.labels) == 2 else ""))
    title = html.escape(gettext("Classes in train"))
    return (
        f'<figure class="ft-chart ft-short" role="group" aria-label="{title}"><figcaption>'
        f"<b>{title}</b></figcaption><div class='ft-prob'>{''.join(rows)}</div>"
        f'<p class="ft-facts">{below}</p></figure>'
    )


def histogram(lengths: TokenLengths) -> str:
    """Lengths in tokens; bars beyond `max_length` are hatched."""
    title = html.escape(gettext("Length in tokens, both sentences together"))
    if lengths.note or not lengths.bins:
        note = html.escape(lengths.note or gettext("No row was measured."))
        return (
            f'<figure class="ft-chart ft-short"><figcaption><b>{title}</b></figcaption>'
            f'<p class="ft-note">{note}</p></figure>'
        )
    most = max(count for _, _, count in lengths.bins)
    bars = "".join(
        f'<i class="{"ft-cut" * (low >= lengths.max_length)}" title="'
        f'{html.escape(_bin(low, high, count))}" style="height:{100 * count / most:.1f}%"></i>'
        for low, high, count in lengths.bins
    )
    first, last = lengths.bins[0][0], lengths.bins[-1][1] - 1
    cut = _cut(lengths)
    between = gettext("{first} to {last}", first=first, last=last)
    spoken = f"{html.unescape(title)}: {between}; {cut}"
    return (
        f'<figure class="ft-chart ft-short" role="group" aria-label="{html.escape(spoken)}">'
        f'<figcaption><b>{title}</b><span class="ft-legend">{html.escape(cut)}</span></figcaption>'
        f'<div class="ft-hist">{bars}</div><div class="ft-ends"><span>{first}</span>'
        f"<span>{html.escape(gettext('tokens'))}</span><span>{last:,}</span></div></figure>"
    )


def _bin(low: int, high: int, count: int) -> str:
    return gettext("{low} to {high} tokens: {count:,}", low=low, high=high - 1, count=count)


def _cut(lengths: TokenLengths) -> str:
    """What max_length cuts, of all rows or of those that were measured."""
    known = {"max_length": lengths.max_length, "share": lengths.cut, "rows": lengths.rows}
    sampled = lengths.rows < lengths.of
    if not lengths.cut and sampled:
        return gettext("max_length {max_length} cuts none of a random {rows:,}", **known)
    if not lengths.cut:
        return gettext("max_length {max_length} cuts none", **known)
    if sampled:
        return gettext(
            "max_length {max_length} cuts {share:.1%} of a random {rows:,} rows", **known
        )
    return gettext("max_length {max_length} cuts {share:.1%} rows", **known)


def _finding(finding: Finding, paired: bool) -> str:
    count = f'<span class="ft-count">{finding.count:,}</span>' if finding.count else ""
    rows = table(finding.examples, paired, finding.title) if finding.examples else ""
    return (
        f'<details class="ft-finding ft-{finding.severity}"><summary><b>'
        f"{html.escape(gettext(WORDS[finding.severity]))}</b> "
        f"{html.escape(finding.title)} {count}"
        "</summary>"
        f"<p>{html.escape(finding.action)}</p>{rows}</details>"
    )
