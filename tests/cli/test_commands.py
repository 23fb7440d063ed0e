"""What the command line says of values and files that it cannot use: a fact and a remedy."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from safetensors.torch import load_file, save_file

import finetune
from finetune.__main__ import main
from finetune.cli import verbs
from tests.support import made_runs, toys


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "--config", "n" * 5000], "is too long. Give a shorter one."),
        (["train", "--run", "my first"], "a new run, which gets its name by --name 'my first'\n"),
        (["train", "--run", "-1"], "gets its name by --name=-1\n"),
        (["evaluate", "--run", "n" * 5000], "no run named nnn"),
        (["evaluate", "--run", "n\0"], "no run named n"),
    ],
)
def test_what_cannot_be_used_is_said(words, said, tmp_path, capsys):
    assert main([*words, "--runs", str(tmp_path / "runs")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error) < 700
    assert not list((tmp_path / "runs").glob("*"))


def test_what_python_offers_are_functions_and_classes():
    """A package of the same name would hide one."""
    assert all(callable(getattr(finetune, name)) for name in dir(finetune))


GATE = ["gate", "--new=a", "--old=b", "--golden={rows}"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*GATE, "--markdown={link}"], "--markdown is {link}, which another option names"),
        ([*GATE, "--json={new}", "--markdown={new}"], "--markdown is {new}, which another option"),
        ([*GATE, "--markdown={folder}"], "--markdown is {folder}, a folder: name a file"),
        ([*GATE, "--json={folder}/no/g.json"], "and there is no folder {folder}/no"),
        (["rank", "--csv={folder}"], "--csv is {folder}, a folder"),
        (
            ["monitor", "a", "b.csv", "--labels={rows}", "--aggregates={rows}"],
            "--aggregates is {rows}, which another option names",
        ),
        (["predict", "--run=a", "--file={rows}", "--out={link}"], "--out is {link}, which another"),
    ],
)
def test_a_result_that_would_replace_another_file_is_refused_first(words, said, tmp_path, capsys):
    names = {name: str(tmp_path / name) for name in ("rows", "link", "new", "folder")}
    names |= {name: f"{names[name]}.csv" for name in ("rows", "link", "new")}
    Path(names["rows"]).write_text("a person's")
    Path(names["link"]).symlink_to(names["rows"])
    Path(names["folder"]).mkdir()
    with pytest.raises(SystemExit) as ended:
        main([word.format(**names) for word in words])
    assert ended.value.code == 2
    assert said.format(**names) in capsys.readouterr().err
    assert Path(names["rows"]).read_text() == "a person's"


@pytest.mark.parametrize(
    ("file", "values", "said"),
    [
        ("config.json", {"model_type": {}}, "The saved model cannot be loaded"),
        ("tokenizer_config.json", {"unk_token": ""}, "The saved model cannot be loaded"),
        ("tokenizer_config.json", {"pad_token": "odd"}, "They do not belong together"),
    ],
)
def test_a_damaged_model_is_said(
    store, toy_checkpoint, tmp_path, capsys, monkeypatch, file, values, said
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # as the command does
    run = made_runs.monitored_run(store, toy_checkpoint)
    path = run.best / file
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    rows = made_runs.write_rows(tmp_path / "new.csv", made_runs.new_rows(60, 2))
    assert main(["monitor", str(run.folder), str(rows)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_runs_are_listed_and_a_file_predicted(store, toy_checkpoint, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # as the command does
    for name in ("ours", "theirs"):
        toys.finished_run(store, toy_checkpoint, name)
    runs = f"--runs={store.root}"
    assert main(["runs", runs]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["RUN", "WHEN", "STATUS"]
    assert [row.split()[0] for row in rows] == ["theirs", "ours"]
    assert all("finished" in row for row in rows)
    file, out = tmp_path / "new.csv", tmp_path / "out.csv"
    file.write_text("sentence1,sentence2\nthe cat sees a dog .,a cat sees the dog .\nbroken\n")
    words = ["predict", runs, "--run=ours", f"--file={file}", f"--out={out}"]
    assert main(words) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{out}: 2 rows (")
    assert "1 have no answer: error says why (line 3 has 1 fields" in second
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 2


def test_a_bug_is_no_answer_of_a_command(monkeypatch, capsys):
    """The exit status 1 is one of `gate` and `monitor`."""
    monkeypatch.setattr(verbs, "carry_out", Mock(side_effect=KeyError("a bug")))
    assert main(["monitor"]) == 2
    assert "KeyError: 'a bug'" in capsys.readouterr().err


def in_a_terminal(script):
    """What a script prints in a terminal, where libraries use colours."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.endswith(("_DISABLE_PROGRESS_BARS", "_VERBOSITY"))
    }
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", script]
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=variables)
    os.close(theirs)
    printed = b""
    while True:
        try:
            printed += os.read(ours, 65536)
        except OSError:  # as a terminal ends
            break
    os.close(ours)
    assert process.wait() == 0, printed.decode()
    return printed.decode()


@pytest.mark.long
def test_a_terminal_shows_our_words_without_reports_of_libraries(tmp_path):
    """Such as a coloured table of the weights that a checkpoint lacks, and bars of their own."""
    checkpoint = toys.write_checkpoint(tmp_path / "toy")
    weights = load_file(checkpoint / "model.safetensors")
    without_head = {name: w for name, w in weights.items() if "classifier" not in name}
    save_file(without_head, checkpoint / "model.safetensors", {"format": "pt"})
    settings = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(settings | {"architectures": ["BertModel"]}))
    pairs, runs = toys.write_pairs(tmp_path / "pairs"), f"--runs={tmp_path / 'runs'}"
    files = [f"--{split}_file={pairs / split}.csv" for split in ("train", "validation")]
    options = ["--max_length=32", "--max_steps=2", f"--checkpoint={checkpoint}"]
    printed = in_a_terminal(
        "from finetune.__main__ import main\n"
        "from finetune.runs.store import RunStore\n"
        f"main({['train', runs, *files, *options]})\n"
        f"(run,) = RunStore({str(tmp_path / 'runs')!r}).runs()\n"
        f"main(['evaluate', {runs!r}, '--run', run.id])"
    )
    assert "finished 2 steps" in printed
    assert '"pairs": 24' in printed.split("finished 2 steps")[1]
    for text in ("\x1b[", "LOAD REPORT", "Loading weights"):
        assert text not in printed
