"""The model card of a run: metadata for the Hub, and `templates/model_card.md.jinja` filled in.

All its statements are derived from the run. Its example sentences are the project's own, never a
person's pairs. Names and texts of a person are shown as code, so that they cannot act as markup.

Source of the metadata: https://huggingface.co/docs/hub/model-cards
"""

import contextlib
import io
import re
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from itertools import cycle
from pathlib import Path

import jinja2
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from finetune import disk
from finetune.config import RunConfig, hyperparameters, is_upload
from finetune.data import catalog, check_report, checkpoint_catalog, checkpoints
from finetune.data.check_report import CheckReport
from finetune.errors import FinetuneError, StoreError
from finetune.evaluation import cross_validation, picking, report
from finetune.evaluation.report import Analysis
from finetune.findings import Finding
from finetune.inference import decision_rule, quantized
from finetune.metrics.catalog import metric_name, metric_title
from finetune.metrics.intervals import Interval
from finetune.runs import grids
from finetune.runs.events import Prepared
from finetune.runs.grids import SeedSpread
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.runs.summary import RunSummary
from finetune.tasks.registry import deciding_metric
from finetune.text_hashes import without_direction

EXAMPLES = (
    ("The shop opens at nine.", "At nine the shop opens."),
    ("The nurse thanked the driver.", "The driver thanked the nurse."),
    ("Your refund will arrive within five days.", "Your refund takes at most fifteen days."),
)
PICTURE = "training.png"
_MARKUP = re.compile(r"[\\`*_~$<>\[\]|#&@]|://|www\.", re.IGNORECASE)


def card_text(run: Run, summary: RunSummary, full: str, licence: str | None = None) -> str:
    """Write the card as Markdown that begins with its metadata.

    Args:
        full: the repository, `namespace/name`.
        licence: as the Hub spells it; None for that of the base model, if it is known.
    """
    if summary.prepared is None:
        raise StoreError("This run has read no data yet.", "Its card is there when it trains.")
    card = _Card(run, summary, summary.prepared, full)
    findings = check_findings(run, summary)
    body = _template().render(card=card, summary=summary, findings=findings).strip()
    licence = base_licence(run.config()) if licence is None else licence
    return str(ModelCard(f"---\n{_metadata(card, licence).to_yaml()}\n---\n\n{body}\n"))


def base_licence(config: RunConfig) -> str:
    """The licence of the run's checkpoint; empty if only the Hub knows it."""
    checkpoint = checkpoint_catalog.find_checkpoint(config.checkpoint)
    return checkpoint.licence if checkpoint else ""


def public_config(config: RunConfig) -> RunConfig:
    """The configuration without the names of files and folders on this machine's disk."""
    values = config.to_dict()
    for name in ("checkpoint", "dataset"):
        if catalog.is_local_path(str(values[name])):
            values[name] = f"local-{name}"
    if values["accelerate_config"]:
        values["accelerate_config"] = "accelerate_config.yaml"
    return RunConfig(**values)


def check_findings(run: Run, summary: RunSummary) -> Sequence[Finding]:
    """The open findings of a data check of the same rows; empty if there was none."""
    with contextlib.suppress(FinetuneError):
        folder = check_report.folder_for(run.folder.parent, run.config())
        checked = disk.read_as(CheckReport, folder / "report.json")
        prepared = summary.prepared
        if checked and prepared and checked.fingerprint == prepared.fingerprint:
            return [
                finding for finding in checked.findings
                if finding.severity != "notes" and not finding.done
            ]  # fmt: skip
    return ()


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: without_direction(value) if isinstance(value, str) else value,
    )
    environment.globals |= {"picture": PICTURE, "zip": zip}
    environment.globals["hyperparameters"] = hyperparameters()
    environment.filters |= {
        "plain": _plain,
        "code": _code,
        "cell": _cell,
        "number": "{:,}".format,
        "named": metric_name,
        "counted": lambda count, noun: f"{count:,} {noun}" + "s" * (count != 1),
    }
    return environment.get_template("model_card.md.jinja")


def _code(value: object) -> str:
    """Format a person's value as code, so that it cannot act as markup."""
    text = re.sub(r"[`\s]+", " ", str(value)).strip()
    return f"`{text or ' '}`"


def _cell(value: object) -> str:
    """Format a value for a table. Backslashes before a pipe are doubled, so it stays escaped."""
    escaped = re.sub(r"(?<!\\)(\\*)\|", r"\1\1\\|", _code(value))
    return escaped if isinstance(value, str) else str(value)


def _plain(value: str) -> str:
    """Format a person's text; words that could be markup or a link become code."""
    return " ".join(_code(word) if _MARKUP.search(word) else word for word in value.split())


