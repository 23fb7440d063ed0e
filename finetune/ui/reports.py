"""An examination's report in HTML: figures, charts, findings, rows. All text escaped, so that
markup in a sentence is shown and never obeyed."""

from __future__ import annotations

import html
from collections.abc import Sequence

from finetune.jobs import Look
from finetune.report import Example, Finding, Lengths, Report, SplitFacts

WORDS = {"blocks": "Blocks training", "warns": "Warning", "notes": "Note"}
CLASSES = 12  # shown in the chart
EMPTY = (
    '<p class="ft-note">Choose pairs and press <b>Examine</b>: their sizes, classes, lengths and '
    "faults appear here before a minute of training is spent.</p>"
)


def progress(look: Look) -> str:
    """What an examination is doing, while it is."""
    if look.error:
        return (
            f'<div class="ft-said" role="alert"><b>{html.escape(look.error)}</b> '
            f"{html.escape(look.remedy)}</div>"
        )
    if not look.running:
        return ""
    rows = f": {look.done:,} rows" if look.done else ""
    rows += f" of {look.total:,}" if look.total else ""
    share = 100 * look.done / look.total if look.total else 0
    bar = f'<i style="width:{share:.0f}%"></i>' if look.total else '<i class="ft-unknown"></i>'
    value = f' aria-valuenow="{share:.0f}"' if look.total else ""
    return (
        f'<div class="ft-status"><strong>Examining</strong></div><div class="ft-bar" '
        f'role="progressbar" aria-label="examination" aria-valuemin="0" aria-valuemax="100"{value}>'
        f'{bar}</div><div class="ft-facts">{html.escape(look.doing + rows)}</div>'
    )


def overview(report: Report) -> str:
    """Verdict, source, rows a split, classes, lengths."""
    return (
        f"{_verdict(report)}{_source(report)}{_cards(report)}"
        f"{_balance(report)}{histogram(report.lengths)}"
    )


def findings(report: Report) -> str:
    """Every finding, the gravest first; its rows folded away."""
    if not report.findings:
        return '<p class="ft-note">Nothing wrong was found.</p>'
    return "".join(_finding(one, bool(report.columns.get("sentence2"))) for one in report.findings)


def table(rows: Sequence[Example], paired: bool, caption: str) -> str:
    """Rows as a table; a sentence is set in its own direction."""
    if not rows:
        return f'<p class="ft-note">{html.escape(caption)}: no row.</p>'
    noted = any(row.note for row in rows)
    bare = not any(row.sentence1 or row.sentence2 or row.label for row in rows)
    heads = [] if bare else ["sentence1", *(["sentence2"] * paired), "label"]
    heads = ["line", *heads, *(["note"] * noted)]
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
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


def _verdict(report: Report) -> str:
    if report.blocked:
        facts = "".join(
            f"<li><b>{html.escape(one.title)}</b> {html.escape(one.action)}</li>"
            for one in report.blocked
        )
        return (
            f'<div class="ft-said" role="alert">Training is not possible yet:<ul>{facts}</ul></div>'
        )
    warnings = sum(one.severity == "warns" for one in report.findings)
    if warnings:
        noun = "warning" if warnings == 1 else "warnings"
        return (
            f'<div class="ft-said ft-warn" role="status">These pairs can be trained on, with '
            f"<b>{warnings} {noun}</b> below.</div>"
        )
    return (
        '<div class="ft-said ft-good" role="status">These pairs can be trained on: open '
        "<b>Train</b>.</div>"
    )


def _source(report: Report) -> str:
    columns = ", ".join(f"{what}: {name}" for what, name in report.columns.items() if name)
    revision = f" at {report.revision[:10]}" if report.revision else ""
    notes = "".join(f"<br>{html.escape(note)}" for note in report.notes)
    print_ = f"<br>fingerprint {report.fingerprint[:16]}" if report.fingerprint else ""
    return (
        f'<p class="ft-facts"><b>{html.escape(report.source)}</b>{html.escape(revision)} \u00b7 '
        f"{html.escape(columns)} \u00b7 examined in {report.seconds:.1f} s{notes}{print_}</p>"
    )


