"""What a person or a program notices of the product, compared with what it was before."""

import asyncio
import io
import json
import os
import re
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, is_dataclass, replace

import numpy as np
import onnxruntime
import pytest
from transformers import AutoTokenizer

import finetune
from finetune.__main__ import OWN, main
from finetune.api.verb import VERBS
from finetune.config import RunConfig
from finetune.jobs import check
from tests.goldens import golden
from tests.goldens.conftest import words_of
from tests.support import toy_runs
from tests.support.hub import TOKEN

FILES = golden.FOLDER / "files"  # a folder of each case: files as people have them, and one oddity


def status_of(words):
    try:
        return main(words)
    except SystemExit as end:
        return int(end.code or 0)


def command(words, capsys):
    """The exit status of a command and what it printed: its answer, or else its last line."""
    status = status_of(words)
    printed = capsys.readouterr()
    text = printed.out or "".join(printed.err.splitlines(keepends=True)[-1:])
    if text.startswith("{"):
        text = golden.laid_out(json.loads(text)) + "\n"
    return f"exit status {status}\n{text}"


@pytest.mark.parametrize("case", sorted(path.name for path in FILES.iterdir()))
def test_files_are_read_as_before(case, tmp_path, capsys):
    options = [
        f"--{path.stem if path.stem in ('validation', 'test') else 'train'}_file={path}"
        for path in (FILES / case).iterdir()
    ]
    told = command(["check", "--json", f"--runs={tmp_path / 'runs'}", *options], capsys)
    golden.compare(f"check/{case}.txt", told, FOLDER=FILES / case)


@pytest.mark.parametrize("name", ["", *OWN, *VERBS])
def test_a_command_helps_as_before(name, capsys):
    told = command([*name.split(), "--help"], capsys)
    usage, others = told.split("\n\n", 1)  # versions of Python break the lines otherwise
    golden.compare(f"help/{name or 'finetune'}.txt", f"{' '.join(usage.split())}\n\n{others}")


def test_wrong_commands_are_refused_as_before(trained, tmp_path, capsys):
    store = trained.store(tmp_path / "runs")
    rows = trained.file(toy_runs.CLASSES, "test")
    (tmp_path / "broken.json").write_text('{"learning_rate": ')
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "unknown.json").write_text('{"learning_rat": 1}')
    told, kept = [], (golden.FOLDER / "wrong.txt").read_text(encoding="utf-8")
    for text in re.findall(r"^\$ (.*)", kept, re.MULTILINE):  # where another is added
        words = text.format(folder=tmp_path, rows=rows).split()
        if words[:1] not in (["fly"], ["deploy"], []):
            words.append(f"--runs={store.root}")
        status = status_of(words)
        lines = "".join(capsys.readouterr()).splitlines()
        line = next((line for line in lines if re.search("(error|failed|blocks): ", line)), "")
        told.append(f"$ {text}\n{status}: {line}\n")
    golden.compare("wrong.txt", "\n".join(told), **words_of(store, trained, FOLDER=tmp_path))


