"""Tells the owner's chat or service that a run has ended: the address in FINETUNE_WEBHOOK.

The message has the run's name, status and scores; no sentence, file name or token.
"""

from __future__ import annotations

import html
import http.client
import json
import logging
import os
import threading
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from finetune.evaluation import report
from finetune.metrics.catalog import metric_name
from finetune.runs.run import Run
from finetune.runs.summary import RunSummary

VARIABLE = "FINETUNE_WEBHOOK"
TIMEOUT = 5.0  # seconds to wait for an answer
_log = logging.getLogger("finetune.jobs.webhook")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Turns a redirect into an error: a POST that is redirected arrives without its body."""

    def redirect_request(self, *_: object) -> None:
        return None


def announce(run: Run, summary: RunSummary) -> threading.Thread:
    """Announce in the thread that is returned that a run has ended. A failure is only logged."""
    address = os.environ.get(VARIABLE, "")

    def work() -> None:
        try:
            send(address, run, summary)
        except (OSError, ValueError, http.client.HTTPException) as error:
            # Without the address: anyone who knows it can write to the owner's chat.
            said = (
                error if isinstance(error, OSError) else "it is no address of https:// or http://"
            )
            _log.warning("%s: %s of %s was not sent: %s", VARIABLE, summary.status, run.id, said)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def send(address: str, run: Run, summary: RunSummary) -> None:
    """Post the news of a run to an http or https address, which may be in the owner's network.
    OSError if the address does not take it, ValueError or HTTPException if it is none."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https"):
        raise ValueError("the address has to begin with https:// or http://")
    body = json.dumps(message(parts.hostname or "", run, summary)).encode()
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    urllib.request.build_opener(_NoRedirects).open(request, timeout=TIMEOUT).close()


def message(host: str, run: Run, summary: RunSummary) -> dict[str, Any]:
    """Return the news as Slack, Discord or another service reads it."""
    scores = report.kept_metrics(run, summary)
    name = run.title(public=True)
    text = f"{name}: {summary.status}"
    for metric in dict.fromkeys((summary.headline, *summary.task.metrics)):
        if metric.name in scores:
            text += f", {metric_name(metric.name, summary.classes)} {scores[metric.name]:.3f}"
    if host == "hooks.slack.com":
        return {"text": html.escape(text, quote=False)}
    if host in ("discord.com", "discordapp.com"):
        return {"content": text, "allowed_mentions": {"parse": []}}
    return {
        "run": run.id, "name": name, "status": summary.status, "text": text,
        **{metric.name: scores.get(metric.name) for metric in summary.task.metrics},
    }  # fmt: skip
