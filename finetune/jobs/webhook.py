"""Tells the owner's chat or service that a run has ended: the address in FINETUNE_WEBHOOK.

It gets the run's name, status and scores; no sentence, no name of a file, no token.
"""

from __future__ import annotations

import html
import http.client
import ipaddress
import json
import logging
import os
import socket
import ssl
import threading
from typing import Any
from urllib.parse import urlsplit

from finetune.evaluation import report
from finetune.metrics.catalog import HEADLINE, STANDARD, metric_name
from finetune.runs.run import Run
from finetune.runs.summary import RunSummary

VARIABLE = "FINETUNE_WEBHOOK"
TIMEOUT = 5.0  # seconds
_log = logging.getLogger("finetune.jobs.webhook")


def announce(run: Run, summary: RunSummary) -> None:
    """Send that a run has ended, in a thread; a failure is logged, and that is all."""
    address = os.environ.get(VARIABLE, "")
    threading.Thread(target=_try, args=(address, run, summary), daemon=True).start()


def _try(address: str, run: Run, summary: RunSummary) -> None:
    try:
        send(address, run, summary)
    except (OSError, ValueError, http.client.HTTPException) as error:
        # Not the address: whoever knows it may write to the owner's chat.
        _log.warning("%s: %s of %s was not sent: %s", VARIABLE, summary.status, run.id, error)


def send(address: str, run: Run, summary: RunSummary) -> None:
    """Post the news of a run to an address.

    Raises:
        ValueError, OSError, HTTPException: when the address may not be used or does not take it.
    """
    parts = urlsplit(address)
    if parts.scheme != "https" or not parts.hostname:
        raise ValueError("the address has to begin with https://")
    connection = _Connection(parts.hostname, parts.port or 443, timeout=TIMEOUT)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        body = json.dumps(message(parts.hostname, run, summary))
        connection.request("POST", target, body, {"Content-Type": "application/json"})
        status = connection.getresponse().status  # nothing is followed
        if not 200 <= status < 300:
            raise ValueError(f"the answer was {status}")
    finally:
        connection.close()


def message(host: str, run: Run, summary: RunSummary) -> dict[str, Any]:
    """The news as Slack, Discord or another service reads it."""
    scores = report.kept_metrics(run, summary)
    name = run.title(public=True)
    text = f"{name}: {summary.status}"
    for metric in dict.fromkeys((HEADLINE, *STANDARD)):
        if metric.name in scores:
            text += f", {metric_name(metric.name, summary.classes)} {scores[metric.name]:.3f}"
    if host == "hooks.slack.com":
        return {"text": html.escape(text, quote=False)}
    if host in ("discord.com", "discordapp.com"):
        return {"content": text, "allowed_mentions": {"parse": []}}
    return {
        "run": run.id, "name": name, "status": summary.status, "text": text,
        **{metric.name: scores.get(metric.name) for metric in STANDARD},
    }  # fmt: skip


class _Connection(http.client.HTTPSConnection):
    """A connection to an address that was looked at, never to a name that is resolved again."""

    def connect(self) -> None:
        address = public_address(self.host, self.port)
        plain = socket.create_connection((address, self.port), self.timeout)
        context = ssl.create_default_context()
        self.sock = context.wrap_socket(plain, server_hostname=self.host)


def public_address(host: str, port: int) -> str:
    """An address of a host that has none but public ones.

    Raises:
        ValueError: when one is private, loopback, link-local or otherwise not public.
    """
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(entry[4][0]) for entry in entries]
    for text in addresses:
        address = ipaddress.ip_address(text.partition("%")[0])
        address = getattr(address, "ipv4_mapped", None) or address
        if not address.is_global or address.is_multicast:
            raise ValueError(f"{text} is not a public address")
    return addresses[0]
