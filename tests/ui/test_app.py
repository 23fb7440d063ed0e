"""What the app does at start, and what any tab does with markup and bugs."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

from finetune import owners
from finetune.config import RunConfig
from finetune.errors import ConfigError, DataError
from finetune.evaluation.probe import Probed, ProbeReport
from finetune.inference.predictor import Prediction
from finetune.metrics.intervals import Interval
from finetune.runs import events
from finetune.ui import feedback, run_view
from finetune.ui.html import macro
from tests.support.running import SLOW

ROOT = Path(__file__).resolve().parent.parent.parent
MARKUP = "<script>alert(1)</script>"


def test_the_app_starts_without_slow_libraries_and_asks_nobody_outside(tmp_path):
    code = f"""
        import socket, sys
        def audit(event, args):
            place = args[1] if event == "socket.connect" else args
            if event in ("socket.getaddrinfo", "socket.connect") and isinstance(place, tuple):
                host = place[0]
                if host not in (None, "127.0.0.1", "::1", "localhost", "0.0.0.0"):
                    print("OUTSIDE", host, file=sys.stderr, flush=True)
        sys.addaudithook(audit)
        import time, urllib.request
        sys.argv = ["app.py", "--runs", {str(tmp_path)!r}, "--port", "0"]
        import app
        from finetune.ui import app as page
        real = page.launch
        def launch(built, store, **options):
            real(built, store, prevent_thread_lock=True, quiet=True)
            status = urllib.request.urlopen(built.local_url).status
            print(status, sorted({SLOW!r} & set(sys.modules)))
            time.sleep(1)
            try:
                socket.create_connection(("192.0.2.1", 9), 0.01)
            except OSError:
                pass
        page.launch = launch
        app.main()
        """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "200 []" in done.stdout, done.stderr
    assert set(re.findall("OUTSIDE.*", done.stderr)) == {"OUTSIDE 192.0.2.1"}  # this test's own
    assert done.returncode == 0, done.stderr


def test_a_public_link_is_for_visitors(monkeypatch, tmp_path):
    """Whoever has the link must not be the owner of the runs here."""
    import app as program
    from finetune.ui import app as page

    options = {}
    monkeypatch.setenv("FINETUNE_VISITORS", "0")
    monkeypatch.setattr(sys, "argv", ["app.py", "--share", "--runs", str(tmp_path)])
    monkeypatch.setattr(program, "Scheduler", lambda *_, **__: SimpleNamespace(start=dict))
    monkeypatch.setattr(program, "lower_priority", dict)
    monkeypatch.setattr(program, "protect_owner", dict)
    monkeypatch.setattr(page, "launch", lambda *_, **named: options.update(named))
    program.main()
    assert options["share"]
    assert owners.policy().several_people


def test_markup_is_shown_and_a_bug_is_not(store, caplog):
    run = store.create(RunConfig(name=MARKUP))
    run.append(events.Failed(error=MARKUP, remedy=MARKUP))
    probed = [Probed(MARKUP, MARKUP), Probed(MARKUP, "", Interval(0.8, 0.75, 0.85))]
    for text in (
        run_view.verdict(store, run, run.state()),
        feedback.show_errors(DataError(MARKUP, MARKUP)),
        feedback.show_errors(ConfigError({MARKUP: MARKUP})),
        feedback.note(MARKUP),
        macro("answer/classes.html", "answer")(
            Prediction(MARKUP, {MARKUP: 1.0}, [0.0], 1, 0, 0.1), MARKUP
        ),
        macro("probe.html", "ranking")(ProbeReport(probed, None, "f1", 2, 1000)),
    ):
        assert "<script" not in text
        assert "&lt;script" in text
    assert "<code>hf &lt;b&gt;</code>" in feedback.note("Sign in with `hf <b>`.")
    # A bug is an apology with a reference.
    text = feedback.show_errors(RuntimeError("secret detail"))
    assert "secret detail" not in text
    assert text.split("reference ")[1][:8] in caplog.text
    assert "secret detail" in caplog.text
