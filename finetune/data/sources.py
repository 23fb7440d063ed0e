"""Sources of pairs: the bundled files, an upload, or the Hub, whose code is never run."""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import yaml
from datasets import ClassLabel, Dataset, DatasetDict, Value, load_dataset
from huggingface_hub import DatasetCard, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError

from finetune import hub_errors, owners, uploads
from finetune.config import BUNDLED_DATASET, NO_COLUMN, RunConfig, is_upload
from finetune.data import catalog, hub_access, review, table_formats
from finetune.data.columns import NESTED, parts_of
from finetune.data.table import OnBadRow, ReadOptions, Rows, Table, to_plain_value
from finetune.environment import logs
from finetune.errors import DataError, FinetuneError, some
from finetune.findings import in_split
from finetune.messages import message as _
from finetune.runs.summary import ColumnNames
from finetune.tasks.cells import Columns

T = TypeVar("T")
# Lines from 1, and the cells of the sentences and the label.
CellRows = Iterator[tuple[int, list[Any]]]
LABELS = ["not_equivalent", "equivalent"]  # of the bundled pairs, whose files have 0 and 1
_GUESSED_SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "validation_matched", "dev", "val", "valid", "eval"),
    "test": ("test", "validation_mismatched"),
}


class Source:
    """Splits of rows that can be read, a table each."""

    def __init__(self, name: str, tables: dict[str, Table]) -> None:
        self.name, self._tables = name, tables  # the name as shown to the user
        self.revision = ""  # commit of a Hub dataset
        self.splits = {split: split for split in tables}  # -> the source's own name of the split
        train = tables["train"]
        # Column -> why it cannot be used, or "".
        self.columns = {column: train.unusable.get(column, "") for column in train.columns}
        self.columns |= dict.fromkeys(train.nested, NESTED)
        self.classes: dict[str, list[str]] = {}  # column -> names of its classes, if it has them
        self.listed: dict[str, list[str]] = {}  # the same for columns of lists
        self.notes = [note for table in tables.values() for note in table.notes]
        self.remarks = {split: in_split(table.remarks, split) for split, table in tables.items()}
        self.sheets = train.sheets  # of a workbook

    def rows(
        self, split: str, columns: ColumnNames, on_bad_row: OnBadRow, on_left_out: OnBadRow
    ) -> CellRows:
        """Yield the cells of some columns of a split. The last cell is the label: `Columns` if it
        stands for several, of which there are none if the split has no labels. Rows that did not
        pass review, as the status column says, are left out. DataError as below, or if a needed
        column is missing."""
        sentences, label, status = [*filter(None, columns.sentences)], columns.label, columns.status
        parts = parts_of(label, self.columns) or [label]
        own = self._tables[split].columns
        for column in [*sentences, *(parts if label and split != "test" else ())]:
            if column not in own:
                raise DataError(
                    "{names} has no column {column!r}; it has {columns}.",
                    "Give every file the same header.",
                    names=self._tables[split].name,
                    column=column,
                    columns=some(own),
                )
        labels = parts if all(part in own for part in parts) else []
        before = [*sentences, *([status] if status in own else [])]
        for line, cells in self.cells(split, [*before, *labels], on_bad_row):
            texts, given = cells[: len(sentences)], cells[len(before) :]
            if any(isinstance(cell, list | dict) for cell in texts):
                on_bad_row(line, _("has a list or an object where a text or number is read"))
                continue
            answer: Any = Columns(zip(labels, given, strict=True))
            if len(labels) == 1:
                answer = self._named(label, given[0])
            if len(before) > len(texts):
                answer, why = review.judge(answer, cells[len(texts)], status, status == label)
                if why:
                    on_left_out(line, why)
                    continue
            yield line, [*texts, answer]

    def _named(self, column: str, cell: Any) -> Any:
        """Replace the numbers of classes in a label's cell by their names."""
        if names := self.classes.get(column):  # GLUE's test splits have -1 for an unknown label
            return None if cell is None or int(cell) < 0 else names[int(cell)]
        if names := self.listed.get(column):
            return [names[index] for index in cell or ()]
        return cell

    def cells(self, split: str, columns: list[str], on_bad_row: OnBadRow) -> CellRows:
        """Yield the cells of some columns of a split. DataError if it cannot be read to its end."""
        for line, record in self._tables[split].rows(on_bad_row, columns):
            yield line, [to_plain_value(record.get(column)) for column in columns]


