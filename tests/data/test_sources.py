"""Datasets of the Hub, over HTTP from the loopback Hub: many configurations and splits, and those
that are not to be had."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from finetune import owners
from finetune.config import RunConfig
from finetune.data import checks, dataset_cache, hub_access, sources, splits
from finetune.environment import hub_connection
from finetune.errors import DataError
from finetune.jobs import check, cost, service, train
from finetune.runs.store import RunStore
from tests.conftest import HUB
from tests.support import toys
from tests.support.hub import LoopbackHub


def parquet(columns: dict[str, list[object]], classes: dict[str, list[str]] | None = None) -> bytes:
    """A Parquet file as `datasets` writes it: class names in its metadata."""
    features = {
        name: {"_type": "ClassLabel", "names": (classes or {})[name]}
        if name in (classes or {})
        else {"_type": "Value", "dtype": "string" if isinstance(cells[0], str) else "int64"}
        for name, cells in columns.items()
    }
    table = pa.table(columns).replace_schema_metadata(
        {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    )
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


INVALID = "Invalid credentials in Authorization header"
NAMES = ("sentence1", "sentence2", "label")


def rows(
    count: int,
    seed: int = 0,
    names: tuple[str, str, str] = NAMES,
    unlabelled: bool = False,
    classes: int = 2,
) -> bytes:
    """A split of toy sentences; a column without a name is left out."""
    one, two, _ = zip(*toys.rows(count, seed), strict=True)
    labels = [-1] * count if unlabelled else [n % classes for n in range(count)]
    cells = dict(zip(names, (list(one), list(two), labels), strict=True))
    known = ["entailment", "neutral", "contradiction"] if classes == 3 else ["no", "yes"]
    return parquet({name: cell for name, cell in cells.items() if name}, {names[2]: known})


def csv_file(count: int) -> bytes:
    lines = "".join(f"{one},{two},{label}\n" for one, two, label in toys.rows(count))
    return f"sentence1,sentence2,label\n{lines}".encode()


def readme(**configs: list[str]) -> bytes:
    text = "---\nconfigs:\n"
    for name, names in configs.items():
        text += f"- config_name: {name}\n  data_files:\n"
        for split in names:
            text += f"  - split: {split}\n    path: {name}/{split}.parquet\n"
    return (text + "---\n").encode()


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hub: LoopbackHub) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def load(folder: Path, name: str, **values: object) -> splits.Pairs:
    return splits.load_pairs(RunConfig(dataset=name).changed(**values), folder)


def sizes(pairs: splits.Pairs) -> dict[str, int]:
    return {name: len(split) for name, split in pairs.splits.items()}


def test_every_glue_task_has_its_shape(hub: LoopbackHub, tmp_path: Path) -> None:
    shapes = {
        "mrpc": ("sentence1", "sentence2"),
        "qqp": ("question1", "question2"),
        "rte": ("sentence1", "sentence2"),
        "qnli": ("question", "sentence"),
        "wnli": ("sentence1", "sentence2"),
        "sst2": ("sentence", ""),
        "cola": ("sentence", ""),
    }
    files = {"README.md": readme(**{task: ["train", "validation", "test"] for task in shapes})}
    for task, (first, second) in shapes.items():
        for split, count in (("train", 30), ("validation", 10), ("test", 5)):
            cells = rows(count, count, (first, second, "label"), split == "test")
            files[f"{task}/{split}.parquet"] = cells
    hub.add_repo("nyu-mll/glue", "dataset", files)
    for task, (_, second) in shapes.items():
        loaded = load(tmp_path, f"glue/{task}")
        texts = ["sentence1", "sentence2"] if second else ["sentence1"]
        assert loaded.splits["train"].column_names == [*texts, "label"]
        assert sizes(loaded) == {"train": 30, "validation": 10}
        assert loaded.labels == ["no", "yes"]
        assert loaded.origin["source"] == f"nyu-mll/glue ({task})"


def test_mnli_keeps_both_validation_splits(hub: LoopbackHub, tmp_path: Path) -> None:
    names = ["train", "validation_matched", "validation_mismatched", "test_matched"]
    columns = ("premise", "hypothesis", "label")
    files = {f"mnli/{split}.parquet": rows(12 + n, n, columns, classes=3)
             for n, split in enumerate(names)}  # fmt: skip
    hub.add_repo("nyu-mll/glue", "dataset", {"README.md": readme(mnli=names), **files})
    loaded = load(tmp_path, "glue/mnli")
    assert sizes(loaded) == {"train": 12, "validation": 13, "test": 14}
    assert loaded.labels == ["entailment", "neutral", "contradiction"]
    other = load(tmp_path, "glue/mnli", validation_split="validation_mismatched")
    assert sizes(other)["validation"] == 14
    with pytest.raises(DataError, match=r"no split 'dev'; it has train, validation_matched"):
        load(tmp_path, "glue/mnli", validation_split="dev")


def test_paws_and_any_dataset(hub: LoopbackHub, tmp_path: Path) -> None:
    names = ["train", "validation", "test"]
    files = {f"labeled_final/{split}.parquet": rows(20, 1) for split in names}
    card = readme(labeled_final=names)
    hub.add_repo("google-research-datasets/paws", "dataset", {"README.md": card, **files})
    assert sizes(load(tmp_path, "paws"))["test"] == 20
    text = csv_file(40).replace(b"sentence1,sentence2,label", b"q1,q2,same")
    repo = hub.add_repo("ada/tickets", "dataset", {"train.csv": text})
    loaded = load(tmp_path, "ada/tickets")
    assert loaded.origin["revision"] == repo.head
    assert loaded.origin["columns"] == {"sentence1": "q1", "sentence2": "q2", "label": "same"}
    assert sizes(loaded)["validation"] == 4


def test_a_new_commit_is_read_and_an_old_one_kept(hub: LoopbackHub, tmp_path: Path) -> None:
    repo = hub.add_repo("ada/tickets", "dataset", {"train.csv": csv_file(40)})
    first = load(tmp_path, "ada/tickets")
    assert load(tmp_path, "ada/tickets").fingerprint == first.fingerprint
    commit = first.origin["revision"]
    repo.commit("more", {"train.csv": csv_file(60)})
    second = load(tmp_path, "ada/tickets")
    assert second.origin["revision"] != commit
    assert second.fingerprint != first.fingerprint
    pinned = load(tmp_path, "ada/tickets", dataset_revision=commit)
    assert pinned.fingerprint == first.fingerprint


def test_several_configurations_are_offered_by_name(hub: LoopbackHub, tmp_path: Path) -> None:
    files = {f"{name}/train.parquet": rows(20) for name in ("english", "german")}
    repo = readme(english=["train"], german=["train"])
    hub.add_repo("ada/many", "dataset", {"README.md": repo, **files})
    with pytest.raises(DataError, match=r"several configurations: .*english.*german") as caught:
        load(tmp_path, "ada/many")
    assert "dataset_config_name" in caught.value.remedy
    assert load(tmp_path, "ada/many", dataset_config_name="german").splits["train"]
    with pytest.raises(DataError, match=r"no configuration 'french'.*english"):
        load(tmp_path, "ada/many", dataset_config_name="french")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ada/nothing", "no dataset 'ada/nothing' on the Hub, or it is private"),
        ("ada/private", "no dataset 'ada/private' on the Hub, or it is private"),
        ("ada/gated", "ada/gated is gated"),
        ("ada/script", "needs code of its own"),
        ("ada/empty", "could not be read"),
        ("ada/old", "no revision 'v9'"),
        ("glue/stsb", "scores similarity from 0 to 5"),
        ("no such name!", "There is no dataset 'no such name!'"),
        ("/etc/passwd", "is a path"),
        ("../runs/pairs.csv", "is a path"),
        ("pairs.csv", "is a path"),
        ("C:\\pairs.csv", "is a path"),
        ("upload/0123456789abcdef01234567", "There is no upload"),
        ("upload/../../etc", "There is no upload"),
    ],
)
def test_what_is_not_to_be_had_is_said(
    hub: LoopbackHub, tmp_path: Path, name: str, said: str
) -> None:
    hub.add_repo("ada/private", "dataset", {"train.csv": csv_file(9)}, private=True)
    hub.add_repo("ada/gated", "dataset", {"train.csv": csv_file(9)}, gated=True)
    hub.add_repo("ada/script", "dataset", {"script.py": b"raise SystemExit('it ran')"})
    hub.add_repo("ada/empty", "dataset", {"README.md": b"nothing"})
    hub.add_repo("ada/old", "dataset", {"train.csv": csv_file(9)})
    revision = "v9" if name == "ada/old" else ""
    with pytest.raises(DataError, match=said) as caught:
        load(tmp_path, name, dataset_revision=revision)
    assert caught.value.remedy
    config = RunConfig(dataset=name, dataset_revision=revision)
    with pytest.raises(DataError, match=said):
        checks.check_pairs(config, tmp_path)


LOCAL = [
    "csv", "json", "parquet", "imagefolder", "imdb", "data", "ada/local", "./ada", "../pairs", ".",
    "..", "~/pairs", "/srv/pairs", "a\\b", "file:pairs", "hf://datasets/ada/x", "a/b/c", "-x/y",
    "ada/..", "Ada/.x",
]  # fmt: skip


def test_only_what_is_offered_or_of_the_hub_is_a_dataset(
    tmp_path: Path, store: RunStore, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """`load_dataset("csv")` reads the files below the working directory, and a folder's too."""
    monkeypatch.chdir(tmp_path)
    for folder in ("data", "ada/local"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "train.csv").write_bytes(csv_file(40))
    monkeypatch.setattr(sources, "load_dataset", None)
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    visitor = store.for_visitor(owners.identify(browser="browser:ada"))
    monkeypatch.delenv("FINETUNE_VISITORS")
    for name in LOCAL:
        config = RunConfig(dataset=name)
        acts: list[tuple[Callable[..., object], object]] = [
            (splits.load_pairs, tmp_path), (sources.open_source, tmp_path),
        ]  # fmt: skip
        for act, root in acts:
            with pytest.raises(DataError, match=r"is a path|There is no dataset"):
                act(config, root)
        for act in (check.start_check, service.start_run):
            for viewed in (store, visitor):
                with pytest.raises(DataError, match=r"is a path|There is no dataset"):
                    act(viewed, config)
    for command in (train.main, check.main):
        assert command(["--dataset=csv", "--runs", str(store.root)]) == 2
        assert "There is no dataset 'csv'" in capsys.readouterr().err
    assert not store.runs()


