"""What the command line says of values and files that it cannot use: a fact and a remedy."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from finetune import disk
from finetune.__main__ import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["search", "--over", "learning_rate="], "learning_rate has nothing after its ="),
        (
            ["train", "--learning_rate", "0,0001"],
            "with a point before its decimals and no commas, got",
        ),
        (["train", "--config", "."], "is a folder. Name a file."),
        (["train", "--config", "n" * 5000], "is too long. Give a shorter one."),
        (["train", "--config", "absent.json"], "There is no absent.json. See that its name"),
        (["train", "--config", __file__], "must be a JSON object of names and values"),
        (["train", "--accelerate_config", __file__], "which `accelerate config` has not written"),
        (["evaluate", "--run", "n" * 5000], "no such run"),
        (["evaluate", "--run", "n\0"], "no such run"),
    ],
)
def test_what_cannot_be_used_is_said(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--runs", str(tmp_path / "runs")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error) < 700
    assert not list((tmp_path / "runs").glob("*"))


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EACCES, errno.ENOTDIR])
def test_what_the_system_refuses_has_a_remedy(code: int) -> None:
    told = disk.explained(OSError(code, "as the system says it", "/a/file"))
    assert told is not None
    assert "/a/file" in told.fact
    assert told.remedy.endswith(".")
    assert disk.explained(ConnectionResetError("gone")) is None
