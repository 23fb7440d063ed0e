"""How a push looks: what it will do, how far it is, and what became of it, as HTML."""

from __future__ import annotations

import html

from finetune.errors import PublishError
from finetune.hub.publish import Pushed
from finetune.hub.push_plan import PushPlan
from finetune.hub.verify import Verification
from finetune.jobs.push_jobs import PushState
from finetune.ui import feedback
from finetune.ui.i18n import gettext

_MOST_FILES = 4


def size(count: int) -> str:
    """Bytes as a person reads them."""
    return f"{count / 1e6:,.1f} MB" if count >= 100_000 else f"{count / 1e3:,.1f} KB"


def plan(found: PushPlan) -> str:
    """What a push will do."""
    name = html.escape(found.account.name)
    lines = [gettext("Signed in as <b>{name}</b>.", name=name), _where(found)]
    largest = sorted(found.files.items(), key=lambda one: -one[1])[:_MOST_FILES]
    names = ", ".join(f"{html.escape(path)} {size(count)}" for path, count in largest)
    told = {"n": len(found.files), "size": size(found.size), "names": names}
    more = len(found.files) - len(largest)
    lines.append(
        gettext("One commit of {n} files, {size}: {names} and {more} more.", more=more, **told)
        if more > 0
        else gettext("One commit of {n} files, {size}: {names}.", **told)
    )
    lines.append(_licence(found))
    if found.demo:
        name = html.escape(found.demo)
        lines.append(
            gettext("The Space {name} gets a new commit, and keeps its hardware.", name=name)
            if found.demo_exists
            else gettext(
                "The Space {name} is made: {hardware}.",
                name=name,
                hardware=html.escape(found.hardware),
            )
        )
    if found.billed:
        lines.append(gettext("The Hub bills you for it; pressing Push agrees to that price."))
    items = "".join(f"<li>{line}</li>" for line in lines)
    return feedback.good(gettext("Nothing was sent yet. Push will do this:") + f"<ul>{items}</ul>")


def _where(found: PushPlan) -> str:
    full = html.escape(found.full)
    if not found.exists and found.private:
        return gettext("<b>{name}</b> is a new private repository.", name=full)
    if not found.exists:
        return gettext("<b>{name}</b> is a new public repository.", name=full)
    there = (
        gettext("<b>{name}</b> is there already, private.", name=full)
        if found.private
        else gettext("<b>{name}</b> is there already, public.", name=full)
    )
    text = there + " " + gettext(
        "It gets a new commit, its history stays. Choose another name to leave it as it is."
    )  # fmt: skip
    if not found.removed:
        return text
    return text + " " + gettext("Of an earlier model go: {names}.", names=_names(found.removed))


def _names(paths: list[str]) -> str:
    shown = ", ".join(html.escape(path) for path in paths[:_MOST_FILES])
    more = len(paths) - _MOST_FILES
    return gettext("{names} and {more} more", names=shown, more=more) if more > 0 else shown


def _licence(found: PushPlan) -> str:
    licence, base = html.escape(found.licence), html.escape(found.base_licence)
    if not licence:
        return gettext("No licence: nobody may use it but you. Choose one.")
    if base and licence != base:
        return gettext(
            "Licence {name}; the base model\u2019s is {base}. See that they agree.",
            name=licence,
            base=base,
        )
    if base:
        return gettext("Licence {name}, as the base model\u2019s.", name=licence)
    return gettext("Licence {name}.", name=licence)


def state(found: PushState | None) -> str:
    """How far a push is, or what became of it; empty where there is none."""
    if found is None:
        return ""
    if found.status == "running":
        return _running(found)
    if found.pushed is not None:
        return _done(found.pushed)
    said = feedback.show_errors(PublishError(found.error, found.remedy))
    kept = found.progress.sent
    if not kept or not found.progress.total:
        return said
    return said + feedback.note(
        gettext(
            "{sent} of {total} were sent. Whole files that the Hub has are not sent again.",
            sent=size(kept),
            total=size(found.progress.total),
        )
    )


def _running(found: PushState) -> str:
    now = found.progress
    share = 100 * now.sent / now.total if now.total else 0
    doing = gettext("cancelling") if found.cancelling else gettext(now.doing)
    facts = ""
    if now.total:
        facts = gettext("{sent} of {total}", sent=size(now.sent), total=size(now.total))
    if now.there:
        facts += " \u00b7 " + gettext("{size} were there already", size=size(now.there))
    return (
        f'<div role="status" class="ft-status"><strong>{html.escape(_sentence(doing))} \u2026'
        f"</strong><span>{html.escape(now.full)}</span></div>"
        f'<div class="ft-bar" role="progressbar" aria-label="{html.escape(gettext("sent"))}" '
        f'aria-valuemin="0" aria-valuemax="100" aria-valuenow="{share:.0f}">'
        f'<i style="width:{share:.1f}%"></i></div>'
        f'<div class="ft-facts">{html.escape(facts)}</div>'
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _done(pushed: Pushed) -> str:
    told = {"link": _link(pushed.url), "commit": html.escape(pushed.commit[:7])}
    lines = [
        gettext("Pushed. A new repository: {link} (commit {commit}).", **told)
        if pushed.created
        else gettext("Pushed. A new commit in your repository: {link} (commit {commit}).", **told)
    ]
    if pushed.demo:
        lines.append(
            gettext(
                "Its demo: {link}. The Hub builds it in a few minutes.", link=_link(pushed.demo)
            )
        )
    found = pushed.verified
    if found is not None and not found.problem:
        lines.append(_verified(found))
    said = feedback.good("<br>".join(lines))
    if found is not None and found.problem:
        fact = gettext("Not verified. {problem}", problem=found.problem)
        said += feedback.show_errors(
            PublishError(fact, gettext("Push again, or compare it by hand."))
        )
    if pushed.demo_problem:
        fact = gettext("There is no demo. {problem}", problem=pushed.demo_problem)
        said += feedback.show_errors(PublishError(fact))
    return said


def _verified(found: Verification) -> str:
    return gettext(
        "<b>Verified</b>: loaded back from the Hub, it answers {n} examples as the model here does "
        "(largest difference of a logit {difference:.2g}).",
        n=found.pairs,
        difference=found.difference,
    )


def _link(url: str) -> str:
    safe = html.escape(url)
    return f'<a href="{safe}" target="_blank" rel="noopener">{safe}</a>'