class _Card:
    """The values of a run that the template needs besides its summary."""

    def __init__(self, run: Run, summary: RunSummary, prepared: Prepared, full: str) -> None:
        config = run.config()
        self._run, self.summary, self.prepared = run, summary, prepared
        self.full, self.name = full, full.split("/")[-1]
        self.folds = cross_validation.read_folds(run)  # empty unless it was trained on all rows
        self.config = public_config(summary.resolved(config))
        self.template, self.has_right = summary.task.template, summary.task.has_right
        self.example = EXAMPLES[0][: 1 + summary.paired]
        self.noun = "pairs" if summary.paired else "texts"
        self.data = defaultdict(dict, prepared.data)
        self.measured, classes = [metric.name for metric in summary.measured], len(prepared.labels)
        self.titles = {name: str(metric_title(name, classes)) for name in self.measured}
        about = run.about()
        study = about.study
        others = RunStore(run.folder.parent).runs() if study else []
        trials = [other for other in others if other.about().study == study]
        # The number of trials of the run's search; 0 without one.
        self.trials = about.searched or len(trials)
        self.picking = picking.run_picking(run, trials)
        self.repeats = _repeats(run, [other for other in others if other.about().group == study])
        self.max_length = checkpoints.length_of(run.folder)
        self.rule = decision_rule.read_rule(run.best)
        self.int8 = quantized.read_report(run.best) if quantized.is_enabled(run.best) else None
        self.positive = self.rule.positive or self.data["positive_label"] or "the positive class"
        # Names on the Hub; empty if it is not on the Hub.
        base, self.offered = config.checkpoint, catalog.find_dataset(config.dataset)
        listed = checkpoint_catalog.find_checkpoint(base)
        self.base_model = listed.repo if listed else "" if catalog.is_local_path(base) else base
        own = is_upload(config.dataset) or catalog.is_local_path(config.dataset)
        self.hub_dataset = "" if own else config.dataset
        self.source = str((self.hub_dataset and self.data["source"]) or f"own {self.noun}")
        if self.offered is not None:
            self.hub_dataset = self.offered.repo
            self.source = self.offered.label.split(" (")[0]

    def expected(self, analysis: Analysis | None) -> dict[str, Interval]:
        """The scores that new examples will show, for those that picking has made too good."""
        scores = analysis.scores if analysis else {}
        return self.picking.expected_intervals(scores) if self.picking else {}

    def source_split(self, split: str) -> tuple[str, bool]:
        """The source's split of some rows, and whether they were cut from its training rows; an
        empty name if the run did not record it."""
        names = self.data["splits"]
        cut = bool(names) and split not in names
        return str(names.get("train" if cut else split, "")), cut

    def analysis(self, split: str) -> Analysis | None:
        """The analysis of the saved logits; None if they cannot be read."""
        with contextlib.suppress(StoreError):
            return report.evaluate_run(self._run, self.summary, split).analysis
        return None

    def kept_metrics(self, split: str, most_probable: dict[str, float]) -> dict[str, float]:
        """The scores at the saved threshold; if there is none, those of the most probable class."""
        analysis = self.analysis(split)
        return (analysis and analysis.at_threshold) or most_probable


def _repeats(run: Run, others: list[Run]) -> SeedSpread | None:
    """The spread of scores over other runs with the same hyperparameters and other seeds."""
    config = run.config()
    same = [
        other for other in others
        if other.config().changed(seed=config.seed, name=config.name) == config
        and other.state().status == "finished"
    ]  # fmt: skip
    decides = deciding_metric(config, run.state().task)
    return grids.seed_spread((other.metrics.get(decides) for other in same), decides)


def _metadata(card: _Card, licence: str) -> ModelCardData:
    summary = card.summary
    scores: dict[str, dict[str, float]] = {}
    if summary.best:
        scores["validation"] = card.kept_metrics("validation", summary.best.metrics)
    if summary.opened and summary.best and summary.opened[-1].step == summary.best.step:
        scores["test"] = card.kept_metrics("test", summary.opened[-1].metrics)
    results = []
    for split, metrics in scores.items():
        source_split, cut = card.source_split(split)
        how = f" (cut from {source_split})" * cut
        if split == "validation" and card.folds:
            how = f" ({len(card.folds)}-fold cross-validation)"
        results += [
            EvalResult(
                task_type="text-classification",
                task_name="Text classification",
                dataset_type=card.hub_dataset or "custom",
                dataset_name=card.source + how,
                dataset_split=source_split or None,
                dataset_revision=card.data["revision"] or None,
                metric_type=score,
                metric_name=title,
                metric_value=round(metrics[score], 4),
            )
            for score, title in card.titles.items()
            if score in metrics
        ]
    return ModelCardData(
        license=licence or None,
        base_model=card.base_model or None,
        datasets=[card.hub_dataset] if card.hub_dataset else None,
        metrics=card.measured,
        pipeline_tag="text-classification",
        library_name="transformers",
        tags=["sentence-pairs" if card.noun == "pairs" else "texts", "finetune"],
        model_name=card.name,
        eval_results=results or None,
    )


# Colours and markers, in the order of the metrics; further ones begin anew.
_LOOKS = (("#009e73", "o"), ("#d55e00", "D"), ("#cc79a7", "s"), ("#56b4e9", "^"), ("#e69f00", "v"))


def curves_png(summary: RunSummary) -> bytes | None:
    """Plot training loss and validation scores by step as PNG; None before any step. Source of the
    colours: Okabe and Ito, https://jfly.uni-koeln.de/color/."""
    if not len(summary.train) and not summary.validation:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), dpi=120, layout="constrained")
    loss, scores = figure.subplots(1, 2)
    own = "Training loss with the teacher's" if summary.taught else "Training loss"
    loss.set_title(own, loc="left")
    loss.plot([e.step for e in summary.train], [e.loss for e in summary.train], color="#0072b2")
    loss.set_ylim(bottom=0)
    scores.set_title("Validation", loc="left")
    for metric, (colour, marker) in zip(summary.measured, cycle(_LOOKS), strict=False):
        name, label = metric.name, metric_name(metric.name, summary.classes)
        points = [(e.step, e.metrics[name]) for e in summary.curve if name in e.metrics]
        scores.plot(*zip(*points, strict=True), label=label, color=colour, marker=marker)
    if summary.best is not None:
        scores.axvline(summary.best.step, color="#64748b", linestyle=":", label="kept")
    scores.ticklabel_format(useOffset=False)
    low, high = scores.get_ylim()
    if (lack := 0.02 - (high - low)) > 0:  # smaller differences are chance
        scores.set_ylim(low - lack / 2, high + lack / 2)
    scores.legend()
    for axes in (loss, scores):
        axes.set_xlabel("step")
        axes.grid(color="#e2e8f0")
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()
