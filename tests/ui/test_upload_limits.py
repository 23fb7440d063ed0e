"""Uploads: who may send them, how much, and how long they lie about; over raw HTTP."""

import contextlib
import html
import http.client
import os
import shutil
from pathlib import Path

import httpx
import pytest
from gradio.route_utils import delete_files_created_by_app

from finetune.config import RunConfig
from finetune.inference.file_request import COLUMNS
from finetune.jobs import workers
from finetune.ui import auth
from tests.support.tabs import asks
from tests.support.waiting import until

PAIRS = b"sentence1,sentence2,label\n" + b"a cat,a dog,1\nthe sun,the moon,0\n" * 20
MB = 2**20


@pytest.fixture
def folder(server):
    """Where uploaded files are; nothing else is."""
    folder = Path(os.environ["GRADIO_TEMP_DIR"])
    for part in folder.iterdir():  # of other tests
        shutil.rmtree(part) if part.is_dir() else part.unlink()
    yield folder
    delete_files_created_by_app(server.blocks, None)


def lying(folder):
    """The uploaded files that were not removed yet; the app may remove one meanwhile."""
    files = [Path(parent, name) for parent, _, names in os.walk(folder) for name in names]
    return [path for path in files if path.is_file() and path.stat().st_size]


def send(who, contents, name="pairs.csv"):
    return who.post("gradio_api/upload", files={"files": (name, contents)})


def bring(server, who, *paths):
    """What the Data tab says to a training, a validation and a test file."""
    files = [p and {"path": p, "meta": {"_type": "gradio.FileData"}} for p in (*paths, None, None)]
    answer = server.run(who, "on_upload", files[:3]).json()
    outputs = [block.elem_id for block in server.blocks.fns[server.event("on_upload")].outputs]
    return str(answer["data"][outputs.index("data-message")] if "data" in answer else answer)


def test_a_file_is_its_senders_who_must_be_known(server, ada, bob, folder, store, tmp_path):
    for wrong in ("", "x" * 43):
        with server.client(wrong) as nobody:
            refused = send(nobody, PAIRS)
            assert (refused.status_code, "keeps no cookies" in refused.text) == (403, True)
    assert lying(folder) == []
    with server.client(ada) as mine, server.client(bob) as other:
        (path,) = send(mine, PAIRS).json()
        assert (Path(path).read_bytes(), Path(path).name) == (PAIRS, "pairs.csv")
        (his,) = send(other, PAIRS).json()
        sideways = f"{his}/../../../../{Path(path).relative_to(Path(path).parents[3])}"
        for name in (path, sideways):
            assert "no longer available" in bring(server, other, name)
        secret = tmp_path / "secret.csv"  # of the machine's own
        secret.write_bytes(PAIRS)
        assert "error" in bring(server, other, str(secret))
        assert not (store.root / "uploads").exists()
        assert bring(server, mine, path) == ""
    own, others = (auth.visitor_store(store, asks(token)).uploads for token in (ada, bob))
    assert [upload.file_names for upload in own.newest(9)] == [{"train": "pairs.csv"}]
    assert others.newest(9) == []


def test_a_file_is_gone_once_it_is_kept_and_used_again_from_there(server, folder, store):
    """A validation file is added to a training file that came before; what is refused or was
    removed is named; a configuration is in the form."""
    with server.client() as mine:
        (train,) = send(mine, PAIRS, "train.csv").json()
        assert bring(server, mine, train) == ""
        assert lying(folder) == []
        (validation,) = send(mine, PAIRS[:-20], "more.csv").json()
        # Refused for another reason than itself: it stays.
        assert "is missing" in bring(server, mine, None, validation)
        assert bring(server, mine, train, validation) == ""
        assert lying(folder) == []
        both = store.uploads.newest(9)[0]
        assert both.file_names == {"train": "train.csv", "validation": "more.csv"}
        (wrong,) = send(mine, b"x", "pairs.gz").json()
        assert "has no ending that is known" in bring(server, mine, wrong)
        assert lying(folder) == []
        assert "no longer available" in bring(server, mine, wrong)
        (removed,) = send(mine, PAIRS).json()
        delete_files_created_by_app(server.blocks, -1)  # as after an hour, for -1 second
        assert "'pairs.csv' is no longer available" in html.unescape(bring(server, mine, removed))
        (path,) = send(mine, RunConfig(seed=7).to_json().encode(), "config.json").json()
        file = {"path": path, "meta": {"_type": "gradio.FileData"}}
        assert "The configuration is in the form" in server.run(mine, "on_load", [file]).text
        assert lying(folder) == []


