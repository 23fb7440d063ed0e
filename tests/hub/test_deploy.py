"""This project as a Space, with the real client over HTTP."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from finetune.errors import PublishError
from finetune.hub import deploy
from finetune.hub.deploy import SpaceRequest
from tests.conftest import TOKEN
from tests.support.hub import LoopbackHub, Space

NAME, GPU = "ada/finetune", "t4-small"
OWN = {"app.py", "README.md", "requirements.txt", "finetune/__init__.py", "finetune/ui/page.py",
       "assets/picture.png"}  # fmt: skip
SLEEPS = "It sleeps after 60 minutes without a visitor, and costs nothing then."


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small clone of the project, with a file that git does not track."""
    root = tmp_path / "project"
    for name in OWN | {".env"}:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("---\nsdk: gradio\n---\n", encoding="utf-8")
    for arguments in (["init"], ["add", *OWN]):
        subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True)
    return root


def send(
    request: SpaceRequest,
    token: str | None,
    root: Path,
    say: Callable[[str], None] = lambda line: None,
) -> str:
    """Deploy as somebody who says yes to the price."""
    return deploy.deploy_space(request, token, root, say, lambda price: True)


def space(hub: LoopbackHub, name: str = NAME) -> Space:
    space = hub.repos["space", name].space
    assert space is not None
    return space


def test_exactly_what_git_tracks_is_sent(project: Path) -> None:
    (project / "requirements.txt").unlink()
    assert set(deploy.project_files(project)) == OWN - {"requirements.txt"}
    for folder in (project / "assets", project.parent):
        with pytest.raises(PublishError, match=r"Git tracks no app\.py and no README\.md"):
            deploy.project_files(folder)


def test_a_new_space_is_one_commit_on_its_hardware(hub: LoopbackHub, project: Path) -> None:
    lines: list[str] = []
    url = send(SpaceRequest(NAME, GPU, private=True), TOKEN, project, lines.append)
    assert url == f"{hub.url}/spaces/{NAME}"
    repo = hub.repos["space", NAME]
    assert repo.private
    assert len(repo.commits) == 1
    assert set(repo.files) == OWN
    assert repo.files["app.py"] == b"---\nsdk: gradio\n---\n"
    assert space(hub) == Space("gradio", GPU, sleep_time=3600)
    assert lines == [
        "Signed in as ada. t4-small: Nvidia T4 - small, 0.40 USD an hour while it is awake.",
        f"Made the private Space {NAME}.",
        "Sent 6 files, 0.0 MB.",
        SLEEPS,
    ]


def test_again_is_an_update_that_removes_what_is_gone(hub: LoopbackHub, project: Path) -> None:
    send(SpaceRequest(NAME, GPU), TOKEN, project)
    repo = hub.repos["space", NAME]
    repo.commit("the Hub's", {".gitattributes": b"*.png filter=lfs"})
    space(hub).hardware = "cpu-basic"
    (project / "finetune" / "ui" / "page.py").unlink()
    (project / "app.py").write_text("print('new')")
    lines: list[str] = []
    send(SpaceRequest(NAME, GPU, sleep_time=3600), TOKEN, project, lines.append)
    assert len(repo.commits) == 3
    assert set(repo.files) == OWN - {"finetune/ui/page.py"} | {".gitattributes"}
    assert repo.files["app.py"] == b"print('new')"
    assert space(hub) == Space("gradio", GPU, sleep_time=3600)
    assert lines[-1] == SLEEPS
    deploy.deploy_space(SpaceRequest(NAME, "cpu-basic"), TOKEN, project)
    hub.add_user(TOKEN, "ada", pro=True)
    for name in (NAME, "ada/new"):  # no hardware is bought that nobody named
        deploy.deploy_space(SpaceRequest(name), TOKEN, project)
        assert space(hub, name).hardware == "cpu-basic"


@pytest.mark.parametrize("sleeps", [None, -1, 600])
def test_what_is_billed_always_sleeps(hub: LoopbackHub, project: Path, sleeps: int | None) -> None:
    hub.add_repo(NAME, "space", {"README.md": b""})
    for hardware in (GPU, ""):  # asked for, and what it has
        space(hub).sleep_time = sleeps
        send(SpaceRequest(NAME, hardware), TOKEN, project)
        assert space(hub).sleep_time == (600 if sleeps == 600 else 3600)


def test_nothing_is_billed_without_a_yes_to_its_price(hub: LoopbackHub, project: Path) -> None:
    prices: list[str] = []

    def no(price: str) -> bool:
        prices.append(price)
        return False

    request = SpaceRequest(NAME, GPU, bucket="ada/runs")
    with pytest.raises(PublishError, match="t4-small is billed, and nobody has agreed"):
        deploy.deploy_space(request, TOKEN, project, agrees=no)
    assert prices == ["t4-small: Nvidia T4 - small, 0.40 USD an hour while it is awake"]
    assert (hub.repos, hub.buckets) == ({}, {})
    send(SpaceRequest(NAME, GPU), TOKEN, project)
    for hardware in ("", GPU):  # it has it, and a commit wakes it
        with pytest.raises(PublishError, match="nothing was done"):
            deploy.deploy_space(SpaceRequest(NAME, hardware), TOKEN, project)
    assert len(hub.repos["space", NAME].commits) == 1


