"""Routes beside Gradio's: downloads, uploads and the live view, each for its owner alone.

Gradio serves a file to whoever knows its path; its file routes are closed here.
"""

from __future__ import annotations

import mimetypes
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain
from typing import Any
from urllib.parse import quote

import orjson
from gradio.context import LocalContext
from gradio.route_utils import FnIndexInferError
from gradio.routes import App
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from finetune.errors import FinetuneError, StoreError
from finetune.evaluation import corrections, ranking
from finetune.hub import downloads
from finetune.jobs import predict, run_table, service
from finetune.jobs.label import LabelJob
from finetune.jobs.publish import ExportJob
from finetune.runs.store import RunStore
from finetune.runs.summary import ENDED
from finetune.studies import results
from finetune.studies.study import find_study
from finetune.ui import auth, live_updates, run_view, upload_limits
from finetune.ui.origins import AllowedHosts, OwnOrigin

# Routes of Gradio's that the page does not need: files by their path, links that save the page's
# state, a stream for developers that is asked twenty times a second, and ffmpeg.
_CLOSED = (
    "file={path:path}", "file/{path:path}", "proxy={path:path}", "deep_link", "openapi.json",
    "dev/{path:path}", "process_recording",
)  # fmt: skip


def app_options(store: RunStore, hosts: AllowedHosts) -> dict[str, Any]:
    """`launch(app_kwargs=...)`: our routes, which are asked before Gradio's, and middleware."""

    def own(endpoint: Callable[[RunStore, Request], Response]) -> Callable[[Request], Response]:
        """Pass the visitor's own store."""
        return lambda request: endpoint(auth.visitor_store(store, request), request)

    # Wraps the whole app at its start: Gradio puts its own middleware around what it is given, and
    # one of them lets other origins in.
    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[None]:
        assert app.middleware_stack is not None  # built for this start
        app.middleware_stack = OwnOrigin(app.middleware_stack, hosts)
        upload_limits.refuse_other_ways(app.get_blocks())
        yield

    closed = [f"{prefix}/{path}" for prefix in ("/gradio_api", "") for path in _CLOSED]
    return {
        "routes": [
            *(Route(path, _not_found, methods=["GET", "POST"]) for path in closed),
            Route("/finetune/watch/{run_id}", own(watch)),
            Route("/finetune/news/{run_id:path}", own(news)),
            Route("/finetune/runs.csv", own(runs_download)),
            Route("/finetune/runs/{run_id}/{kind}", own(run_download)),
            Route("/finetune/searches/{study_id}/trials.csv", own(search_download)),
            Route("/finetune/batches/{batch_id}/{kind}", own(batch_result)),
            Route("/finetune/labels/{label_id}/{kind}", own(labels_download)),
            Route("/gradio_api/upload", partial(upload_limits.receive, store), methods=["POST"]),
            Route(auth.ISSUE, partial(auth.issue, store), methods=["POST"]),
        ],
        "middleware": [Middleware(auth.VisitorCookie, store=store)],
        "lifespan": lifespan,
        "exception_handlers": {FnIndexInferError: _not_found, FinetuneError: _not_found},
    }


def _not_found(request: Request, error: Exception | None = None) -> Response:
    message = str(error) if isinstance(error, FinetuneError) else "Not found."
    return PlainTextResponse(message, 404)


def watch(store: RunStore, request: Request) -> Response:
    """The parts of a run's live view that the browser does not have yet."""
    LocalContext.request.set(request)  # type: ignore[arg-type]  # its language is the answer's
    run = (store.everyone if store.visitor.admin else store).get(request.path_params["run_id"])
    parts, wait = live_updates.changes(store.everyone, run, request.query_params)
    headers = {"cache-control": "no-store", "x-wait": str(wait)}
    if not parts:
        return Response(status_code=204, headers=headers)
    return Response(orjson.dumps(parts), media_type="application/json", headers=headers)


