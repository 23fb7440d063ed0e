"""Calls that nobody should make, to see what an app keeps of them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import httpx

TEXTS: list[Any] = [
    "the cat sees a dog .", "", " \n\t ", "the cat sees a dog . " * 900,
    "x" * 19_999, "the " * 250_000,
    "\u732b\u72ac\u3002" * 3000, "\U0001f431\u200d\U0001f436" * 2000, "e\u0301" * 9000,
    "\x00\x01\x1b[31m\x7f\ufeff", "\u202ecat\u202c sees \u2067dog", "\ud83d cat",
    "<b>cat</b>&lt;" * 900,
    None, True, 7, 1e308, ["the cat"], {"the": "cat"},
]  # fmt: skip
NO_RUNS: list[Any] = ["no-such-run", "../../etc", "", None, 7, ["x"], "y" * 10**6]
FILES = {
    "empty.csv": b"", "nul.csv": b"\0" * 10**6, "one column.csv": b"sentence\n" + b"cat\n" * 10**5,
    "no workbook.xlsx": b"PK\x03\x04" + b"x" * 10**5, "torn.parquet": b"PAR1" + b"\xff" * 10**6,
    "wide.csv": b",".join([b"c"] * 200) + b"\n", "odd.json": b"[" * 10**5,
}  # fmt: skip


class Sweep:
    """One visitor after another makes odd calls of an app.

    Args:
        url: of the app.
        runs: ids of runs that have a model.
    """

    def __init__(self, url: str, runs: Sequence[str]) -> None:
        self.calls = 0
        self.faults: list[str] = []  # answers by which the app says that it is to blame
        self._web = httpx.Client(base_url=url, timeout=120)
        self._runs = itertools.cycle(runs)
        self._ids = list(runs)
        endpoints = self._web.get("config").json()["dependencies"]
        self._index = {end["api_name"]: end["id"] for end in endpoints}

    def __call__(self) -> None:
        """Make all of them once."""
        for text, other in zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True):
            self.ask(text, TEXTS[0])
            self.call("run", "predict", next(self._runs), TEXTS[0], text, True)
            self.call("run", "predict", next(self._runs), text, other)
        for text in TEXTS[::4]:
            self.call("call", "explain", next(self._runs), TEXTS[0], text)
        for run in NO_RUNS:
            for name in ("run_status", "stop_run", "resume_run", "batch_status"):
                self.call("call", name, run)
            self.call("call", "start_run", {"max_steps": run, "no such": run})
            self.call("call", "publish", run, run, run)
            self.call("run", "predict", run, TEXTS[0], TEXTS[0])
        for number, (name, content) in enumerate(FILES.items()):
            self.upload(number, name, content)
        self.compare()

    def ask(self, first: Any, second: Any) -> None:
        """Ask on the page, and then why."""
        session, run = f"visitor{self.calls}", next(self._runs)
        self.event(session, "on_ask", run, first, second, self.calls % 2 == 0, True, False)
        if self.calls % 4 == 0:
            self.event(session, "on_why", None)

    def upload(self, number: int, name: str, content: bytes) -> None:
        """Send a file that is none, to be predicted, looked at and trained on."""
        session, run = f"visitor{self.calls}", next(self._runs)
        path = self._web.post("gradio_api/upload", files={"files": (name, content)}).json()[0]
        file = {"path": path, "orig_name": name, "meta": {"_type": "gradio.FileData"}}
        self.event(session, "on_file", run, file, None)
        self.event(session, "on_upload", file, None, None)
        self.call("call", "predict_batch", run, file, "a", "b", "c", number % 2 == 0)

    def compare(self) -> None:
        """Lay runs beside each other, and look at one."""
        for chosen in (self._ids, self._ids[:2], NO_RUNS, [7], None):
            session = f"visitor{self.calls}"
            view = {"runs": chosen, "compare": chosen}
            self.event(session, "on_compare", None, None, json.dumps(chosen), json.dumps(view))
            self.event(session, "on_table", None, None, json.dumps(chosen))

    def call(self, way: str, name: str, *values: Any) -> str:
        """Call a named endpoint as a program does; returns what it answers."""
        self.calls += 1
        answer = self._post(f"gradio_api/{way}/{name}", {"data": values})
        if way == "run" or answer.status_code != 200:
            return self._told(name, answer)
        event = answer.json()["event_id"]
        return self._told(name, self._web.get(f"gradio_api/call/{name}/{event}"))

    def event(self, session: str, name: str, *values: Any) -> str:
        """Send an event of the page; returns what it answers."""
        self.calls += 1
        body = {"data": values, "fn_index": self._index[name], "session_hash": session}
        if name != "on_why":
            return self._told(name, self._post("gradio_api/run/predict", body))
        self._post("gradio_api/queue/join", body)
        query = {"session_hash": session}
        return self._told(name, self._web.get("gradio_api/queue/data", params=query))

    def _told(self, name: str, answer: httpx.Response) -> str:
        if "our fault" in answer.text:
            self.faults.append(f"{name}: {answer.text[:500]}")
        return answer.text

    def _post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        # Lone surrogates too, as JSON can have them.
        head = {"content-type": "application/json"}
        return self._web.post(path, content=json.dumps(body), headers=head)