def test_a_bucket_keeps_the_runs_before_the_first_start(hub: LoopbackHub, project: Path) -> None:
    request = SpaceRequest(NAME, GPU, bucket="lovelace/runs")
    send(request, TOKEN, project)
    volume = {"type": "bucket", "source": "lovelace/runs", "mountPath": "/data"}
    assert hub.buckets == {"lovelace/runs": True}
    assert space(hub).volumes == [volume]
    assert space(hub).variables == {"FINETUNE_RUNS": "/data/runs"}
    paths = [path.rsplit("/", 2)[-2:] for _, path, status in hub.requests if status == 200]
    assert paths.index(["finetune", "variables"]) < paths.index(["commit", "main"])
    other = {"type": "model", "source": "ada/model", "mountPath": "/models", "readOnly": True}
    space(hub).volumes = [{**volume, "source": "ada/old"}, other]
    send(request, TOKEN, project)
    assert space(hub).volumes == [other, volume]


def test_another_space_is_not_written_over(hub: LoopbackHub, project: Path) -> None:
    hub.add_repo("ada/game", "space", {"app.py": b"a game", "README.md": b""})
    with pytest.raises(PublishError, match="exists and holds something else"):
        send(SpaceRequest("ada/game"), TOKEN, project)
    assert hub.repos["space", "ada/game"].files["app.py"] == b"a game"
    hub.add_repo("ada/empty", "space", {"README.md": b"", ".gitattributes": b""})
    send(SpaceRequest("ada/empty", GPU), TOKEN, project)
    assert set(hub.repos["space", "ada/empty"].files) > OWN


@pytest.mark.parametrize(
    ("request_", "token", "words"),
    [
        (SpaceRequest("finetune"), TOKEN, "'finetune' does not say whose it is"),
        (SpaceRequest(NAME, GPU, bucket="runs"), TOKEN, "'runs' does not say whose it is"),
        (SpaceRequest(NAME, GPU, bucket="eve/runs"), TOKEN, r"ada may not write to 'eve'"),
        (SpaceRequest(NAME, "t9-huge"), TOKEN, r"no hardware 't9-huge'.* cpu-basic, t4-small"),
        (SpaceRequest(NAME, GPU), "nobodys-token", "sign-in was refused with status 401"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_made(
    hub: LoopbackHub, project: Path, request_: SpaceRequest, token: str | None, words: str
) -> None:
    with pytest.raises(PublishError, match=words) as caught:
        send(request_, token, project)
    assert not token or token not in str(caught.value)
    assert (hub.repos, hub.buckets) == ({}, {})


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/volumes", 404, "Mounting ada/runs was refused.*no such repository"),
        ("/commit/", 500, "Sending the files to ada/finetune was refused with status 500.*a while"),
        ("/runtime", 401, "expired; make a new one"),
    ],
)
def test_a_refusal_says_what_and_what_to_do(
    hub: LoopbackHub, project: Path, path: str, status: int, words: str
) -> None:
    hub.fail("", path, status, times=9)
    request = SpaceRequest(NAME, GPU, bucket="ada/runs")
    with pytest.raises(PublishError, match=words) as caught:
        send(request, TOKEN, project)
    assert TOKEN not in str(caught.value)
    hub.faults.clear()
    send(request, TOKEN, project)
    assert len(hub.repos["space", NAME].commits) == 1
    space(hub).hardware = "cpu-basic"
    hub.add_user(TOKEN, "ada", pays=False)
    with pytest.raises(PublishError, match=r"Asking for t4-small .*402"):
        send(request, TOKEN, project)


@pytest.mark.parametrize(("typed", "hardware"), [("yes", [GPU]), ("", []), ("n", [])])
def test_at_a_terminal_one_is_asked(
    hub: LoopbackHub, typed: str, hardware: list[str], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: print(question) or typed)
    monkeypatch.setattr(deploy, "stored_token", lambda: TOKEN)
    assert deploy.main([NAME, "--hardware", GPU]) == (not hardware)
    printed = capsys.readouterr().out
    assert printed.index("0.40 USD an hour") < printed.index("Go on? [y/N]")
    assert [repo.space.hardware for repo in hub.repos.values() if repo.space] == hardware


def test_a_dry_run_lists_the_files_and_asks_nobody(
    hub: LoopbackHub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deploy.main([NAME, "--hardware", GPU, "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert " finetune/hub/deploy.py\n" in printed
    assert "MB would go to ada/finetune. What that costs: https://" in printed
    assert ".pyc" not in printed
    assert hub.requests == []


def test_the_project_itself_from_a_terminal(
    hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deploy.main([NAME]) == 1
    assert "error: You are not signed in." in capsys.readouterr().err
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    arguments = [NAME, "--hardware", GPU, "--bucket", "ada/runs"]
    with pytest.raises(SystemExit):
        deploy.main([*arguments, "--sleep_time", "-1"])  # would never sleep
    assert deploy.main(arguments) == 1
    assert "t4-small is billed, and nobody has agreed" in capsys.readouterr().err
    assert hub.repos == {}
    assert deploy.main([*arguments, "--yes"]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1] == f"{hub.url}/spaces/{NAME}"
    assert TOKEN not in printed.out + printed.err
    sent = hub.repos["space", NAME].files
    assert set(sent) == set(deploy.project_files())
    assert sent["finetune/hub/deploy.py"] == Path(deploy.__file__).read_bytes()