class _HubTable(Table):
    """A split of a dataset that `datasets` has downloaded from the Hub."""

    def __init__(self, name: str, split: Dataset) -> None:
        super().__init__(Path(), name)
        self._split, self.columns = split, list(split.column_names)
        plain = (Value, ClassLabel)
        self.nested = [one for one, kind in split.features.items() if not isinstance(kind, plain)]

    def rows(self, on_bad_row: OnBadRow, columns: Sequence[str] | None = None) -> Rows:
        lines = count(1)
        for batch in self._split.select_columns(columns).iter(1000):
            for row in zip(*batch.values(), strict=True):
                yield next(lines), dict(zip(batch, row, strict=True))


def open_source(config: RunConfig, root: Path) -> Source:
    """Open the source that a configuration names as `dataset`; DataError if it cannot be read."""
    dataset = config.dataset
    catalog.check_dataset(dataset)
    if dataset == BUNDLED_DATASET:
        names, options = {split: f"{split}.csv" for split in uploads.SPLITS}, ReadOptions()
        paths = {split: catalog.BUNDLED_PAIRS / name for split, name in names.items()}
    elif is_upload(dataset):
        stored = uploads.Uploads(root / "uploads")
        paths, names = stored.files(dataset), stored.file_names(dataset)
        options = ReadOptions.of(config)
    else:
        return _open_hub(config)
    tables = {
        split: table_formats.open_table(path, names[split], options)
        for split, path in paths.items()
    }
    source = Source(", ".join(names.values()), tables)
    if dataset == BUNDLED_DATASET:
        source.name, source.classes = _("the bundled pairs"), {"label": LABELS}
    return source


def _open_hub(config: RunConfig) -> Source:
    repo, part = catalog.repo_and_config(config)
    commit = _commit(repo, config.dataset_revision)
    if commit:
        # `datasets` would fetch any URL and open any local file that the description names.
        described = _read_hub(lambda: [*_configs(repo, commit)], repo, commit)
        for path in _data_files(described):
            outside = path.startswith(("/", "~")) or ".." in path.split("/")
            if outside or re.search(r"::|\\|^[\w+.-]+:", path):
                raise DataError(
                    "The Hub dataset {repo} lists {path!r} as data, a path outside its repository.",
                    "Choose another one, or download it and upload the file.",
                    repo=repo,
                    path=path,
                )
    revision = commit or config.dataset_revision

    def load() -> DatasetDict:
        token = hub_access.token()
        return load_dataset(repo, part or None, revision=revision or None, token=token)

    loaded = _read_hub(load, repo, revision, part)
    splits = _choose_splits(list(loaded), config)
    name = f"{repo} ({part})" if part else repo
    source = Source(name, {split: _HubTable(name, loaded[own]) for split, own in splits.items()})
    source.revision, source.splits = commit, splits
    for column, feature in loaded[splits["train"]].features.items():
        inner = getattr(feature, "feature", None)  # of a list
        if isinstance(feature, ClassLabel):
            source.classes[column] = list(feature.names)
        if isinstance(inner, ClassLabel):
            source.listed[column] = list(inner.names)
    return source


def _read_hub(read: Callable[[], T], repo: str, revision: str, name: str = "") -> T:
    """Call `read`, which reads a Hub dataset, and turn any error into one written for users."""
    try:
        return hub_errors.retried(read)
    except Exception as error:  # the builders of `datasets` raise whatever their readers do
        raise _refusal(repo, name, revision, error) from error


def _configs(repo: str, revision: str) -> Iterator[Any]:
    """Yield the `configs` of a dataset's card and of its YAML file, if it has them."""
    token = hub_access.token()
    for file in ("README.md", ".huggingface.yaml"):
        with contextlib.suppress(EntryNotFoundError):
            path = hf_hub_download(repo, file, repo_type="dataset", revision=revision, token=token)
            if file == "README.md":
                yield DatasetCard.load(path).data.get("configs")
            elif isinstance(values := yaml.safe_load(Path(path).read_text("utf-8")), dict):
                yield values.get("configs")


