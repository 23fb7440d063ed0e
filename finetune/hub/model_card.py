"""The model card of a run: metadata for the Hub, and `templates/model_card.md.jinja` filled in.

All it says is derived from the run. Its example sentences are the project's own, never a person's
pairs; names and texts of a person are shown as code, so that nothing in them is markup.

Source of the metadata: https://huggingface.co/docs/hub/model-cards
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import jinja2
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from finetune.config import RunConfig, is_upload
from finetune.data import catalog, check_report, checkpoints
from finetune.data.catalog import CatalogEntry
from finetune.data.check_report import Finding
from finetune.errors import FinetuneError, StoreError
from finetune.evaluation import report
from finetune.evaluation.report import Analysis
from finetune.inference import decision_rule
from finetune.inference.decision_rule import DecisionRule
from finetune.metrics.classification import ClassScores
from finetune.runs.run import Run
from finetune.runs.summary import RunSummary

EXAMPLES = (
    ("The shop opens at nine.", "At nine the shop opens."),
    ("The nurse thanked the driver.", "The driver thanked the nurse."),
    ("Your refund will arrive within five days.", "Your refund takes at most fifteen days."),
)
PICTURE = "training.png"
TITLES = {"accuracy": "Accuracy", "f1": "F1"}
_MARKUP = re.compile(r"[\\`*_~$<>\[\]|#&@]|://|www\.", re.IGNORECASE)


def card_text(
    run: Run,
    summary: RunSummary,
    full: str,
    licence: str | None = None,
    findings: Sequence[Finding] = (),
    picture: bool = True,
) -> str:
    """The card as Markdown with its metadata in front.

    Args:
        run: whose model it is.
        summary: the fold over its events.
        full: the repository, `namespace/name`.
        licence: as the Hub spells it; None for that of the base model, as far as it is known.
        findings: of the check of the run's pairs; no row of them is shown.
        picture: whether `training.png` lies beside the card.
    """
    card = _Card(run, summary, full, findings, picture)
    body = _template().render(card=card).strip()
    licence = base_licence(run.config()) if licence is None else licence
    return str(ModelCard(f"---\n{_metadata(card, licence).to_yaml()}\n---\n\n{body}\n"))


def base_licence(config: RunConfig) -> str:
    """The licence of the checkpoint a run began with; empty where only the Hub knows it."""
    checkpoint = catalog.find_checkpoint(config.checkpoint)
    return checkpoint.licence if checkpoint else ""


def public_config(config: RunConfig) -> RunConfig:
    """The configuration without the names of files and folders on this machine's disk."""
    values = config.to_dict()
    for name in ("checkpoint", "dataset"):
        if catalog.is_local_path(str(values[name])):
            values[name] = f"local-{name}"
    if values["accelerate_config"]:
        values["accelerate_config"] = "accelerate_config.yaml"
    return dataclasses.replace(config, **values)


def check_findings(run: Run, summary: RunSummary) -> Sequence[Finding]:
    """What a check of the run's pairs found, if there was one of the very same rows."""
    with contextlib.suppress(FinetuneError):
        folder = check_report.folder_for(run.folder.parent, run.config())
        checked = check_report.read_report(folder)
        trained = summary.prepared.fingerprint if summary.prepared else ""
        if checked is not None and trained and checked.fingerprint == trained:
            return [finding for finding in checked.findings if finding.severity != "notes"]
    return ()


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "plain": _plain,
        "code": _code,
        "cell": _cell,
        "number": "{:,}".format,
        "counted": lambda count, noun: f"{count:,} {noun}" + "s" * (count != 1),
        "quoted": json.dumps,
    }
    return environment.get_template("model_card.md.jinja")


def _code(value: object) -> str:
    """A person's value as code: nothing in it is markup."""
    text = re.sub(r"[`\s]+", " ", str(value)).strip()
    return f"`{text or ' '}`"


def _cell(value: object) -> str:
    """A value in a table, whose cell it must not end: a pipe is escaped by an odd number of
    backslashes, so those that it follows are doubled."""
    return re.sub(r"(\\*)\|", r"\1\1\\|", _code(value)) if isinstance(value, str) else str(value)