def test_a_visitor_and_all_of_them_may_bring_so_much(server, ada, bob, folder, store, monkeypatch):
    monkeypatch.setenv("FINETUNE_MAX_UPLOAD_MB", "3")
    monkeypatch.setenv("FINETUNE_MAX_ALL_UPLOADS_MB", "5")
    with server.client(ada) as mine, server.client(bob) as other:
        assert send(mine, b"x" * 2 * MB).status_code == 200
        refused = send(mine, b"x" * 2 * MB)
        assert (refused.status_code, "a visitor may store 3 MB" in refused.text) == (413, True)
        (path,) = send(other, PAIRS + b"x" * 2 * MB).json()
        assert bring(server, other, path) == ""
        assert send(other, b"x" * 2 * MB).status_code == 413  # with hers and his that are kept
        delete_files_created_by_app(server.blocks, -1)
        assert lying(folder) == []
        assert send(other, b"x" * 2 * MB).status_code == 200
        kept = auth.visitor_store(store, asks(bob)).uploads.newest(1)[0].name
        auth.visitor_store(store, asks(bob)).create(RunConfig(dataset=kept))
        delete_files_created_by_app(server.blocks, -1)
        assert send(other, b"x" * 2 * MB).status_code == 413  # a run needs what he has


def stream(url, token, most):
    """Send a file bit by bit without saying how long it is; the bytes that were taken."""
    connection = http.client.HTTPConnection(httpx.URL(url).host, httpx.URL(url).port)
    connection.putrequest("POST", "/gradio_api/upload")
    connection.putheader(auth.HEADER, token)
    connection.putheader("Content-Type", "multipart/form-data; boundary=x")
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    head = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.csv"\r\n\r\n'
    sent = 0
    with contextlib.suppress(OSError):  # hung up on
        for part in (head, *[b"x" * 2**16] * (most // 2**16)):
            connection.send(b"%x\r\n%s\r\n" % (len(part), part))
            sent += len(part)
    return sent, connection


def test_a_request_ends_while_it_brings_too_much(server, ada, folder, monkeypatch, capfd):
    monkeypatch.setenv("FINETUNE_MAX_UPLOAD_MB", "2")
    sent, connection = stream(server.url, ada, 200 * MB)
    connection.close()
    assert sent < 100 * MB
    until(lambda: not lying(folder))
    _, connection = stream(server.url, ada, MB)
    until(lambda: bool(lying(folder)))
    connection.close()
    until(lambda: not lying(folder))
    with server.client(ada) as mine:  # and is counted no more
        assert send(mine, b"x" * int(1.5 * MB)).status_code == 200
    assert "Traceback" not in capfd.readouterr().err


def test_a_form_that_is_none_leaves_nothing(server, ada, folder, capfd):
    with server.client(ada) as mine:
        multipart = "multipart/form-data; boundary=x"
        part = b"Content-Disposition: form-data; name="
        for body, kind in (
            (b"x" * MB, "multipart/form-data"), (b"x" * MB, multipart),
            (b"--x\r\n" + part + b'"files"\r\n\r\na\r\n--x--\r\n', multipart),
            (b"--x\r\n" + part + b'"o"; filename="o"\r\n\r\na\r\n--x--\r\n', multipart),
            (b"{}", "application/json"),
        ):  # fmt: skip
            for query in ("", "?upload_id=x"):
                path, headers = f"gradio_api/upload{query}", {"content-type": kind}
                answer = mine.post(path, content=body, headers=headers)
                assert answer.status_code == 400 or answer.json() == [], answer.text
                assert lying(folder) == []
    assert "Traceback" not in capfd.readouterr().err


def test_no_file_comes_past_the_route(server, ada, folder, hers, monkeypatch):
    """Not fetched from an address for whoever names one; not in a call of an agent."""
    ways = dict.fromkeys((f"{name}_column" for name in COLUMNS), "")
    ways |= dict.fromkeys(("both_orders", "threshold", "calibrated"), False)
    refused = "Files are not fetched here"
    with server.client(ada) as mine:
        for address in (f"{server.url}robots.txt", "https://192.0.2.1/pairs.csv"):
            file = {"path": address, "url": address, "meta": {"_type": "gradio.FileData"}}
            for event, data in (
                ("predict_batch", [hers.id, file, *ways.values()]), ("run_status", [file]),
            ):  # fmt: skip
                answer = mine.post(f"gradio_api/run/{event}", json={"data": data})
                assert refused in answer.text, event
        text = "data:text/csv;base64," + "YSxi" * 1000
        arguments = {"run_id": hers.id, "file": text, **ways}
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        call |= {"params": {"name": "predict_batch", "arguments": arguments}}
        accepts = {"accept": "application/json, text/event-stream"}
        assert refused in mine.post("gradio_api/mcp/", json=call, headers=accepts).text
    assert lying(folder) == []
    monkeypatch.setattr(workers, "spawn_worker", lambda job, **_: None)
    with server.client(ada) as mine, server.client() as nobody:
        for who, ending, left in ((mine, "complete", 0), (nobody, "error", 1)):
            file = {"path": send(mine, PAIRS).json()[0], "meta": {"_type": "gradio.FileData"}}
            told = server.call(who, "predict_batch", hers.id, file, *ways.values())
            assert f"event: {ending}" in told
            assert len(lying(folder)) == left
