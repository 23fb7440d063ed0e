"""What a model says of one pair, in HTML: the answer, why, what would change it. Text escaped."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from finetune.data import safe_csv
from finetune.ui import feedback
from finetune.ui.i18n import gettext

if TYPE_CHECKING:
    from finetune.inference.explain import Explanation, WordWeight
    from finetune.inference.perturbations import Flip
    from finetune.inference.predictor import Prediction

HISTORY = ("when", "model", "sentence1", "sentence2", "prediction", "probability", "label")
MOST = 200  # questions remembered
CLASSES = 50  # with a bar of their own


def answer(found: Prediction) -> str:
    """Label, a bar for each class's probability, and what a person should know of it."""
    rows = []
    known = list(found.probabilities.items())
    if len(known) > CLASSES:
        known = sorted(known, key=lambda one: -one[1])[:CLASSES]
    for name, value in known:
        rows.append(
            f"<span>{html.escape(name)}</span>"
            f'<div class="ft-bar" role="img" aria-label="{html.escape(name)}: {value:.1%}">'
            f'<i style="width:{100 * value:.1f}%"></i></div><span>{value:.1%}</span>'
        )
    return (
        f'<div role="status"><p class="ft-answer" id="label">{html.escape(found.label)}</p>'
        f'<div class="ft-prob">{"".join(rows)}</div>{_left(found)}'
        f'<p class="ft-facts">{_facts(found)}</p>'
        f"{_order(found)}{_read(found)}</div>"
    )


def _left(found: Prediction) -> str:
    """How many classes have no bar."""
    more = len(found.probabilities) - CLASSES
    if more <= 0:
        return ""
    text = gettext(
        "The {n} most probable classes; {more:,} more are less so.", n=CLASSES, more=more
    )
    return f'<p class="ft-facts">{html.escape(text)}</p>'


def _facts(found: Prediction) -> str:
    parts = [gettext("{n} tokens", n=found.tokens)]
    if found.cut:
        share = found.cut / (found.tokens + found.cut)
        parts.append(
            gettext("{n} more ({share:.0%}) were cut by max_length", n=found.cut, share=share)
        )
    parts.append(f"{1000 * found.seconds:.0f} ms")
    if found.options.both_orders and found.other is not None:
        parts.append(gettext("both orders averaged"))
    if found.options.threshold and found.rule.threshold is not None:
        parts.append(gettext("threshold {n:.3f}", n=found.rule.threshold))
    if found.options.calibrated and found.rule.temperature is not None:
        parts.append(gettext("calibrated, temperature {n:.2f}", n=found.rule.temperature))
    return html.escape(" \u00b7 ".join(parts))


def _order(found: Prediction) -> str:
    if found.other is None or found.options.both_orders:
        return ""
    other, value = found.other_label, found.other[found.other_label]
    if not found.agrees:
        text = gettext(
            "<b>The order decides here:</b> with the sentences swapped it says {label} "
            "({share:.1%}). Whether two sentences mean the same should not depend on it.",
            label=html.escape(other),
            share=value,
        )
        return f'<div class="ft-said ft-warn" id="order-warning" role="alert">{text}</div>'
    text = gettext("The other way round: {label}, {share:.1%}.", label=other, share=value)
    return f'<p class="ft-facts">{html.escape(text)}</p>'


def _read(found: Prediction) -> str:
    if not found.cut:
        return ""
    text = gettext(
        "A part of the text was not read: train with a larger max_length to have it count."
    )
    return f'<div class="ft-said ft-warn">{html.escape(text)}</div>'


def why(found: Explanation, label: str) -> str:
    """Both sentences, each word as strongly coloured as it weighs, with a legend."""
    known = [abs(word.weight) for word in found.words if word.weight is not None]
    most = max(known, default=0.0) or 1.0
    sentences = []
    for number in (1, 2):
        words = [word for word in found.words if word.sentence == number]
        if words:
            marked = " ".join(_word(word, most) for word in words)
            sentences.append(
                f'<p class="ft-weighed" dir="auto"><small>sentence{number}</small>{marked}</p>'
            )
    name = html.escape(label)
    off = (
        gettext("They add up to the change of the score within {share:.1%}.", share=found.error)
        if found.error <= 0.05
        else gettext(
            "They miss the change of the score by {share:.0%}: take them with care.",
            share=found.error,
        )
    )
    legend = gettext(
        "{up} for \u201c{label}\u201d, {down} against it; the stronger the colour and the thicker "
        "the line, the more a word weighs.",
        label=name,
        up='<span class="ft-for">\u25b2</span>',
        down='<span class="ft-against">\u25bc</span>',
    )
    cut = gettext("Words struck through were cut by max_length.")
    told = " ".join([legend, off, *([cut] if len(known) < len(found.words) else [])])
    title = gettext("Why \u201c{label}\u201d", label=name)
    return (
        f'<div id="why"><h2 class="ft-h">{title}</h2>{"".join(sentences)}'
        f'<p class="ft-facts">{told}</p></div>'
    )