def _plain(value: str) -> str:
    """A person's text among the card's: what could be markup or a link in it is code."""
    return " ".join(_code(word) if _MARKUP.search(word) else word for word in value.split())


@dataclass(frozen=True)
class _SourceSplit:
    """Which rows of the source make one of the run's splits.

    Args:
        name: the source's split; empty where the run did not note it.
        cut: whether they are a part of it that was not trained on.
    """

    name: str
    cut: bool

    @property
    def origin(self) -> str:
        return f"{'cut from' if self.cut else 'of'} the source's split {_code(self.name)}"


class _Card:
    """What the template reads of a run; see `card_text` for the arguments."""

    titles = TITLES

    def __init__(
        self, run: Run, summary: RunSummary, full: str, findings: Sequence[Finding], picture: bool
    ) -> None:
        self._run, self._summary, self._own_config = run, summary, run.config()
        self.full, self.name = full, full.split("/")[-1]
        self.findings = findings
        self.config = public_config(self._own_config)
        self.picture = PICTURE if picture and (summary.train or summary.validation) else ""
        self.paired, self.noun = summary.paired, "pairs" if summary.paired else "sentences"
        self.max_length = checkpoints.length_of(run.folder)
        self.rule: DecisionRule = decision_rule.read_rule(run.best)
        self.step, self.total_steps = summary.step, summary.total_steps
        self.stopped, self.evaluations = summary.status == "stopped", len(summary.validation)
        prepared, started, best = summary.prepared, summary.started, summary.best
        self.labels = prepared.labels if prepared else []
        self.data: dict[str, Any] = {}
        if prepared and prepared.data:
            empty = {"rows": {}, "left_out": {}, "revision": "", "positive_label": "", "splits": {}}
            self.data = empty | prepared.data
        self.fingerprint = prepared.fingerprint if prepared else ""
        self.train_examples = prepared.train_examples if prepared else 0
        self.validation_examples = prepared.validation_examples if prepared else 0
        majority = {"majority class": prepared.majority} if prepared and prepared.majority else {}
        self.baselines = summary.baselines or majority
        self.device = started.device if started else ""
        self.processes = started.processes if started else 1
        self.versions = started.versions if started else {}
        self.best = best if prepared else None
        self.openings = summary.opened

    @cached_property
    def offered_dataset(self) -> CatalogEntry | None:
        return catalog.find_dataset(self._own_config.dataset)

    @cached_property
    def base_model(self) -> str:
        """The base model on the Hub; empty where it is none of the Hub's."""
        checkpoint = self._own_config.checkpoint
        offered = catalog.find_checkpoint(checkpoint)
        if offered is not None:
            return offered.repo
        return "" if catalog.is_local_path(checkpoint) else checkpoint

    @cached_property
    def hub_dataset(self) -> str:
        """The Hub dataset learned from; empty where it was none."""
        if self.offered_dataset is not None:
            return self.offered_dataset.repo
        dataset = self._own_config.dataset
        return "" if is_upload(dataset) or catalog.is_local_path(dataset) else dataset

    @property
    def source(self) -> str:
        """What the data is called; a person's files are not named."""
        if self.offered_dataset is not None:
            return self.offered_dataset.label.split(" (")[0]
        return str((self.hub_dataset and self.data.get("source")) or f"own {self.noun}")

    @property
    def unknown_labelling(self) -> bool:
        return bool(self.data.get("source")) and self.offered_dataset is None

    @property
    def positive(self) -> str:
        return self.rule.positive or self.data.get("positive_label") or "the positive class"

    @property
    def has_test_set(self) -> bool:
        return "test" in self.data.get("rows", {})

    @property
    def example_arguments(self) -> str:
        first, second = map(json.dumps, EXAMPLES[0])
        return f"{first}, {second}" if self.paired else first

    @property
    def training_time(self) -> str:
        seconds = self._summary.trained
        minutes = round(seconds / 60)
        if seconds < 120:
            return f"{seconds:.0f} s" if seconds else ""
        return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"

    def columns(self, scores: dict[str, float]) -> list[str]:
        return [score for score in TITLES if score in scores]

    def source_split(self, split: str) -> _SourceSplit:
        names = self.data.get("splits")
        if not names:
            return _SourceSplit("", False)
        cut = split not in names
        return _SourceSplit(str(names["train" if cut else split]), cut)

    def intervals(self, split: str) -> dict[str, tuple[float, float]]:
        """Score -> the ends of its interval: of the saved logits, else as the run noted them."""
        if (analysis := self.analysis(split)) is not None:
            return {name: (one.low, one.high) for name, one in analysis.scores.items()}
        best = self._summary.best
        noted = best.intervals if best is not None and split == "validation" else {}
        return {name: (ends[0], ends[1]) for name, ends in noted.items()}

    def analysis(self, split: str) -> Analysis | None:
        """What the saved logits say; None where they cannot be read."""
        with contextlib.suppress(StoreError):
            return report.evaluate_run(self._run, self._summary, split).analysis
        return None

    def classes(self, analysis: Analysis) -> list[tuple[str, list[int], ClassScores]]:
        """The name of each class, how often each was answered for it, and its scores."""
        counts = analysis.confusion.tolist()
        return list(zip(analysis.labels, counts, analysis.classes, strict=True))

    def better_baseline(self, analysis: Analysis) -> dict[str, Any]:
        """The best baseline and its level, where the model's score is not above it; else empty."""
        score = "f1" if "f1" in analysis.scores else "accuracy"
        baselines = self._summary.baselines
        levels = {scores[score]: name for name, scores in baselines.items() if score in scores}
        value, level = analysis.scores[score].value, max(levels, default=-1.0)
        if value > level:
            return {}
        return {"measure": TITLES[score], "score": value, "name": levels[level], "level": level}


