"""Datasets of the loopback Hub: many configurations and splits, and datasets that cannot be
read."""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from finetune import owners
from finetune.__main__ import main as command_line
from finetune.config import NO_COLUMN, RunConfig
from finetune.data import checks, hub_access, sources, splits
from finetune.environment import hub_connection
from finetune.errors import DataError
from finetune.jobs import check, cost, service
from tests.support import toys


def rows(count, seed=0, names=("sentence1", "sentence2", "label"), classes=("no", "yes")):
    """Make a split of toy sentences as `datasets` writes Parquet, with class names in its
    metadata."""
    first, second, _ = map(list, zip(*toys.rows(count, seed), strict=True))
    labels = [n % len(classes) for n in range(count)]
    columns = dict(zip(names, (first, second, labels), strict=True))
    features = {name: {"_type": "Value", "dtype": "string"} for name in columns if name != names[2]}
    features[names[2]] = {"_type": "ClassLabel", "names": classes}
    metadata = json.dumps({"info": {"features": features}}).encode()
    buffer = io.BytesIO()
    table = pa.table(columns).replace_schema_metadata({b"huggingface": metadata})
    pq.write_table(table, buffer)
    return buffer.getvalue()


def csv_file(count):
    lines = "".join(f"{first},{second},{label}\n" for first, second, label in toys.rows(count))
    return f"sentence1,sentence2,label\n{lines}".encode()


def readme(**configs):
    listed = []
    for name, own in configs.items():
        files = [{"split": split, "path": f"{name}/{split}.parquet"} for split in own]
        listed.append({"config_name": name, "data_files": files})
    return f"---\n{yaml.safe_dump({'configs': listed})}---\n".encode()


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path, hub):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def load(folder, name, **values):
    return splits.load_pairs(RunConfig(dataset=name).changed(**values), folder)


def sizes(pairs):
    return {name: len(split) for name, split in pairs.splits.items()}


def test_of_several_splits_and_configurations_one_is_chosen(hub, tmp_path):
    names = ["train", "validation_matched", "validation_mismatched", "test_matched"]
    columns, classes = ("premise", "hypothesis", "label"), ("entailment", "neutral", "other")
    files = {"README.md": readme(mnli=names)}
    for n, split in enumerate(names):
        files[f"mnli/{split}.parquet"] = rows(12 + n, n, columns, classes=classes)
    hub.add_repo("nyu-mll/glue", "dataset", files)
    pairs = load(tmp_path, "glue/mnli")
    assert sizes(pairs) == {"train": 12, "validation": 13, "test": 14}
    assert [*pairs.target.names] == list(classes)
    assert pairs.facts["source"] == "nyu-mll/glue (mnli)"
    other = load(tmp_path, "glue/mnli", validation_split="validation_mismatched")
    assert sizes(other)["validation"] == 14
    with pytest.raises(DataError, match=r"no split 'dev'; it has train, validation_matched"):
        load(tmp_path, "glue/mnli", validation_split="dev")
    # Several configurations are offered by name.
    files = {f"{name}/train.parquet": rows(20) for name in ("english", "german")}
    files["README.md"] = readme(english=["train"], german=["train"])
    hub.add_repo("ada/many", "dataset", files)
    with pytest.raises(DataError, match=r"several configurations: .*english.*german") as caught:
        load(tmp_path, "ada/many")
    assert "dataset_config_name" in caught.value.remedy
    assert load(tmp_path, "ada/many", dataset_config_name="german").splits["train"]
    with pytest.raises(DataError, match=r"no configuration 'french'.*english"):
        load(tmp_path, "ada/many", dataset_config_name="french")


@pytest.mark.parametrize(
    ("names", "requested", "chosen"),
    [
        (["train", "test"], {"validation": "test"}, {"train": "train", "validation": "test"}),
        (["train", "validation"], {"test": "validation"}, {"train": "train", "test": "validation"}),
        (["test"], {}, {"train": "test"}),
        (["data", "dev"], {}, {"train": "data", "validation": "dev"}),
        (["train", "test"], {"test": NO_COLUMN}, {"train": "train"}),
        (["train", "test"], {"validation": "test", "test": "test"}, "'test'"),
        (["test"], {"test": "test"}, "No split of ada/tickets is left to train on"),
    ],
)
def test_no_split_of_a_source_is_two(hub, tmp_path, names, requested, chosen):
    files = {f"default/{name}.parquet": rows(20 + n, n) for n, name in enumerate(names)}
    files["README.md"] = readme(default=names)
    hub.add_repo("ada/tickets", "dataset", files)
    values = {f"{split}_split": name for split, name in requested.items()}
    if isinstance(chosen, str):
        with pytest.raises(DataError, match=chosen):
            load(tmp_path, "ada/tickets", **values)
        return
    facts = load(tmp_path, "ada/tickets", **values).facts
    assert {split: name for split, name in facts["splits"].items() if name} == chosen


