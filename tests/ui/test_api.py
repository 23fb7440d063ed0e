"""The page for programs, by `gradio_client` and by plain HTTP; and what the app keeps of a call, in
the process that serves it."""

import contextlib
import gc
import tracemalloc

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

from finetune.engines.base import EngineSpec, write_spec
from finetune.jobs import scheduler, workers
from finetune.ui import app
from tests.support import toys
from tests.support.waiting import until

PAIR = ("the cat sees a dog .", "a cat sees the dog .")


@pytest.fixture
def store(server):
    return server.store


@pytest.fixture(scope="module")
def client(served):
    opened = Client(served.url, verbose=False, analytics_enabled=False)
    yield opened
    opened.close()


def test_programs_without_gradios_client_and_agents_leave_arguments_out(server, finished, tmp_path):
    path = toys.write_pairs(tmp_path) / "train.csv"
    with server.client() as web:
        file = web.post("gradio_api/upload", files={"files": path.open("rb")}).json()[0]
        uploaded = {"path": file, "meta": {"_type": "gradio.FileData"}}
        for name, arguments in (("predict", PAIR), ("predict_batch", (uploaded,))):
            answer = server.call(web, name, finished.id, *arguments)
            assert "event: complete" in answer, answer
        assert "event: error" in server.call(web, "run_status")
        accepts = {"accept": "application/json, text/event-stream"}
        for run, said in ((finished.id, "not_equivalent"), ("../x", "no such run")):
            values = {"run_id": run, "sentence1": "a cat .", "sentence2": "a dog ."}
            call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
            call |= {"params": {"name": "predict", "arguments": values}}
            assert said in web.post("gradio_api/mcp/", json=call, headers=accepts).text


def test_a_pair_is_answered_and_explained(client, finished):
    answer = client.predict(finished.id, *PAIR, api_name="/predict")
    assert answer["label"] in answer["probabilities"]
    assert sum(answer["probabilities"].values()) == pytest.approx(1.0, abs=1e-4)
    reasons = client.predict(finished.id, *PAIR, api_name="/explain")
    assert reasons["label"] == answer["label"]
    assert [word["text"] for word in reasons["words"]] == " ".join(PAIR).split()
    assert reasons["tried"] >= len(reasons["flips"])
    for name in ("/predict", "/explain"):
        for wrong in ("../x", "/etc/passwd", "x" * 1000, ""):
            with pytest.raises(AppError, match="no such run"):
                client.predict(wrong, *PAIR, api_name=name)
        with pytest.raises(AppError, match="sentence2 is empty"):
            client.predict(finished.id, "the cat", "", api_name=name)


def test_a_program_starts_stops_and_resumes_a_run(client, store, toy_checkpoint, monkeypatch):
    monkeypatch.setattr(workers, "WORKER", "tests.support.stand_in")  # trains nothing
    config = {"checkpoint": str(toy_checkpoint), "max_steps": 100_000, "max_length": 32}
    run = client.predict(config, api_name="/start_run")["id"]

    def status():
        return str(client.predict(run, api_name="/run_status")["status"])

    with contextlib.closing(scheduler.Scheduler(store, every=0.1)) as starting:
        starting.start()
        until(lambda: status() == "running" and store.get(run).has_model())
        client.predict(run, False, api_name="/stop_run")
        until(lambda: status() == "stopped")
        client.predict(run, api_name="/resume_run")
        until(lambda: status() == "running")
        client.predict(run, True, api_name="/stop_run")
        until(lambda: status() == "stopped")
    assert not store.get(run).has_model()
    # A program agrees to the price of a job before one is begun.
    options = {"flavor": "t4-small", "minutes": 30, "price": 0.4}
    spec = EngineSpec(engine="hub-job", options=options, attempt=1, submitted=1.0)
    write_spec(store.get(run), spec)
    with pytest.raises(AppError, match=r"on t4-small: \$0.40 an hour, at most \$0.20. Send agreed"):
        client.predict(run, api_name="/resume_run")