def _data_files(value: Any, inside: bool = False) -> Iterator[str]:
    """Yield every text below `data_files` or `data_dir`, at any depth."""
    if isinstance(value, str) and inside:
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _data_files(item, inside)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _data_files(item, inside or key in ("data_files", "data_dir"))


def _refusal(repo: str, name: str, revision: str, error: Exception) -> FinetuneError:
    """The error to show if the Hub or its client gave no dataset."""
    text = str(error)
    if "Config name is missing" in text or (name and "BuilderConfig" in text):
        problem = _("has several configurations")
        if name:
            problem = _("has no configuration {name!r}", name=name)
        configs = re.findall(r"'([^']+)'", text.split("[", 1)[-1].split("]", 1)[0])
        return DataError(
            "The Hub dataset {repo} {problem}: {configs}.",
            "Choose one as dataset_config_name.",
            repo=repo,
            problem=problem,
            configs=some(configs),
        )
    if "scripts are no longer supported" in text or "trust_remote_code" in text:
        return DataError(
            "The Hub dataset {repo} needs code of its own (trust_remote_code), which is never run.",
            "Choose one stored as Parquet, CSV or JSON, or download it and upload the file.",
            repo=repo,
        )
    if not hub_errors.cause(error).status and hub_access.is_offline():
        return hub_access.silent("dataset", repo)
    return hub_errors.explained("dataset", repo, error, revision) or DataError(
        "The Hub dataset {repo} could not be read: {error}",
        "Check its configuration and revision, or download it and upload the file.",
        repo=repo,
        error=logs.first_line(error),
    )


def _commit(repo: str, revision: str) -> str:
    """The commit of a branch or tag; "" if the Hub cannot be asked."""
    if hub_access.is_offline():
        # A library's cache does not record who may read its contents.
        if owners.policy().asks_rights:
            raise hub_access.silent("dataset", repo)
        return ""
    answer = _read_hub(lambda: hub_access.info("dataset", repo, revision), repo, revision)
    return answer.sha or ""


def has_new_commit(config: RunConfig, revision: str) -> bool:
    """True if a Hub dataset's commit is no longer `revision`; False if the Hub does not answer.

    Raises DataError if the visitor may not read the dataset, or may not read it any more.
    """
    pinned = re.fullmatch(r"[0-9a-f]{40}", config.dataset_revision)
    if not catalog.is_hub_dataset(config.dataset) or (pinned and not owners.policy().asks_rights):
        return False
    try:
        commit = _commit(catalog.repo_and_config(config)[0], config.dataset_revision)
    except FinetuneError as error:
        if owners.policy().asks_rights and hub_errors.cause(error).name in hub_errors.NO_RIGHT:
            raise
        return False
    return bool(commit) and commit != revision


def _choose_splits(names: list[str], config: RunConfig) -> dict[str, str]:
    """Choose the source's split for `train`, `validation` and `test`: the requested one, or a
    guess. No split is chosen twice."""
    requested = {split: getattr(config, f"{split}_split") for split in _GUESSED_SPLITS}
    splits = {split: name for split, name in requested.items() if name not in ("", NO_COLUMN)}
    for split, name in splits.items():
        if name not in names:
            raise DataError(
                "{dataset} has no split {requested!r}; it has {names}.",
                "Choose one of them as {field}.",
                dataset=config.dataset,
                requested=name,
                names=some(names),
                field=f"{split}_split",
            )
        if list(splits.values()).count(name) > 1:
            raise DataError(
                "One split is chosen twice: {name!r}.",
                "Choose a different one for each.",
                name=name,
            )
    free = [name for name in names if name not in splits.values()]
    for split, guesses in _GUESSED_SPLITS.items():
        guess = next((guess for guess in guesses if guess in free), "")
        if guess and not requested[split]:
            splits[split] = guess
            free.remove(guess)
    if "train" not in splits:
        guessed = [split for split in splits if not requested[split]]
        if not free and not guessed:
            raise DataError(
                "No split of {dataset} is left to train on; it has {names}.",
                "Choose one of them as {field}.",
                dataset=config.dataset,
                names=some(names),
                field="train_split",
            )
        splits["train"] = free[0] if free else splits.pop(guessed[0])
    return {split: splits[split] for split in requested if split in splits}
