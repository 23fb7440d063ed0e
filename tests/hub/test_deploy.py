"""The project deployed as a Space, and errors of the Hub, which never tell the token."""

import errno
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from huggingface_hub.errors import HfHubHTTPError

from finetune import hub_errors
from finetune.__main__ import main as command_line
from finetune.environment import hub_connection
from finetune.errors import PublishError
from finetune.hub import client, deploy
from finetune.hub.client import HubClient, NoAnswer
from tests.support.hub import TOKEN, Space

NAME, GPU = "ada/finetune", "t4-small"
OWN = {"app.py", "README.md", "requirements.txt", "finetune/__init__.py", "finetune/ui/page.py",
       "assets/picture.png"}  # fmt: skip
Send = Callable[..., str]


@pytest.fixture
def project(tmp_path):
    """A small clone of the project, with a file that git does not track."""
    root = tmp_path / "project"
    for name in OWN | {".env"}:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("---\nsdk: gradio\n---\n", encoding="utf-8")
    for arguments in (["init"], ["add", *OWN]):
        subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True)
    return root


@pytest.fixture
def send(project):
    """Deploy with a yes to the price; returns the address."""

    def deploy_project(name, hardware="", **options):
        agreed = {"hardware": hardware, "root": project} | options
        return deploy.deploy_space(name, TOKEN, lambda price: True, **agreed)

    return deploy_project


def nobody(price):
    return False


def space(hub, name=NAME):
    return hub.repos["space", name].space


def test_a_space_is_one_commit_of_what_git_tracks_on_its_hardware(hub, project, send, capsys):
    with pytest.raises(PublishError, match=r"Git tracks no app\.py and no README\.md"):
        deploy.project_files(project.parent)
    assert send(NAME, GPU, private=True) == f"{hub.url}/spaces/{NAME}"
    assert "0.40 USD an hour while it is awake" in capsys.readouterr().out
    repo = hub.repos["space", NAME]
    assert (repo.private, len(repo.commits), set(repo.files)) == (True, 1, OWN)
    assert repo.files["app.py"] == b"---\nsdk: gradio\n---\n"
    assert space(hub) == Space("gradio", GPU, sleep_time=3600)
    # Again it is an update, which removes what is missing.
    repo.commit("the Hub's", {".gitattributes": b"*.png filter=lfs"})
    space(hub).hardware = "cpu-basic"
    (project / "finetune" / "ui" / "page.py").unlink()
    (project / "app.py").write_text("print('new')")
    send(NAME, GPU)
    assert len(repo.commits) == 3
    assert set(repo.files) == OWN - {"finetune/ui/page.py"} | {".gitattributes"}
    assert repo.files["app.py"] == b"print('new')"
    assert space(hub) == Space("gradio", GPU, sleep_time=3600)
    deploy.deploy_space(NAME, TOKEN, nobody, "cpu-basic", root=project)
    hub.add_user(TOKEN, "ada", pro=True)
    for name in (NAME, "ada/new"):  # no hardware is bought that nobody named
        deploy.deploy_space(name, TOKEN, nobody, root=project)
        assert space(hub, name).hardware == "cpu-basic"


@pytest.mark.parametrize(
    ("former", "asked", "sleeps", "kept"),
    [
        *((GPU, asked, sleeps, 3600) for asked in (GPU, "") for sleeps in (None, -1)),
        *((GPU, asked, 600, 600) for asked in (GPU, "")),
        ("cpu-basic", GPU, 172_800, 3600),  # nobody has chosen the two days of free hardware
    ],
)
def test_a_billed_space_always_sleeps(hub, send, former, asked, sleeps, kept):
    hub.add_repo(NAME, "space", {"README.md": b""})
    space(hub).hardware, space(hub).sleep_time = former, sleeps
    send(NAME, asked)
    assert space(hub) == Space("gradio", GPU, sleep_time=kept)


@pytest.mark.parametrize("path", ["/api/repos/create$", "/commit/", "/hardware$"])
@pytest.mark.parametrize("done", [True, False])
def test_what_was_done_though_its_answer_was_lost_is_done_once(hub, send, path, done, monkeypatch):
    monkeypatch.setattr(client, "PAUSE", 0.01)
    monkeypatch.setattr(client, "APPEARS", 0.1)
    if path == "/hardware$":
        hub.add_repo(NAME, "space", {"README.md": b""})
    hub.fail("POST", path, 504, done=done)
    if not done:
        said = r"status 504\. The Hub may carry it out all the same"
        with pytest.raises(PublishError, match=said):
            send(NAME, GPU)
        return
    assert send(NAME, GPU) == f"{hub.url}/spaces/{NAME}"
    repo = hub.repos["space", NAME]
    assert len(repo.commits) == (2 if path == "/hardware$" else 1)
    assert set(repo.files) >= OWN
    assert space(hub) == Space("gradio", GPU, sleep_time=3600)