def test_any_dataset_is_read_and_a_new_commit_too(hub, tmp_path, monkeypatch):
    text = csv_file(40).replace(b"sentence1,sentence2,label", b"q1,q2,same")
    repo = hub.add_repo("ada/tickets", "dataset", {"train.csv": text})
    first = load(tmp_path, "ada/tickets")
    commit = first.facts["revision"]
    assert commit == repo.head
    assert first.facts["columns"] == {"sentence1": "q1", "sentence2": "q2", "label": "same"}
    assert sizes(first)["validation"] == 4
    assert load(tmp_path, "ada/tickets").fingerprint == first.fingerprint
    repo.commit("more", {"train.csv": csv_file(60)})
    second = load(tmp_path, "ada/tickets")
    assert second.facts["revision"] != commit
    assert second.fingerprint != first.fingerprint
    pinned = load(tmp_path, "ada/tickets", dataset_revision=commit)
    assert pinned.fingerprint == first.fingerprint
    # Without the Hub what was read still serves, and the rest is refused at once.
    monkeypatch.setattr(hub_connection, "hub_is_reachable", lambda: False)
    assert load(tmp_path, "ada/tickets").fingerprint == second.fingerprint
    with pytest.raises(DataError, match=f"the Hub at {hub.url} does not answer"):
        load(tmp_path, "ada/other")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ada/nothing", "ada/nothing is not on the Hub, or it is private"),
        ("ada/private", "ada/private is not on the Hub, or it is private"),
        ("ada/gated", "ada/gated is gated"),
        ("ada/script", "needs code of its own"),
        ("ada/empty", "could not be read"),
        ("ada/old", "no revision 'v9'"),
        ("no such name!", "There is no dataset 'no such name!'"),
        ("pairs.csv", "is a path"),
        ("upload/../../etc", "There is no upload"),
    ],
)
def test_what_is_not_to_be_had_is_said(hub, tmp_path, name, message):
    hub.add_repo("ada/private", "dataset", {"train.csv": csv_file(9)}, private=True)
    hub.add_repo("ada/gated", "dataset", {"train.csv": csv_file(9)}, gated=True)
    hub.add_repo("ada/script", "dataset", {"script.py": b"raise SystemExit('it ran')"})
    hub.add_repo("ada/empty", "dataset", {"README.md": b"nothing"})
    hub.add_repo("ada/old", "dataset", {"train.csv": csv_file(9)})
    revision = "v9" if name == "ada/old" else ""
    config = RunConfig(dataset=name, dataset_revision=revision)
    for read in (splits.load_pairs, checks.check_pairs):
        with pytest.raises(DataError, match=message) as caught:
            read(config, tmp_path)
        assert caught.value.remedy


@pytest.mark.parametrize(
    "name",
    ["csv", "data", "ada/local", "~/pairs", "a\\b", "hf://datasets/ada/x", "a/b/c", "ada/.."],
)
def test_only_what_is_offered_or_on_the_hub_is_read(tmp_path, store, monkeypatch, capsys, name):
    """`load_dataset("csv")` would read the files below the working directory; a folder's name,
    too."""
    monkeypatch.chdir(tmp_path)
    for folder in ("data", "ada/local"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "train.csv").write_bytes(csv_file(40))
    monkeypatch.setattr(sources, "load_dataset", None)
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    visitor = store.for_visitor(owners.policy().identify(browser="browser:ada"))
    monkeypatch.delenv("FINETUNE_VISITORS")
    config = RunConfig(dataset=name)
    for start in (check.start_check, service.start_run):
        for viewed in (store, visitor):
            with pytest.raises(DataError, match=r"is a path|There is no dataset"):
                start(viewed, config)
    with pytest.raises(DataError, match=r"is a path|There is no dataset"):
        splits.load_pairs(config, tmp_path)
    for command in ("train", "check"):
        assert command_line([command, f"--dataset={name}", "--runs", str(store.root)]) == 2
        assert repr(name) in capsys.readouterr().err
    assert not store.runs()


