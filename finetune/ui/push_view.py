"""A push to the Hub as HTML: what it will do, how far it is, what became of it."""

from __future__ import annotations

from markupsafe import Markup

from finetune.hub.push_plan import PushPlan
from finetune.jobs.export import ExportState
from finetune.jobs.push import PushState
from finetune.ui.html import macro


def plan(plan: PushPlan) -> Markup:
    """What a push will do."""
    return macro("push.html", "plan")(plan)


def state(state: PushState) -> Markup:
    """How far a push is, or what became of it; empty where there is none."""
    return macro("push.html", "state")(state)


def downloads(run_id: str, export: ExportState) -> Markup:
    """What a person can take away without the Hub."""
    return macro("push.html", "downloads")(run_id, export)