def test_nothing_is_billed_without_a_yes_to_its_price(hub, project, send):
    with pytest.raises(PublishError, match="t4-small is billed, and nobody has agreed"):
        deploy.deploy_space(NAME, TOKEN, nobody, GPU, bucket="ada/runs", root=project)
    game = hub.add_repo("ada/game", "space", {"app.py": b"a game", "README.md": b""})
    requests = [
        ({"name": "my Space"}, "'my Space' is not a repository name"),
        ({"bucket": "eve/runs"}, r"ada may not write to 'eve'"),
        ({"hardware": "t9-huge"}, r"no hardware 't9-huge'.* cpu-basic, t4-small"),
        ({"name": "ada/game"}, "exists and holds something else"),
    ]
    for request, words in requests:
        with pytest.raises(PublishError, match=words):
            send(**{"name": NAME, "hardware": GPU} | request)
    assert (list(hub.repos.values()), len(game.commits), hub.buckets) == ([game], 1, {})
    send(NAME, GPU)
    for hardware in ("", GPU):  # it has it, and a commit wakes it
        with pytest.raises(PublishError, match="nothing was done"):
            deploy.deploy_space(NAME, TOKEN, nobody, hardware, root=project)
    assert len(hub.repos["space", NAME].commits) == 1


def test_a_bucket_keeps_the_runs_before_the_first_start(hub, send):
    send(NAME, GPU, bucket="lovelace/runs")
    volume = {"type": "bucket", "source": "lovelace/runs", "mountPath": "/data"}
    assert [(bucket.id, bucket.private) for bucket in hub.buckets.values()] == [
        ("lovelace/runs", True)
    ]
    assert space(hub).volumes == [volume]
    assert space(hub).variables == {"FINETUNE_RUNS": "/data/runs"}
    paths = [path.rsplit("/", 2)[-2:] for _, path, status in hub.requests if status == 200]
    assert paths.index(["finetune", "variables"]) < paths.index(["commit", "main"])
    other = {"type": "model", "source": "ada/model", "mountPath": "/models", "readOnly": True}
    space(hub).volumes = [{**volume, "source": "ada/old"}, other]
    send(NAME, GPU, bucket="lovelace/runs")
    assert space(hub).volumes == [other, volume]


def test_the_project_itself_from_a_terminal(hub, monkeypatch, capsys):
    arguments = [NAME, "--hardware", GPU, "--bucket", "ada/runs"]
    for told in ("You are not signed in.", "t4-small is billed, and nobody has agreed"):
        assert command_line(["deploy", *arguments]) == 2
        assert f"error: {told}" in capsys.readouterr().err
        monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert hub.repos == {}
    assert command_line(["deploy", *arguments, "--yes"]) == 0
    output = capsys.readouterr()
    assert output.out.splitlines()[-1] == f"{hub.url}/spaces/{NAME}"
    assert TOKEN not in output.out + output.err
    sent = hub.repos["space", NAME].files
    assert set(sent) == set(deploy.project_files())
    assert sent["finetune/hub/deploy.py"] == Path(deploy.__file__).read_bytes()


def refusal(status):
    request = httpx2.Request("POST", "https://hub/api/models/ada/x")
    return HfHubHTTPError("no", response=httpx2.Response(status, request=request))


def asked(error):
    """Return the error of a failed call of the Hub's client."""

    def fail():
        raise error

    with pytest.raises(PublishError) as caught:
        HubClient(TOKEN).call("Sending", fail)
    return caught.value


@pytest.mark.parametrize(
    ("error", "cause", "words"),
    [
        (refusal(401), "token", "wrong or has expired"),
        (refusal(409), "behind", "committed in between"),
        (refusal(404), "missing", "no such repository"),
        (OSError(errno.ENOSPC, "No space left on device"), "disk", "Free some space"),
        (PermissionError(errno.EACCES, "no", "/kept"), "disk", "a folder that can be written"),
        (httpx2.ConnectError("refused"), "silent", "Check the network"),
        (httpx2.RemoteProtocolError("cut"), "silent", "Check the network"),
    ],
)
def test_why_the_hub_gave_nothing(error, cause, words):
    outer = RuntimeError("of another library")
    outer.__cause__ = error
    assert hub_errors.cause(outer).name == cause
    assert words in asked(outer).remedy
    explanation = hub_errors.explained("dataset", "ada/x", outer)
    assert "ada/x" in explanation.fact
    assert explanation.remedy


@pytest.mark.parametrize(
    ("status", "believed"),
    [(400, True), (402, True), (422, True), (408, False), (425, False), (429, False),
     (500, False), (520, False)],
)  # fmt: skip
def test_only_a_refusal_says_that_nothing_was_done(status, believed):
    error = asked(refusal(status))
    assert isinstance(error, NoAnswer) != believed
    assert f"Sending {'was refused' if believed else 'failed'} with status {status}" in error.fact
    said = asked(RuntimeError(f"Xet said no to {TOKEN} at http://x/y?sig=abc&t=1\nretry later."))
    assert "Xet said no to \u2026 at http://x/y?\u2026 retry later (RuntimeError)" in str(said)


def test_whether_the_hub_answers(hub, monkeypatch):
    hub.fail("HEAD", "^/$", 503)
    assert hub_connection.hub_is_reachable()  # a refusal is an answer
    hub.fail("HEAD", "^/$", 0, cut=True)
    assert not hub_connection.hub_is_reachable()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert not hub_connection.hub_is_reachable()