@pytest.mark.parametrize("file", ["README.md", ".huggingface.yaml"])
def test_a_dataset_names_no_data_but_its_own(hub, tmp_path, monkeypatch, file):
    """`datasets` would fetch any address, and open any local file, that the card names."""
    (tmp_path / "secret.csv").write_bytes(csv_file(40))
    calls = []
    monkeypatch.setattr(sources, "load_dataset", lambda *args, **kwargs: calls.append(args))
    host = hub.url.removeprefix("http://")
    outside = [f"http://{host}/secret.csv", f"https://{host}/secret.csv", "memory:x.csv",
               f"file://{tmp_path}/secret.csv", f"{tmp_path}/secret.csv", "../../secret/secret.csv",
               f"zip://x.csv::http://{host}/a.zip", "data/../../x.csv", "~/secret.csv",
               "s3://bucket/x.csv", "a\\..\\x.csv",
               "hf://datasets/eve/private/train.csv"]  # fmt: skip
    configs = [{"data_files": path} for path in outside]
    configs += [
        {"data_files": ["train.csv", outside[0]]},
        {"data_files": [{"split": "train", "path": ["train.csv", outside[0]]}]},
        {"data_files": "train.csv", "data_dir": outside[0]},
    ]
    for config in configs:
        text = yaml.safe_dump({"configs": [{"config_name": "default", **config}]})
        text = f"---\n{text}---\n" if file == "README.md" else text
        hub.add_repo("eve/card", "dataset", {file: text.encode(), "train.csv": csv_file(9)})
        with pytest.raises(DataError, match=r"lists .* as data, a path outside its repository"):
            load(tmp_path, "eve/card")
    assert not calls
    assert not [path for _, path, _ in hub.requests if "secret" in path or "a.zip" in path]


def test_a_visitor_gets_nothing_from_a_cache_that_the_hub_denies(hub, tmp_path, monkeypatch):
    files, repos = {"train.csv": csv_file(40)}, {}
    for name in ("ada/secret", "ada/locked", "ada/open"):
        private, gated = name == "ada/secret", name == "ada/locked"
        repos[name] = hub.add_repo(name, "dataset", files, private=private, gated=gated)
    monkeypatch.setenv("HF_TOKEN", "hub-token-of-ada")
    for name in repos:
        assert load(tmp_path, name).splits["train"]
    monkeypatch.setenv("SPACE_ID", "ada/finetune")  # where an app is always shared
    hub.tokens_seen.clear()
    reachable = [False]
    monkeypatch.setattr(hub_connection, "hub_is_reachable", lambda: reachable[-1])

    def refused(name, revision=""):
        try:
            load(tmp_path, name, dataset_revision=revision)
        except DataError as error:
            return bool(error.remedy)
        return False

    assert all(map(refused, repos))  # not fetched for everybody
    reachable.append(True)
    assert [refused(name) for name in repos] == [True, True, False]
    assert [refused(name, repo.head) for name, repo in repos.items()] == [True, True, False]
    reachable.append(False)
    assert not refused("ada/open")  # it was everybody's
    reachable.append(True)
    repos["ada/open"].private = True
    assert refused("ada/open")
    assert hub.tokens_seen == []


def test_what_the_owner_has_examined_is_no_visitors_to_see(hub, monkeypatch, store):
    repo = hub.add_repo("ada/examined", "dataset", {"train.csv": csv_file(40)}, private=True)
    config = RunConfig(dataset="ada/examined")
    monkeypatch.setenv("HF_TOKEN", "hub-token-of-ada")

    def examined():
        folder = check.check_folder(store, config)
        folder.folder.mkdir(parents=True)
        folder.describe_job("check", "", config.to_dict())
        report = checks.check_pairs(config, store.root, lambda *_: None)
        (folder.folder / "report.json").write_text(report.to_json())
        return folder.id

    by_owner = examined()
    monkeypatch.setenv("FINETUNE_VISITORS", "1")
    visitor = store.for_visitor(owners.policy().identify(browser="browser:ada"))
    with pytest.raises(DataError, match="There is no such check"):
        check.get_check(visitor, by_owner)
    assert check.check_folder(visitor, config).state().report is None
    assert cost.estimate_cost(visitor, config).steps is None
    repo.private = False
    public = check.get_check(visitor, examined())
    assert public.state().report is not None
    repo.private = True
    hub_access._refusal.cache_clear()
    message = "ada/examined is not on the Hub, or it is private"
    with pytest.raises(DataError, match=message):
        check.get_check(visitor, public.id)
    with pytest.raises(DataError, match=message):
        check.start_check(visitor, config)
