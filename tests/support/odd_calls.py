"""Calls that nobody should make, to see whether an app takes the blame for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
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


def calls(run: str, files: list[dict[str, Any]]) -> Iterator[tuple[str, str, list[Any]]]:
    """In which way, of what and with what: an endpoint as programs call it, or an event of the
    page."""
    first = TEXTS[0]
    for number, text in enumerate(TEXTS):
        yield "event", "on_ask", [run, text, first, number % 2 == 0, True, False]
        if number % 4 == 0:
            yield "queue", "on_why", [None]
            yield "call", "explain", [run, first, text]
        yield "run", "predict", [run, first, text, True]
        yield "run", "predict", [run, text, TEXTS[number - 1]]
    for other in NO_RUNS:
        for name in ("run_status", "stop_run", "resume_run", "batch_status"):
            yield "call", name, [other]
        yield "call", "start_run", [{"max_steps": other, "no such": other}]
        yield "call", "publish", [other, other, other]
        yield "run", "predict", [other, first, first]
    for number, file in enumerate(files):
        yield "event", "on_file", [run, file, None]
        yield "event", "on_upload", [file, None, None]
        yield "call", "predict_batch", [run, file, "a", "b", "c", number % 2 == 0]
    for chosen in ([run], NO_RUNS, [7], None):
        view = json.dumps({"runs": chosen, "compare": chosen})
        yield "event", "on_compare", [None, None, json.dumps(chosen), view]
        yield "event", "on_table", [None, None, json.dumps(chosen)]


def faults(url: str, run: str) -> list[str]:
    """Make all of them of an app; the answers by which it says that it is to blame."""
    with httpx.Client(base_url=url, timeout=120) as web:
        index = {end["api_name"]: end["id"] for end in web.get("config").json()["dependencies"]}

        def upload(name: str, content: bytes) -> dict[str, Any]:
            path = web.post("gradio_api/upload", files={"files": (name, content)}).json()[0]
            return {"path": path, "orig_name": name, "meta": {"_type": "gradio.FileData"}}

        def post(path: str, body: dict[str, Any]) -> httpx.Response:
            # Lone surrogates too, as JSON can have them.
            head = {"content-type": "application/json"}
            return web.post(path, content=json.dumps(body), headers=head)

        def answer(way: str, name: str, values: list[Any]) -> str:
            if way in ("run", "call"):
                answered = post(f"gradio_api/{way}/{name}", {"data": values})
                if way == "run" or answered.status_code != 200:
                    return answered.text
                return web.get(f"gradio_api/call/{name}/{answered.json()['event_id']}").text
            session = {"session_hash": name.replace("why", "ask")}
            body = {"data": values, "fn_index": index[name], **session}
            if way == "event":
                return post("gradio_api/run/predict", body).text
            post("gradio_api/queue/join", body)
            return web.get("gradio_api/queue/data", params=session).text

        files = [upload(name, content) for name, content in FILES.items()]
        told = [(name, answer(way, name, values)) for way, name, values in calls(run, files)]
        assert "probabilities" in answer("run", "predict", [run, "the cat", "a dog"])
        return [f"{name}: {text[:500]}" for name, text in told if "our fault" in text]