def test_without_the_hub_it_is_said_at_once_and_what_was_read_still_serves(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add_repo("ada/tickets", "dataset", {"train.csv": csv_file(40)})
    first = load(tmp_path, "ada/tickets")
    monkeypatch.setattr(hub_connection, "hub_is_reachable", lambda timeout=2.0: False)
    assert load(tmp_path, "ada/tickets").fingerprint == first.fingerprint
    with pytest.raises(DataError, match=f"the Hub at {HUB.url} does not answer"):
        load(tmp_path, "ada/other")


OUTSIDE = ["http://{host}/secret.csv", "https://{host}/secret.csv", "file://{folder}/secret.csv",
           "{folder}/secret.csv", "zip://x.csv::http://{host}/a.zip", "../../secret/secret.csv",
           "data/../../x.csv", "~/secret.csv", "s3://bucket/x.csv", "a\\..\\x.csv",
           "hf://datasets/eve/private/train.csv", "memory:x.csv"]  # fmt: skip
SHAPES: list[Callable[[str], dict[str, object]]] = [
    lambda path: {"data_files": ["train.csv", path]},
    lambda path: {"data_files": [{"split": "train", "path": ["train.csv", path]}]},
    lambda path: {"data_files": {"train": path}},
    lambda path: {"data_files": "train.csv", "data_dir": path},
]


@pytest.mark.parametrize("file", ["README.md", ".huggingface.yaml"])
def test_a_dataset_names_no_data_but_its_own(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """`datasets` connects to whatever address the card names, and opens files of the machine."""
    (tmp_path / "secret.csv").write_bytes(csv_file(40))
    calls: list[object] = []
    monkeypatch.setattr(sources, "load_dataset", lambda *args, **kwargs: calls.append(args))
    configs = [shape(OUTSIDE[0]) for shape in SHAPES]
    configs += [{"data_files": path} for path in (OUTSIDE if file == "README.md" else OUTSIDE[:1])]
    for config in configs:
        text = yaml.safe_dump({"configs": [{"config_name": "default", **config}]})
        text = text.format(host=HUB.url.removeprefix("http://"), folder=tmp_path)
        text = f"---\n{text}---\n" if file == "README.md" else text
        hub.add_repo("eve/card", "dataset", {file: text.encode(), "train.csv": csv_file(9)})
        with pytest.raises(DataError, match=r"names .* as its data, which is no file of its own"):
            load(tmp_path, "eve/card")
    assert not calls
    assert not [path for _, path, _ in hub.requests if "secret" in path or "a.zip" in path]


def test_what_a_card_may_name_is_read(hub: LoopbackHub, tmp_path: Path) -> None:
    configs = [{"config_name": "default", "data_files": "rows/t*.csv", "sep": ","}]
    text = f"---\n{yaml.safe_dump({'configs': configs})}---\nhttp://example.org\n"
    files = {"README.md": text.encode(), "rows/train.csv": csv_file(40)}
    hub.add_repo("ada/named", "dataset", files)
    assert len(load(tmp_path, "ada/named").splits["train"]) == 36


def test_a_visitor_gets_nothing_from_a_cache_that_the_hub_would_not_give_them(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: RunStore
) -> None:
    secret = hub.add_repo("ada/secret", "dataset", {"train.csv": csv_file(40)}, private=True)
    gated = hub.add_repo("ada/locked", "dataset", {"train.csv": csv_file(40)}, gated=True)
    open_ = hub.add_repo("ada/open", "dataset", {"train.csv": csv_file(40)})
    names = ("ada/secret", "ada/locked", "ada/open")
    monkeypatch.setenv("HF_TOKEN", "hub-token-of-ada")
    for name in names:
        assert load(tmp_path, name).splits["train"]
    answers = hub_connection.hub_is_reachable
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    hub.tokens_seen.clear()

    def refused(name: str, **values: object) -> bool:
        try:
            load(tmp_path, name, **values)
        except DataError as error:
            return bool(error.remedy)
        return False

    silent = lambda timeout=2.0: False  # noqa: E731
    monkeypatch.setattr(hub_connection, "hub_is_reachable", silent)
    assert [refused(name) for name in names] == [True, True, True]  # not fetched for everybody
    monkeypatch.setattr(hub_connection, "hub_is_reachable", answers)
    for pinned in (False, True):
        shas = [repo.head * pinned for repo in (secret, gated, open_)]
        assert [refused(name, dataset_revision=sha) for name, sha in zip(names, shas, strict=True)
                ] == [True, True, False]  # fmt: skip
    monkeypatch.setattr(hub_connection, "hub_is_reachable", silent)
    assert not refused("ada/open")  # it was everybody's
    monkeypatch.setattr(hub_connection, "hub_is_reachable", answers)
    open_.private = True
    assert refused("ada/open")
    assert hub.tokens_seen == []


def test_what_the_owner_has_examined_is_no_visitors_to_see(
    hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch, store: RunStore
) -> None:
    repo = hub.add_repo("ada/examined", "dataset", {"train.csv": csv_file(40)}, private=True)
    config = RunConfig(dataset="ada/examined")
    monkeypatch.setenv("HF_TOKEN", "hub-token-of-ada")

    def examined() -> str:
        folder = check.check_folder(store, config)
        folder.folder.mkdir(parents=True)
        folder.describe_job("check", "", config.to_dict())
        report = checks.check_pairs(config, store.root, lambda *_: None)
        (folder.folder / "report.json").write_text(report.to_json())
        return folder.id

    by_owner = examined()
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    mine = store.for_visitor(owners.identify(browser="browser:ada"))
    with pytest.raises(DataError, match="There is no such check"):
        check.get_check(mine, by_owner)
    assert check.check_state(check.check_folder(mine, config)).report is None
    assert cost.estimate_cost(mine, config).steps is None
    repo.private = False
    found = check.get_check(mine, examined())
    assert check.check_state(found).report is not None
    repo.private = True
    hub_access._answer.cache_clear()
    for act in (
        lambda: check.get_check(mine, found.id),
        lambda: check.start_check(mine, config),
    ):
        with pytest.raises(DataError, match="no dataset 'ada/examined' on the Hub, or it is priv"):
            act()


def test_on_a_space_the_owners_token_reads_nothing_for_visitors(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add_repo("ada/tickets", "dataset", {"train.csv": csv_file(40)})
    monkeypatch.setenv("HF_TOKEN", "hub-token-of-ada")
    monkeypatch.setenv("SPACE_ID", "ada/finetune")
    load(tmp_path, "ada/tickets")
    assert hub.tokens_seen == []


def test_a_nested_column_is_no_sentence(hub: LoopbackHub, tmp_path: Path) -> None:
    lines = "".join(
        json.dumps({"sentence1": a, "sentence2": b, "label": c, "answers": {"text": [a]}}) + "\n"
        for a, b, c in toys.rows(30)
    )
    hub.add_repo("ada/nested", "dataset", {"train.jsonl": lines.encode()})
    assert load(tmp_path, "ada/nested").origin["columns"]["sentence2"] == "sentence2"
    with pytest.raises(DataError, match="The column 'answers' is nested"):
        load(tmp_path, "ada/nested", sentence2_column="answers")


@pytest.mark.parametrize(
    ("path", "fault", "said", "remedy"),
    [
        (".", (401, {"X-Error-Message": INVALID}), "does not accept this machine's token", "auth"),
        (".", (429, {"Retry-After": "600"}), "asks for a pause of 10 minutes", "after it"),
        (".", (503, {}), r"has a fault .status 503.", "again later"),
        ("/train.csv", (429, {"Retry-After": "600"}), "asks for a pause of 10 minutes", "after it"),
        ("/train.csv", (503, {}), r"has a fault .status 503.", "again later"),
        ("/train.csv", (403, {}), "this machine's token may not", "read access"),
        ("/train.csv", "cut", "The download of .* broke off", "what has come is kept"),
    ],
)
def test_why_a_dataset_is_not_to_be_had(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    path: str, fault: Any, said: str, remedy: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    rows = csv_file(40) + f"{path},{said},yes\n".encode()  # which lie in no cache
    hub.add_repo("ada/faulty", "dataset", {"train.csv": rows})
    if fault == "cut":
        hub.fail("GET", path, 0, times=99, cut=True, after=100)
    else:
        hub.fail("", f"^/(api|datasets)/.*{path}", fault[0], times=999, headers=fault[1])
    with pytest.raises(DataError, match=said) as caught:
        load(tmp_path, "ada/faulty")
    assert remedy in caught.value.remedy


def test_a_dataset_is_had_after_a_pause_that_the_hub_asks_for(
    hub: LoopbackHub, tmp_path: Path, capsys: Any
) -> None:
    hub.add_repo("ada/patient", "dataset", {"train.csv": csv_file(41)})
    hub.fail("GET", "/api/datasets/ada/patient", 429, headers={"Retry-After": "1"})
    hub.fail("", "/train.csv", 503, headers={"Retry-After": "1"})
    assert load(tmp_path, "ada/patient").splits["train"]
    assert {429, 503} < {status for _, _, status in hub.requests}
    assert "asking again in 1 s" in capsys.readouterr().out


def test_only_one_process_reads_a_source(hub: LoopbackHub, tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    hub.add_repo("ada/tickets", "dataset", {"train.csv": csv_file(40)})
    config = RunConfig(dataset="ada/tickets")
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: dataset_cache.read_dataset(config, tmp_path), range(4)))
    assert len({one.folder for one in found}) == 1
    assert sources.has_new_commit(config, found[0].revision) is False