def _cards(report: Report) -> str:
    cards = [_split_card(split, report) for split in report.splits]
    if report.majority:
        accuracy, f1 = report.majority["accuracy"], report.majority["f1"]
        kind = "F1" if len(report.labels) == 2 else "macro F1"
        cards.append(
            f'<div class="ft-card"><span>majority baseline</span><b>{accuracy:.3f}</b>'
            f"<small>accuracy; {kind} {f1:.3f}</small></div>"
        )
    return f'<div class="ft-cards">{"".join(cards)}</div>' if cards else ""


def _split_card(split: SplitFacts, report: Report) -> str:
    gone = sum(split.left_out.values())
    origin = f"cut from {split.origin}" if split.name != split.origin else "rows"
    if split.origin in report.read and split.name == split.origin:
        origin = f"of {report.read[split.origin]:,} rows" if gone else "rows"
    why = "; ".join(f"{count:,} {reason}" for reason, count in split.left_out.items())
    return (
        f'<div class="ft-card" title="{html.escape(why)}"><span>{html.escape(split.name)}</span>'
        f"<b>{split.rows:,}</b><small>{html.escape(origin)}</small></div>"
    )


def _balance(report: Report) -> str:
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
    rest = f"and {more:,} more classes" if more > 0 else ""
    star = "\u2605 the positive class, whose F1 is meant" if len(report.labels) == 2 else ""
    return (
        '<figure class="ft-chart ft-short" role="group" aria-label="Classes in train"><figcaption>'
        f"<b>Classes in train</b></figcaption><div class='ft-prob'>{''.join(rows)}</div>"
        f'<p class="ft-facts">{rest or star}</p></figure>'
    )


def histogram(lengths: Lengths) -> str:
    """Lengths in tokens; bars beyond `max_length` are hatched."""
    title = "Length in tokens, both sentences together"
    if lengths.note or not lengths.bins:
        note = html.escape(lengths.note or "No row was measured.")
        return (
            f'<figure class="ft-chart ft-short"><figcaption><b>{title}</b></figcaption>'
            f'<p class="ft-note">{note}</p></figure>'
        )
    most = max(count for _, _, count in lengths.bins)
    bars = "".join(
        f'<i class="{"ft-cut" * (low >= lengths.max_length)}" title="{low} to {high - 1} tokens: '
        f'{count:,}" style="height:{100 * count / most:.1f}%"></i>'
        for low, high, count in lengths.bins
    )
    first, last = lengths.bins[0][0], lengths.bins[-1][1] - 1
    part = f" of a random {lengths.rows:,}" if lengths.rows < lengths.of else ""
    cut = (
        f"max_length {lengths.max_length} cuts {lengths.cut:.1%}{part} rows"
        if lengths.cut
        else f"max_length {lengths.max_length} cuts none{part}"
    )
    spoken = f"{title}: {first} to {last}; {cut}"
    return (
        f'<figure class="ft-chart ft-short" role="group" aria-label="{html.escape(spoken)}">'
        f'<figcaption><b>{title}</b><span class="ft-legend">{html.escape(cut)}</span></figcaption>'
        f'<div class="ft-hist">{bars}</div><div class="ft-ends"><span>{first}</span>'
        f"<span>tokens</span><span>{last:,}</span></div></figure>"
    )


def _finding(finding: Finding, paired: bool) -> str:
    count = f'<span class="ft-count">{finding.count:,}</span>' if finding.count else ""
    rows = table(finding.examples, paired, finding.title) if finding.examples else ""
    return (
        f'<details class="ft-finding ft-{finding.severity}"><summary><b>'
        f"{WORDS[finding.severity]}</b> {html.escape(finding.title)} {count}</summary>"
        f"<p>{html.escape(finding.action)}</p>{rows}</details>"
    )
