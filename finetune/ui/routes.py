"""The routes beside Gradio's: what a person takes away, for its owner alone.

Gradio serves a file to whoever knows its path. Nothing of ours goes that way: its file routes are
closed, and models, configurations, events and findings have routes that ask who comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
from gradio.route_utils import FnIndexInferError
from gradio.routes import App
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from finetune.errors import FinetuneError, StoreError
from finetune.evaluation import corrections
from finetune.hub import downloads, script_bundle
from finetune.jobs import check_jobs, export_jobs, prediction_jobs, service
from finetune.runs.store import Run, RunStore
from finetune.runs.summary import fold_events
from finetune.ui import auth, i18n, live_updates, sign_in, upload_limits
from finetune.ui.origins import Names, Origins


def app_options(store: RunStore, names: Names) -> dict[str, Any]:
    """What `launch(app_kwargs=...)` takes: the routes, asked before Gradio's, and the middleware.

    Args:
        names: the hosts the app answers to.
    """

    def closed(request: Request) -> Response:
        return PlainTextResponse("Not found.", 404)

    def no_endpoint(request: Request, error: Exception) -> Response:
        return PlainTextResponse("There is no such endpoint.", 404)

    def of_run(request: Request) -> Response:
        kind = request.path_params["what"]
        return _answer(
            lambda: _taken(auth.visitor_store(store, request), _run(store, request), kind)
        )

    def of_look(request: Request) -> Response:
        return _answer(lambda: _findings(store, request))

    def of_batch(request: Request) -> Response:
        return _answer(lambda: _judged(store, request))

    async def upload(request: Request) -> Response:
        return await upload_limits.receive(store, request)

    async def blank(request: Request) -> Response:
        i18n.use_language_of(request)
        headers = {"cache-control": "no-store"}
        told = orjson.dumps(live_updates.blank())
        return Response(told, media_type="application/json", headers=headers)

    async def watch(request: Request) -> Response:
        i18n.use_language_of(request)
        try:
            mine = auth.visitor_store(store, request)
            shown = store.everyone if mine.visitor.admin else mine
            run = shown.get(request.path_params["run_id"])
        except FinetuneError as error:
            return PlainTextResponse(str(error), 404)
        found = (store.everyone, run, request.query_params)
        if live_updates.known(run):
            told = live_updates.changes(*found)
        else:
            told = await run_in_threadpool(live_updates.changes, *found)
        headers = {"cache-control": "no-store", "x-wait": str(live_updates.pace.wait(run))}
        if not told:
            return Response(status_code=204, headers=headers)
        return Response(orjson.dumps(told), media_type="application/json", headers=headers)

    routes = [
        *(
            Route(f"{start}/{one}", closed, methods=_ANY)
            for start in ("/gradio_api", "")
            for one in _SHUT
        ),
        Route("/gradio_api/upload", upload, methods=["POST"]),
        Route(auth.ISSUE, lambda request: auth.issue(store, request), methods=["POST"]),
        Route("/finetune/watch/", blank, methods=["GET"]),
        Route("/finetune/watch/{run_id}", watch, methods=["GET"]),
        Route("/finetune/runs/{run_id}/{what}", of_run, methods=["GET"]),
        Route("/finetune/batches/{batch_id}/result", of_batch, methods=["GET"]),
        Route("/finetune/examinations/{look_id}/findings.csv", of_look, methods=["GET"]),
    ]
    return {
        "routes": [*routes, *sign_in.routes()],
        "middleware": [Middleware(auth.VisitorCookie, store=store)],
        "lifespan": _around(names),
        "exception_handlers": {FnIndexInferError: no_endpoint},
    }


def _around(names: Names) -> Callable[[App], AbstractAsyncContextManager[None]]:
    """Puts `origins` around the whole app as it starts: Gradio adds its own middleware around all
    that it is given, the one that lets every origin in among them. And what watches uploads."""

    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[None]:
        assert app.middleware_stack is not None  # this start went through it
        app.middleware_stack = Origins(app.middleware_stack, names)
        upload_limits.only_uploads(app.get_blocks())
        sweeping = asyncio.create_task(upload_limits.sweep_often())
        yield
        sweeping.cancel()

    return lifespan


# What Gradio serves beside the page and the endpoints, and neither needs: files by their path, what
# is known of all that was asked, a description of the endpoints for other generators, and tools.
_SHUT = (
    "file={path:path}", "file/{path:path}", "proxy={path:path}", "deep_link", "monitoring",
    "monitoring/{path:path}", "profiling/{path:path}", "openapi.json", "app_id", "app_id/",
    "token", "token/", "dev/{path:path}", "process_recording", "vibe-edit", "vibe-edit/",
    "undo-vibe-edit", "undo-vibe-edit/", "vibe-code", "vibe-code/", "vibe-starter-queries",
    "vibe-starter-queries/",
)  # fmt: skip
_ANY = ["GET", "POST"]


def download_link(run: Run, what: str, text: str) -> str:
    """A link that downloads something of a run; `text` is HTML already."""
    return f'<a class="ft-button" href="finetune/runs/{quote(run.id)}/{what}" download>{text}</a>'


def _answer(make: Callable[[], Response]) -> Response:
    try:
        return make()
    except FinetuneError as error:
        return PlainTextResponse(str(error), 404)


def _run(store: RunStore, request: Request) -> Run:
    return auth.visitor_store(store, request).get(request.path_params["run_id"])


def _taken(store: RunStore, run: Run, kind: str) -> Response:
    """One of a run's downloads.

    Raises:
        StoreError: when there is none of that kind.
        DataError: when the pairs of its script cannot be had any more.
    """
    if kind == "model.zip":
        return _attached(downloads.model_zip(run), f"{run.id}.zip", "application/zip")
    if kind == "script.zip":
        return _attached(
            script_bundle.script_zip(run, store), f"{run.id}-script.zip", "application/zip"
        )
    if kind == "onnx.zip":
        made = export_jobs.export_zip(run, service.run_summary(store, run))
        return _attached(made, f"{run.id}-onnx.zip", "application/zip")
    if kind == "events.csv":
        return _attached(downloads.events_csv(run), f"{run.id}-events.csv", "text/csv")
    if kind == "config.json":
        text = run.config().to_json()
        return _attached(iter([text]), f"{run.id}-config.json", "application/json")
    if kind == "corrected.csv":
        prepared = fold_events(run.tail()[0]).prepared
        pairs = corrections.corrections_csv(run, prepared.labels if prepared else [])
        return _attached(pairs, f"{run.id}-corrected.csv", "text/csv")
    raise StoreError("There is no such file.")


def _findings(store: RunStore, request: Request) -> Response:
    look_id = request.path_params["look_id"]
    report = check_jobs.check_state(
        check_jobs.get_check(auth.visitor_store(store, request), look_id)
    ).report
    if report is None:
        raise StoreError("There is no such examination.", "Press Examine.")
    # The mark at the beginning tells Excel that it is UTF-8.
    return _attached(iter(["\ufeff" + report.as_csv()]), "findings.csv", "text/csv")


def _judged(store: RunStore, request: Request) -> Response:
    """A batch's result, as far as it is written."""
    batch = prediction_jobs.get_prediction(
        auth.visitor_store(store, request), request.path_params["batch_id"]
    )
    result = batch.result
    if result is None:
        raise StoreError("There is no result yet.", "Wait for the first rows.")
    stem = batch.asked().file.partition(".")[0]
    name = "".join(c if c.isalnum() or c in "-_" else "-" for c in stem)[:80].encode(
        "ascii", "ignore"
    )
    return _attached(_pieces(result), f"{name.decode() or 'pairs'}-predicted{result.suffix}", _TYPE)


_TYPE = "application/octet-stream"


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(2**20):
            yield piece


def _attached(pieces: Any, name: str, kind: str) -> Response:
    headers = {
        "content-disposition": f'attachment; filename="{name}"',
        "cache-control": "private, no-store",
        "x-content-type-options": "nosniff",
    }
    return StreamingResponse(pieces, media_type=kind, headers=headers)