def _word(word: WordWeight, most: float) -> str:
    text = html.escape(word.text)
    if word.weight is None:
        return f"<s>{text}</s>"
    share = abs(word.weight) / most
    if share < 0.05:
        return f"<span>{text}</span>"
    kind = "ft-for" if word.weight > 0 else "ft-against"
    return (
        f'<span class="ft-w {kind}" title="{word.weight:+.3f}" '
        f'style="--share:{100 * share:.0f}%;--line:{1 + 3 * share:.1f}px">{text}</span>'
    )


def flips(found: Sequence[Flip], tried: int, label: str) -> str:
    """The small edits that change the answer."""
    head = f'<h2 class="ft-h">{html.escape(gettext("What would change its mind"))}</h2>'
    if not found:
        return head + feedback.note(
            gettext(
                "None of {n} small edits (words left out, numbers, negations, the order) turns "
                "\u201c{label}\u201d into something else.",
                n=tried,
                label=label,
            )
        )
    rows = "".join(
        f"<tr><td>{html.escape(one.edit.description)}</td>"
        f"<td dir=auto>{html.escape(one.edit.sentence1)}</td>"
        f"<td dir=auto>{html.escape(one.edit.sentence2 or '')}</td>"
        f'<td>{html.escape(one.label)}</td><td class="ft-num">{one.probability:.1%}</td></tr>'
        for one in found[:12]
    )
    said = gettext(
        "{n} of {tried} small edits turn the answer. Judge whether they should.",
        n=len(found),
        tried=tried,
    )
    heads = "".join(
        f'<th scope="col">{html.escape(name)}</th>'
        for name in (gettext("edit"), "sentence1", "sentence2", gettext("answer"))
    )
    return (
        f"{head}{feedback.note(said)}"
        f'<div class="ft-rows" id="flips-table"><table><thead><tr>{heads}<th scope="col" '
        f'class="ft-num">{html.escape(gettext("probability"))}</th></tr></thead><tbody>{rows}</tbody>'
        "</table></div>"
    )


def history(asked: Sequence[dict[str, Any]]) -> str:
    """What was tried, the newest first, with a place for the person's own verdict."""
    if not asked:
        return feedback.note(gettext("What you try is kept here, in your browser."))
    lines = []
    for place in range(len(asked) - 1, -1, -1):
        one = asked[place]
        n = one["n"] if isinstance(one.get("n"), int) else place
        names = list(dict.fromkeys(one.get("labels") or []))
        given = str(one.get("label") or "")
        options = "".join(
            f'<option value="{html.escape(name, quote=True)}"{" selected" * (name == given)}>'
            f"{html.escape(name or gettext('your verdict'))}</option>"
            for name in ["", *map(str, names)]
        )
        right = given and given != str(one.get("prediction"))
        mark = " class=ft-wrong" if right else ""
        lines.append(
            f"<tr><td dir=auto>{html.escape(str(one.get('sentence1', '')))}</td>"
            f"<td dir=auto>{html.escape(str(one.get('sentence2', '')))}</td>"
            f"<td{mark}>{html.escape(str(one.get('prediction', '')))}"
            f"<small>{html.escape(str(one.get('probability', '')))}</small></td>"
            f'<td><select data-place="{n}" aria-label="'
            f'{html.escape(gettext("Your verdict on question {n}", n=place + 1))}">{options}</select>'
            "</td></tr>"
        )
    text = "\ufeff" + _sheet(asked)
    data = base64.b64encode(text.encode("utf-8", "replace")).decode()
    link = f"data:text/csv;charset=utf-8;base64,{data}"
    heads = "".join(
        f'<th scope="col">{html.escape(name)}</th>'
        for name in ("sentence1", "sentence2", gettext("prediction"), gettext("your verdict"))
    )
    taken = html.escape(gettext("As CSV, with your verdicts as label"))
    return (
        f'<div class="ft-rows ft-examples"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
        f'<div class="ft-links"><a class="ft-button" download="tried.csv" href="{link}">{taken}</a>'
        '<button type="button" class="ft-button" data-do="clear">'
        f"{html.escape(gettext('Forget these'))}</button></div>"
        + feedback.note(
            gettext("The CSV can be trained on: bring it under Data, label is your verdict.")
        )
    )


def _sheet(asked: Sequence[dict[str, Any]]) -> str:
    """What was tried as a CSV that can be trained on: without `sentence2` where there is none, and
    single sentences under the name that is known for those."""
    paired = any(str(one.get("sentence2") or "").strip() for one in asked)
    columns = [name for name in HISTORY if paired or name != "sentence2"]
    names = [name if paired or name != "sentence1" else "sentence" for name in columns]
    return safe_csv.to_csv(names, ([one.get(name, "") for name in columns] for one in asked))
