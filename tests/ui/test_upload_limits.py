"""Uploads: who may send them, how much, and how long they lie about; over raw HTTP."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError

from finetune.config import RunConfig
from finetune.errors import DataError
from finetune.inference.file_request import COLUMNS
from finetune.jobs import workers
from finetune.owners import LOCAL_USER
from finetune.runs.store import RunStore
from finetune.ui import app, auth, upload_limits
from tests.ui.test_visitors import ada, asks, bob, client, hers, shared

__all__ = ["ada", "bob", "hers", "shared"]
PAIRS = b"sentence1,sentence2,label\n" + b"a cat,a dog,1\nthe sun,the moon,0\n" * 20
MB = 2**20


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where files lie that have come; nothing else does."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "temporary"))
    upload_limits._folder.cache_clear()
    return tmp_path / "temporary"


@pytest.fixture
def url(folder: Path, store: RunStore) -> Iterator[str]:
    made = app.build(store)
    _, url, _ = app.launch(made, store, prevent_thread_lock=True, quiet=True)
    yield url
    made.close()
    upload_limits._folder.cache_clear()


def lying(folder: Path) -> list[Path]:
    """The files that have come and are not gone."""
    return [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size]


def send(who: httpx.Client, contents: bytes, name: str = "pairs.csv") -> httpx.Response:
    return who.post("gradio_api/upload", files={"files": (name, contents)})


def bring(who: httpx.Client, *paths: str | None) -> Any:
    """The Data tab's event for a training, a validation and a test file; what it says."""
    config = who.get("config").json()
    index = next(one["id"] for one in config["dependencies"] if one["api_name"] == "on_upload")
    sent = [p and {"path": p, "meta": {"_type": "gradio.FileData"}} for p in (*paths, None, None)]
    body = {"data": sent[:3], "fn_index": index, "session_hash": "x"}
    answer = who.post("gradio_api/run/predict", json=body).json()
    return answer.get("data", answer)


def test_only_who_is_known_may_send(url: str, shared: None, ada: str, folder: Path) -> None:
    for wrong in ("", "x" * 43):
        with client(url, wrong) as nobody:
            refused = send(nobody, PAIRS)
            assert (refused.status_code, "keeps no cookies" in refused.text) == (403, True)
    assert lying(folder) == []
    with client(url, ada) as mine:
        (path,) = send(mine, PAIRS).json()
    assert Path(path).read_bytes() == PAIRS
    assert Path(path).name == "pairs.csv"


def test_a_file_is_its_senders(url: str, ada: str, bob: str, store: RunStore) -> None:
    with client(url, ada) as mine, client(url, bob) as other:
        (path,) = send(mine, PAIRS).json()
        assert "not here any more" in str(bring(other, path))
        assert not (store.root / "uploads").exists()
        assert bring(mine, path)[0] == ""
    hers, his = (auth.visitor_store(store, asks(one)).uploads for one in (ada, bob))
    assert [one.file_names for one in hers.newest(9)] == [{"train": "pairs.csv"}]
    assert his.newest(9) == []


def test_a_file_is_gone_once_it_is_kept_and_used_again_from_there(
    url: str, folder: Path, store: RunStore
) -> None:
    """A validation file is added to a training file that came before."""
    with client(url) as mine:
        (train,) = send(mine, PAIRS, "train.csv").json()
        assert bring(mine, train)[0] == ""
        assert lying(folder) == []
        (validation,) = send(mine, PAIRS[:-20], "more.csv").json()
        assert "is missing" in bring(mine, None, validation)[0]  # refused for another reason
        assert bring(mine, train, validation)[0] == ""
        assert lying(folder) == []
        both = store.uploads.newest(9)[0]
        assert both.file_names == {"train": "train.csv", "validation": "more.csv"}
        (wrong,) = send(mine, b"x", "pairs.gz").json()
        assert "has no ending that is known" in bring(mine, wrong)[0]
        assert lying(folder) == []
        assert "not here any more" in bring(mine, wrong)[0]