def test_a_model_is_published_by_a_program(client, finished, hub):
    for odd in ((finished.id, "a", 7), (finished.id, ["a"], "b")):
        with pytest.raises(AppError, match=r"is no text\. Send it as one\."):
            client.predict(*odd, api_name="/publish")
    push = (finished.id, "from-a-program", "hub-token-of-ada")
    pushed = client.predict(*push, True, api_name="/publish")
    assert pushed["created"]
    assert pushed["url"].endswith("/ada/from-a-program")
    same = client.predict(*push, update=True, api_name="/publish")  # an answer was lost
    assert same["commit"] == pushed["commit"]
    hub.repos["model", "ada/from-a-program"].commit("by hand", {"LICENSE": b"mine"})
    with pytest.raises(AppError, match=r"ada/from-a-program exists already\. Send update as True"):
        client.predict(*push, api_name="/publish")
    assert not client.predict(*push, update=True, api_name="/publish")["created"]
    with pytest.raises(AppError, match="not signed in"):
        client.predict(finished.id, "again", "", api_name="/publish")


ODD_TEXTS = [
    "", " \n\t ", "x" * 19_999, "the " * 250_000, "\U0001f431\u200d\U0001f436" * 2000,
    "e\u0301" * 9000,
    "\x00\x01\x1b[31m\x7f\ufeff", "\u202ecat\u202c sees \u2067dog", "<b>cat</b>&lt;" * 900,
    None, True, 7, 1e308, ["the cat"], {"the": "cat"},
]  # fmt: skip


@pytest.mark.long
def test_no_odd_text_is_the_apps_fault(server, finished):
    with server.client() as web:
        for text in ODD_TEXTS:
            answers = [server.call(web, "explain", finished.id, PAIR[0], text)]
            for pair in ((text, PAIR[1]), (PAIR[0], text)):
                answers += [
                    server.call(web, "predict", finished.id, *pair, True),
                    server.run(web, "on_ask", [finished.id, *pair, True, True, False]).text,
                ]
            server.run(web, "on_why", [None])
            assert [answer for answer in answers if "our fault" in answer] == []


LONG = "\u732b" * 500_000  # a megabyte


def leaves_little(call, calls=30, most=300_000):
    """True if each of so many calls, after a first one, leaves so many bytes behind at most, once
    the last ones have ended."""
    call(0)
    tracemalloc.start()
    try:
        for number in range(1, calls + 1):
            call(number)
        until(lambda: gc.collect() >= 0 and tracemalloc.get_traced_memory()[0] < calls * most)
        return True
    finally:
        tracemalloc.stop()


def test_a_visitor_who_comes_and_goes_leaves_little(server, finished):
    """Gradio keeps 0.8 MB of settings, and what was sent, for each of the last 10,000 sessions."""
    with server.client() as web:

        def visit(number):
            assert server.run(web, "on_shown_part", [None], f"v{number}").status_code == 200

        def ask(number):  # a program, in a session of its own each time
            answer = server.call(web, "explain", finished.id, f"{number}{LONG}", LONG)
            assert "event: error" in answer

        assert leaves_little(visit)
        # Three megabytes were sent each time. A server's thread keeps its last call, and a busy
        # machine has several of them.
        assert leaves_little(ask, most=1_000_000)


def test_a_lone_surrogate_is_answered(server, finished):
    """It has no place in the page's address."""
    head = {"content-type": "application/json"}
    values = f'["{finished.id}", "\\ud83d cat", "a cat", false, true, false]'
    body = f'{{"data": {values}, "fn_index": {server.event("on_ask")}, "session_hash": "odd"}}'
    with server.client() as web:
        answer = web.post("gradio_api/run/predict", content=body, headers=head).text
    assert "ft-answer" in answer
    assert "sentence1=%3F+cat" in answer


def test_what_was_asked_in_a_session_is_known_in_it_alone(server, finished):
    with server.client() as web:

        def why(session):
            body = {"data": [None], "fn_index": server.event("on_why"), "session_hash": session}
            web.post("gradio_api/queue/join", json=body)
            return web.get("gradio_api/queue/data", params={"session_hash": session}).text

        values = [finished.id, "the cat sees a dog .", "a cat sees the dog .", False, True, False]
        assert "ft-answer" in server.run(web, "on_ask", values, "asked").text
        assert "Nothing was asked yet" in why("another")
        assert "Nothing was asked yet" not in why("asked")
        # The session used longest ago is forgotten.
        for number in range(app.MOST_SESSIONS + 5):
            assert server.run(web, 0, [], f"many{number}").status_code == 200
    assert len(server.blocks.state_holder.session_data) <= app.MOST_SESSIONS
