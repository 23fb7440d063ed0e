"""A release check's judgement as plain text, and as Markdown for a pull request's comment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from finetune.evaluation.gate import ChangedAnswer, Judgement
from finetune.findings import shorten
from finetune.metrics import catalog
from finetune.text_hashes import without_direction

MOST_CHARACTERS = 60_000  # of Markdown; GitHub takes 65,536 in a comment
_LISTED, _CHARACTERS = 50, 200  # changed answers of each kind, and characters of a text
_TITLES = {"passed": "passed", "failed": "failed", "not judged": "could not be judged"}


def as_text(judged: Judgement) -> str:
    """Return the judgement in plain lines, with the first few lost answers."""
    lines = [f"Release check {_TITLES[judged.verdict]}: {judged.new} in place of {judged.old}"]
    lines += [*judged.reasons, *judged.remarks]
    if judged.gain is not None:
        lines.append(_counts(judged))
        lines += [
            f"{kind}, row {row.row}: {' | '.join(filter(None, (row.sentence1, row.sentence2)))}"
            f" (label {row.label}, {judged.old}: {row.old}, {judged.new}: {row.new})"
            for kind, rows in _changed(judged)
            for row in rows[:10]
        ]
    return "\n".join(without_direction(" ".join(line.split())) for line in lines)


def as_markdown(judged: Judgement) -> str:
    """Return the judgement as GitHub's Markdown, at most 60,000 characters. Texts are escaped: they
    make no links, mentions or markup."""
    new, old = _escaped(judged.new), _escaped(judged.old)
    golden = f" (sha256 `{judged.golden[:16]}`)" if judged.golden else ""
    lines = [
        f"### Release check {_TITLES[judged.verdict]}",
        "",
        f"**{new}** in place of **{old}**, judged by {judged.examples:,} rows of "
        f"{_escaped(judged.source)}{golden}.",
        "",
        *(f"- {_escaped(text)}" for text in (*judged.reasons, *judged.remarks)),
    ]
    if judged.gain is not None and judged.scores:
        lines += ["", f"| | {new} | {old} |", "|---|---:|---:|"]
        for name, scores in judged.scores.items():
            lines.append(f"| {catalog.find(name).title} | {scores[0]:.3f} | {scores[1]:.3f} |")
        lines += ["", _counts(judged)]
        lines += [*slices_table(judged)]
    text = "\n".join(lines)
    for kind, rows in _changed(judged):
        text += rows_table(kind, rows, judged, MOST_CHARACTERS - len(text) - 200)
    return text + "\n"


def _changed(judged: Judgement) -> Iterator[tuple[str, Sequence[ChangedAnswer]]]:
    names = ("Lost", "Gained") if judged.has_right else ("Worse", "Nearer")
    yield from zip(names, (judged.lost_rows, judged.gained_rows), strict=True)


def _counts(judged: Judgement) -> str:
    p = "p < 0.001" if judged.p < 0.001 else f"p = {judged.p:.2g}"
    if not judged.has_right:
        worse, nearer = judged.lost, judged.gained
        return f"Answers further off: {worse:,}, nearer: {nearer:,} (sign test, {p})."
    return (
        f"Right answers lost: {judged.lost:,}, gained: {judged.gained:,} (exact McNemar test, {p})."
        f" Of new rows like these at most {judged.lost_at_most:.1%} may be lost (with 97.5%)."
    )


def slices_table(judged: Judgement) -> Iterator[str]:
    """Yield lines of Markdown with the kinds of rows that changed, the significantly worse
    first."""
    changed = [part for part in judged.slices if part.lost or part.gained]
    if changed:
        title = "right" if judged.has_right else "mean error"
        yield from ("", "<details><summary>By kind of row</summary>", "")
        yield f"| kind | rows | {title}, old | new | lost | gained |"
        yield "|---|---:|---:|---:|---:|---:|"
        for part in sorted(changed, key=lambda part: (not part.worse, part.gained - part.lost)):
            mark = " **worse**" if part.worse else ""
            yield (
                f"| {_escaped(f'{part.trait}: {part.value}')}{mark} | {part.count:,} "
                f"| {part.old:.3f} | {part.new:.3f} | {part.lost:,} | {part.gained:,} |"
            )
        yield from ("", "</details>")


def rows_table(kind: str, rows: Sequence[ChangedAnswer], judged: Judgement, room: int) -> str:
    """Return Markdown with the first changed answers, as many as there is `room` for."""
    if not rows:
        return ""
    total = judged.lost if kind in ("Lost", "Worse") else judged.gained
    paired = any(row.sentence2 for row in rows)
    heads = ["row", "sentence1", *["sentence2"] * paired, "label", "old", "new"]
    text = "\n\n<details{}><summary>{} ({:,})</summary>\n\n| {} |\n|{}\n".format(
        " open" if kind == "Lost" else "", kind, total, " | ".join(heads), "---|" * len(heads)
    )
    shown = 0
    for row in rows[:_LISTED]:
        texts = [row.sentence1, *[row.sentence2] * paired, row.label, row.old, row.new]
        line = f"| {row.row} | {' | '.join(map(_escaped, texts))} |\n"
        if len(text) + len(line) > room:
            break
        text, shown = text + line, shown + 1
    rest = f"\n{total - shown:,} more\n" if total > shown else ""
    return f"{text}{rest}\n</details>" if shown or room > 0 else ""


def _escaped(text: str) -> str:
    """Escape a text for a line or a cell. A character by its number is no markup; a joiner keeps
    GitHub from making links of addresses and names, and pictures of words."""
    plain = " ".join(without_direction(shorten(text, _CHARACTERS)).split())
    linked = r"[@#](?=\w)|:(?=//|[\w+-]+:)|\bwww(?=\.)|\bGH(?=-\d)"
    marked = re.sub(linked, "\\g<0>\u2060", plain)
    return re.sub(r"[&<>@#\[\]`*_|~$\\]", lambda found: f"&#{ord(found[0])};", marked)