def _metadata(card: _Card, licence: str) -> ModelCardData:
    fields: dict[str, Any] = {"base_model_relation": "finetune"} if card.base_model else {}
    return ModelCardData(
        language="en" if card.offered_dataset else None,
        license=licence or None,
        base_model=card.base_model or None,
        datasets=[card.hub_dataset] if card.hub_dataset else None,
        metrics=list(TITLES),
        pipeline_tag="text-classification",
        library_name="transformers",
        tags=["sentence-pairs" if card.paired else "sentences", "finetune"],
        model_name=card.name,
        eval_results=_eval_results(card) or None,
        **fields,
    )


def _eval_results(card: _Card) -> list[EvalResult]:
    scores = {"validation": card.best.metrics if card.best else {}}
    if card.openings and card.best and card.openings[-1].step == card.best.step:
        scores["test"] = card.openings[-1].metrics
    config = card.config.dataset_config_name
    if card.offered_dataset is not None:
        config = config or card.offered_dataset.config
    origins = {split: card.source_split(split) for split in scores}
    return [
        EvalResult(
            task_type="text-classification",
            task_name="Text classification",
            dataset_type=card.hub_dataset or "custom",
            dataset_name=card.source + f" (cut from {origins[split].name})" * origins[split].cut,
            dataset_config=config or None,
            dataset_split=origins[split].name or None,
            dataset_args=_rows_of_split(card, split, origins[split]) or None,
            dataset_revision=card.data.get("revision") or None,
            metric_type=score,
            metric_name=TITLES[score],
            metric_value=round(metrics[score], 4),
        )
        for split, metrics in scores.items()
        for score in card.columns(metrics)
    ]


def _rows_of_split(card: _Card, split: str, origin: _SourceSplit) -> dict[str, Any]:
    """How many rows scores are of that are not those of a whole split of the source."""
    rows = card.data.get("rows", {}).get(split, 0)
    if origin.cut:
        return {"cut_from": origin.name, "rows": rows}
    left_out = sum(card.data.get("left_out", {}).get(split, {}).values())
    return {"rows": rows, "rows_in_split": rows + left_out} if left_out else {}