def test_a_file_that_may_make_room_is_used_for_what_it_makes_room_for(
    url: str, ada: str, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINETUNE_MAX_UPLOAD_MB", "1")
    with client(url, ada) as mine:
        (train,) = send(mine, PAIRS + b"x" * (600 * 1024), "train.csv").json()
        assert bring(mine, train)[0] == ""
        (validation,) = send(mine, PAIRS, "more.csv").json()
        assert bring(mine, train, validation)[0] == ""
    assert len(auth.visitor_store(store, asks(ada)).uploads.newest(9)) == 1


def test_a_visitor_and_all_of_them_may_bring_so_much(
    url: str, ada: str, bob: str, folder: Path, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINETUNE_MAX_UPLOAD_MB", "3")
    monkeypatch.setenv("FINETUNE_MAX_ALL_UPLOADS_MB", "5")
    with client(url, ada) as mine, client(url, bob) as other:
        assert send(mine, b"x" * 2 * MB).status_code == 200
        refused = send(mine, b"x" * 2 * MB)
        assert (refused.status_code, "a visitor may have 3 MB" in refused.text) == (413, True)
        (path,) = send(other, PAIRS + b"x" * 2 * MB).json()
        assert bring(other, path)[0] == ""
        assert send(other, b"x" * 2 * MB).status_code == 413  # with hers and his that are kept
        auth.visitor_store(store, asks(bob)).create(RunConfig(dataset=f"upload/{'0' * 24}"))
        upload_limits.sweep(time.time() + 3700)  # hers are not waited for any longer
        assert lying(folder) == []
        assert send(other, b"x" * 2 * MB).status_code == 200
        kept = auth.visitor_store(store, asks(bob)).uploads.newest(1)[0].name
        auth.visitor_store(store, asks(bob)).create(RunConfig(dataset=kept))
        upload_limits.sweep(time.time() + 3700)
        assert send(other, b"x" * 2 * MB).status_code == 413  # a run needs what he has
    assert sum(upload_limits._held.values()) == 0


def stream(url: str, token: str, most: int) -> tuple[int, http.client.HTTPConnection]:
    """Send a file bit by bit without saying how long it is; the bytes that were taken."""
    connection = http.client.HTTPConnection(httpx.URL(url).host, httpx.URL(url).port, timeout=30)
    connection.putrequest("POST", "/gradio_api/upload")
    connection.putheader(auth.HEADER, token)
    connection.putheader("Content-Type", "multipart/form-data; boundary=x")
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    head = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.csv"\r\n\r\n'
    sent = 0
    try:
        for part in (head, *[b"x" * 2**16] * (most // 2**16)):
            connection.send(b"%x\r\n%s\r\n" % (len(part), part))
            sent += len(part)
    except OSError:  # hung up on
        pass
    return sent, connection


def wait_until_gone(folder: Path) -> None:
    deadline = time.monotonic() + 30
    while lying(folder) or sum(upload_limits._held.values()):
        assert time.monotonic() < deadline, lying(folder)
        time.sleep(0.05)


def test_a_request_ends_while_it_brings_too_much(
    url: str, ada: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINETUNE_MAX_UPLOAD_MB", "2")
    sent, connection = stream(url, ada, 200 * MB)
    connection.close()
    assert sent < 100 * MB
    wait_until_gone(folder)


def test_what_a_client_began_and_left_is_gone(
    url: str, ada: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _, connection = stream(url, ada, MB)
    deadline = time.monotonic() + 30
    while not upload_limits._held.total():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    connection.close()
    wait_until_gone(folder)
    assert "Traceback" not in capfd.readouterr().err


def test_a_form_that_is_none_leaves_nothing(
    url: str, ada: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with client(url, ada) as mine:
        for body, kind in (
            (b"x" * MB, "multipart/form-data"),
            (b"x" * MB, "multipart/form-data; boundary=x"),
            (b'--x\r\nContent-Disposition: form-data; name="files"\r\n\r\na\r\n--x--\r\n',
             "multipart/form-data; boundary=x"),
            (b'--x\r\nContent-Disposition: form-data; name="o"; filename="o"\r\n\r\na\r\n--x--\r\n',
             "multipart/form-data; boundary=x"),
            (b"{}", "application/json"),
        ):  # fmt: skip
            for query in ("", "?upload_id=x"):
                answer = mine.post(
                    f"gradio_api/upload{query}", content=body, headers={"content-type": kind}
                )
                assert answer.status_code == 400 or answer.json() == [], answer.text
                assert lying(folder) == []
    assert "Traceback" not in capfd.readouterr().err


def test_what_nobody_uses_is_swept(folder: Path, url: str, shared: None, ada: str) -> None:
    left = folder / "finetune-1-of-a-killed-app"
    left.mkdir(parents=True)
    (left / "old.csv").write_bytes(PAIRS)
    with client(url, ada) as mine:
        (path,) = send(mine, PAIRS).json()
    upload_limits.sweep(time.time() + 3500)
    assert len(lying(folder)) == 2
    upload_limits.sweep(time.time() + 3700)
    assert lying(folder) == [left / "old.csv"]
    upload_limits.sweep(time.time() + 25 * 3600)
    assert lying(folder) == []
    with pytest.raises(DataError, match=r"'pairs\.csv' is not here any more"):
        upload_limits.path(LOCAL_USER, path)


def test_no_file_comes_past_the_route(
    url: str, ada: str, folder: Path, hers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not fetched from an address for whoever names one; not in a call of an agent."""
    ways: dict[str, Any] = dict.fromkeys((f"{name}_column" for name in COLUMNS), "")
    ways |= dict.fromkeys(("both_orders", "threshold", "calibrated"), False)
    refused = "Files are not fetched here"
    with client(url, ada) as mine:
        for address in (f"{url}robots.txt", "https://192.0.2.1/pairs.csv"):
            file = {"path": address, "url": address, "meta": {"_type": "gradio.FileData"}}
            for event, data in (
                ("predict_batch", [hers.id, file, *ways.values()]), ("run_status", [file]),
            ):  # fmt: skip
                answer = mine.post(f"gradio_api/run/{event}", json={"data": data})
                assert refused in answer.text, event
        text = "data:text/csv;base64," + "YSxi" * 1000
        arguments = {"run_id": hers.id, "file": text, **ways}
        call: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        call |= {"params": {"name": "predict_batch", "arguments": arguments}}
        accepts = {"accept": "application/json, text/event-stream"}
        assert refused in mine.post("gradio_api/mcp/", json=call, headers=accepts).text
    assert lying(folder) == []
    path = tmp_path / "pairs.csv"
    path.write_bytes(PAIRS)
    program = Client(url, headers={auth.HEADER: ada}, verbose=False, analytics_enabled=False)
    monkeypatch.setattr(workers, "spawn_worker", lambda *values: None)
    program.predict(hers.id, handle_file(str(path)), *ways.values(), api_name="/predict_batch")
    assert lying(folder) == []
    nobody = Client(url, verbose=False, analytics_enabled=False)
    with pytest.raises((AppError, httpx.HTTPStatusError)):
        nobody.predict(hers.id, handle_file(str(path)), *ways.values(), api_name="/predict_batch")
    for one in (program, nobody):
        one.close()


def test_a_configuration_is_read_and_gone(url: str, folder: Path) -> None:
    with client(url) as mine:
        (path,) = send(mine, RunConfig(seed=7).to_json().encode(), "config.json").json()
        config = mine.get("config").json()
        index = next(one["id"] for one in config["dependencies"] if one["api_name"] == "on_load")
        file = {"path": path, "meta": {"_type": "gradio.FileData"}}
        body = {"data": [file], "fn_index": index, "session_hash": "x"}
        answer = mine.post("gradio_api/run/predict", json=body)
    assert "The configuration is in the form" in json.dumps(answer.json()["data"])
    assert lying(folder) == []