def test_programs_and_agents_find_what_they_found_before(server):
    from mcp import ClientSession
    from mcp.client.streamable_http import streamablehttp_client

    with server.client() as web:
        endpoints = web.get("gradio_api/info").json()["named_endpoints"]
    for endpoint in endpoints.values():
        del endpoint["code_snippets"]  # Gradio's
    golden.compare("http.txt", golden.laid_out(endpoints))

    async def list_tools():
        async with (
            streamablehttp_client(f"{server.url}gradio_api/mcp/") as (read, write, _),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            return [tool.model_dump() for tool in (await session.list_tools()).tools]

    with ThreadPoolExecutor(1) as pool:  # a browser's loop may be this thread's
        tools = pool.submit(asyncio.run, list_tools()).result()
    golden.compare("mcp.txt", golden.laid_out(tools))


def test_the_check_of_the_bundled_pairs_is_known_beforehand(tmp_path):
    """It lies beside them, but for what depends on the machine or only Data shows."""
    anew = check.check_config(RunConfig(), tmp_path)
    anew = replace(anew, corpus="", fingerprint="", seconds=0.0, findings=[])
    if os.environ.get(golden.RENEW):
        check.BUNDLED_REPORT.write_text(anew.to_json(), encoding="utf-8")
    known = check.report_known_beforehand(RunConfig())
    assert replace(known, baselines={}) == replace(anew, baselines={})
    for name, scores in anew.baselines.items():
        assert known.baselines[name] == pytest.approx(scores, abs=0.02)
    assert check.report_known_beforehand(RunConfig(max_train_samples=9)) is None
    in_folds = check.check_config(RunConfig(folds=3), tmp_path)
    words = in_folds.baselines["counting words (TF-IDF)"]  # of every fold, not of one
    assert words["examples"] == max(split.rows for split in in_folds.splits)


def plain(value):
    """A value of the Python API as JSON; of long columns of numbers the ends."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        whole = [*map(plain, value)]
        return [*whole[:4], f"... {len(whole)} in all", *whole[-4:]] if len(whole) > 12 else whole
    return value.item() if isinstance(value, np.generic) else value


@pytest.mark.parametrize("kind", toy_runs.KINDS)
def test_a_run_is_recorded_and_evaluated_as_before(kind, server, trained):
    run = toy_runs.runs_by_name(server.store)[kind]
    words = words_of(server.store, trained)
    happened = map(json.loads, (run.folder / "events.jsonl").read_text().splitlines())
    lines = "".join(golden.laid_out(event) + "\n" for event in happened)
    golden.compare(f"runs/{kind}/events.txt", lines, **words)
    with server.client() as web:
        answer = server.call(web, "run_status", run.id)
        bundle = web.get(f"finetune/runs/{run.id}/script.zip").content
    status = golden.laid_out(json.loads(answer.split("data: ", 1)[1]))
    golden.compare(f"runs/{kind}/status.txt", status, **words)
    with zipfile.ZipFile(io.BytesIO(bundle)) as script:
        names = script.namelist()
        told = [f"{name}\n" for name in names]
        for name in ("requirements.txt", "config.json", "train.py"):
            text = script.read(f"{run.title()}/{name}").decode()
            if name == "train.py":  # the same for all
                golden.compare("runs/train.py.txt", text, **words)
            else:
                told.append(f"\n{name}:\n{text}")
    golden.compare(f"runs/{kind}/script.txt", "".join(told), **words)
    evaluation = golden.laid_out(plain(finetune.evaluate(run).analysis))
    golden.compare(f"runs/{kind}/evaluation.txt", evaluation, **words)


@pytest.mark.parametrize("kind", toy_runs.KINDS)
def test_commands_on_a_run_answer_as_before(kind, trained, tmp_path, hub, capsys):
    store, out = trained.store(tmp_path / "runs"), tmp_path / "out.csv"
    words = words_of(store, trained, FOLDER=tmp_path)
    rows = trained.file(kind, "validation")
    commands = [
        f"evaluate --run={kind}",
        f"evaluate --run={kind} --open_test",
        f"sure --run={kind} --error=0.4",
        f"rank --no-measure {kind} again",
        f"rank --no-measure {kind} again --json",
        f"gate --new={kind} --old=again",
        f"gate --new=again --old={kind} --max_lost=3",
        f"monitor {kind} {trained.file(kind, 'new')}",
        f"predict --run={kind} --file={rows} --out={out} --json",
        f"predict --run={kind} --file={rows} --out={out} --review={tmp_path / 'review.csv'}",
        f"export --model={store.root / toy_runs.runs_by_name(store)[kind].id / 'best'} "
        f"--to={tmp_path / 'model.onnx'}",
    ]
    told = [
        f"$ {text}\n{command([*text.split(), f'--runs={store.root}'], capsys)}\n"
        for text in commands
    ]
    golden.compare(f"runs/{kind}/commands.txt", "".join(told), **words)
    golden.compare(f"runs/{kind}/predicted.csv", out.read_text(), **words)
    run = toy_runs.runs_by_name(store)[kind]
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    tokenizer = AutoTokenizer.from_pretrained(run.best)
    names = {part.name for part in session.get_inputs()}
    answers = []
    for text in ("the cat sees a dog .", "a bee fears the owl ."):
        inputs = tokenizer(text, "the cat sees a dog .", return_tensors="np")
        (logits,) = session.run(None, {k: v for k, v in inputs.items() if k in names})
        answers.append(f"{text}: {logits.tolist()}\n")
    golden.compare(f"runs/{kind}/onnx.txt", "".join(answers), **words)
    hub.add_user(TOKEN, "ada")
    finetune.push_to_hub(run, "ada/toy", token=TOKEN)
    card = hub.repos["model", "ada/toy"].files["README.md"].decode()
    golden.compare(f"runs/{kind}/card.txt", card, **words)