def news(store: RunStore, request: Request) -> Response:
    """The progress of the run that a browser names, or else of the visitor's run in training."""
    LocalContext.request.set(request)  # type: ignore[arg-type]
    run_id, headers = request.path_params["run_id"], {"cache-control": "no-store"}
    run = store.get(run_id) if run_id else service.active_run(store)
    if run is None:
        return Response(status_code=204, headers=headers)
    summary = run.state()
    news = {"run": run.id, "name": run.title(), "title": run_view.brief(run, summary)}
    ended = summary.status in ENDED
    if not ended:  # as `feedback.html: queue` draws it
        news |= {"queue": str(len(service.waiting_runs(store)))}
    return JSONResponse(news | {"ended": ended}, headers=headers)


def run_download(store: RunStore, request: Request) -> Response:
    """A file of a run."""
    run, kind = store.get(request.path_params["run_id"]), request.path_params["kind"]
    prepared = run.state().prepared
    labels = prepared.labels if prepared else []
    files: dict[str, Callable[[], Iterable[str | bytes]]] = {
        "model.zip": lambda: downloads.model_zip(run),
        "script.zip": lambda: downloads.script_zip(run, store),
        "onnx.zip": lambda: ExportJob.of(run).zipped(),
        "events.csv": lambda: downloads.events_csv(run),
        "config.json": lambda: [run.config().to_json()],
        "ranking.csv": lambda: [ranking.ranking_csv(ranking.rank_runs(ranking.beside(store, run)))],
        "corrected.csv": lambda: [corrections.corrections_csv(run, labels)],
    }
    if kind not in files:
        raise StoreError("There is no such file.")
    return _attachment(files[kind](), f"{downloads.file_name(run.title())}-{kind}")


def runs_download(store: RunStore, request: Request) -> Response:
    """The table of all runs."""
    return _attachment([run_table.runs_csv(run_table.run_rows(store))], "runs.csv")


def search_download(store: RunStore, request: Request) -> Response:
    """The table of a search."""
    study = find_study(store, request.path_params["study_id"])
    return _attachment(
        [results.trials_csv(store, study)], f"{downloads.file_name(study.title)}-trials.csv"
    )


def batch_result(store: RunStore, request: Request) -> Response:
    """A predicted file as far as it is written, those of its rows that are unsure, or those that a
    person corrected."""
    batch = predict.PredictionJob.find(store, request.path_params["batch_id"])
    stem = batch.prediction_request().file.partition(".")[0][:80] or "rows"
    if request.path_params["kind"] == "corrected.csv":
        return _attachment([predict.corrected_csv(store, batch)], f"{stem}-corrected.csv")
    files = {"result": (batch.result, "predicted"), "review": (batch.review, "unsure")}
    file, name = files.get(request.path_params["kind"], (None, ""))
    if file is None:
        raise StoreError("There is no result yet.", "Wait for the first rows.")
    chunks = iter(partial(file.open("rb").read, 2**20), b"")
    return _attachment(chunks, f"{stem}-{name}{file.suffix}")


def labels_download(store: RunStore, request: Request) -> Response:
    """The answers of a labelling, or one of its files with what a model answered."""
    job, kind = LabelJob.find(store, request.path_params["label_id"]), request.path_params["kind"]
    stem = job.title.partition(".")[0][:80] or "texts"
    if kind in ("answers.csv", "answers.jsonl"):
        return _attachment([job.labelling.export(f".{kind.partition('.')[2]}")], f"{stem}-{kind}")
    files = {f"result-{n}": job.folder / "answers" / f"result-{n}.csv" for n in (1, 2)}
    if kind not in files or not files[kind].is_file():
        raise StoreError("There is no such file.")
    return _attachment(iter(partial(files[kind].open("rb").read, 2**20), b""), f"{stem}-{kind}.csv")


def _attachment(content: Iterable[str | bytes], name: str) -> Response:
    headers = {
        "content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        "cache-control": "private, no-store",
        "x-content-type-options": "nosniff",
    }
    media_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
    pieces = iter(content)
    first = next(pieces, "")  # an unreadable file raises before the answer begins
    return StreamingResponse(chain([first], pieces), media_type=media_type, headers=headers)
