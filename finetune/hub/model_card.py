"""The model card of a run: what it says is derived from the run, and nothing else is said.

Its sentences are examples of our own, never the person's pairs. Knows no network and no torch;
sending it is `publish`' business.

Source of the metadata: https://huggingface.co/docs/hub/model-cards
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from finetune.config import RunConfig, is_upload
from finetune.data import catalog, check_report, checkpoints
from finetune.data.check_report import Finding
from finetune.errors import FinetuneError, StoreError
from finetune.evaluation import report
from finetune.evaluation.report import Analysis
from finetune.inference import decision_rule
from finetune.inference.decision_rule import DecisionRule
from finetune.metrics.intervals import Interval
from finetune.runs.run import Run
from finetune.runs.summary import RunSummary

EXAMPLES = (
    ("The shop opens at nine.", "At nine the shop opens."),
    ("The nurse thanked the driver.", "The driver thanked the nurse."),
    ("Your refund will arrive within five days.", "Your refund takes at most fifteen days."),
)
PICTURE = "training.png"
_TITLES = {"accuracy": "Accuracy", "f1": "F1"}
_MARKUP = re.compile(r"[\\`*_~$<>\[\]|#&@]|://|www\.", re.IGNORECASE)
_MOST_CLASSES = 12  # shown in a confusion matrix
_MOST_FINDINGS = 12


@dataclass(frozen=True)
class CardFacts:
    """What a card is made of.

    Args:
        run: whose card it is.
        config: its configuration, without places on this machine's disk.
        summary: the fold over its events.
        full: the repository, `namespace/name`.
        licence: as the Hub spells it; empty for none.
        validation, test: what the saved logits say; None where they cannot be read, or the test
            set was not opened.
        chosen: threshold and temperature saved with the model.
        findings: of the examination of its pairs.
        picture: whether the picture of its curves is beside the card.
    """

    run: Run
    config: RunConfig
    summary: RunSummary
    full: str
    licence: str
    validation: Analysis | None
    test: Analysis | None
    chosen: DecisionRule
    findings: Sequence[Finding]
    picture: bool

    @property
    def name(self) -> str:
        return self.full.split("/")[-1]

    @property
    def labels(self) -> list[str]:
        return self.summary.prepared.labels if self.summary.prepared else []

    @property
    def data(self) -> dict[str, Any]:
        """Where the pairs come from, as the run wrote it down."""
        return self.summary.prepared.data if self.summary.prepared else {}

    @property
    def noun(self) -> str:
        return "pairs" if self.summary.paired else "sentences"


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
        findings: of the examination of the run's pairs; no row of them is shown.
        picture: whether `training.png` lies beside the card.
    """
    facts = _facts(run, summary, full, licence, findings, picture)
    parts = (
        f"# {_plain(facts.name)}", _intended(facts), _use(facts), _results(facts), _test(facts),
        _limits(facts), _data(facts), _training(facts),
    )  # fmt: skip
    body = "\n\n".join(part for part in parts if part)
    return str(ModelCard(f"---\n{_metadata(facts).to_yaml()}\n---\n\n{body}\n"))


def base_licence(config: RunConfig) -> str:
    """The licence of the checkpoint a run began with; empty where only the Hub knows it."""
    known = catalog.find_checkpoint(config.checkpoint)
    return known.licence if known else ""


def public(config: RunConfig) -> RunConfig:
    """The configuration without the names of files and folders on this machine's disk."""
    values = config.to_dict()
    for name in ("checkpoint", "dataset"):
        if catalog.is_local_path(str(values[name])):
            values[name] = f"local-{name}"
    if values["accelerate_config"]:
        values["accelerate_config"] = "accelerate_config.yaml"
    return dataclasses.replace(config, **values)


def _facts(
    run: Run,
    summary: RunSummary,
    full: str,
    licence: str | None,
    findings: Sequence[Finding],
    picture: bool,
) -> CardFacts:
    config = run.config()
    return CardFacts(
        run=run,
        config=public(config),
        summary=summary,
        full=full,
        licence=base_licence(config) if licence is None else licence,
        validation=_analysis(run, summary, "validation"),
        test=_analysis(run, summary, "test") if summary.opened else None,
        chosen=decision_rule.read_rule(run.best),
        findings=findings,
        picture=picture and bool(len(summary.train) or summary.validation),
    )


def _analysis(run: Run, summary: RunSummary, split: str) -> Analysis | None:
    with contextlib.suppress(StoreError):
        return report.evaluate_run(run, summary, split).analysis
    return None


# The metadata.


def _metadata(facts: CardFacts) -> ModelCardData:
    repo, known = _hub_id(facts.run.config()), catalog.find_dataset(facts.config.dataset)
    base = _base(facts.run.config())
    fields: dict[str, Any] = {"base_model_relation": "finetune"} if base else {}
    return ModelCardData(
        language="en" if known else None,
        license=facts.licence or None,
        base_model=base or None,
        datasets=[repo] if repo else None,
        metrics=["accuracy", "f1"],
        pipeline_tag="text-classification",
        library_name="transformers",
        tags=["sentence-pairs" if facts.summary.paired else "sentences", "finetune"],
        model_name=facts.name,
        eval_results=_eval_results(facts) or None,
        widget=_widget(facts),
        **fields,
    )


def _base(config: RunConfig) -> str:
    """The base model on the Hub; empty where it is none of the Hub's."""
    known = catalog.find_checkpoint(config.checkpoint)
    if known is not None:
        return known.repo
    return "" if catalog.is_local_path(config.checkpoint) else config.checkpoint


def _hub_id(config: RunConfig) -> str:
    """The Hub dataset learned from, if it was one."""
    known = catalog.find_dataset(config.dataset)
    if known is not None:
        return known.repo
    here = is_upload(config.dataset) or catalog.is_local_path(config.dataset)
    return "" if here else config.dataset


def _widget(facts: CardFacts) -> list[dict[str, str]]:
    """Examples for the Hub's own widget, which has one box: a pair stands in it with the
    separator that the tokenizer puts between two sentences."""
    found = facts.run.read_json(facts.run.best / "tokenizer_config.json").get("sep_token")
    mark = found.get("content") if isinstance(found, dict) else found
    apart = f" {mark} " if isinstance(mark, str) and mark else " "
    paired = facts.summary.paired
    return [{"text": apart.join(pair) if paired else pair[0]} for pair in EXAMPLES[:2]]


def _eval_results(facts: CardFacts) -> list[EvalResult]:
    best, opened = facts.summary.best, facts.summary.opened
    known = catalog.find_dataset(facts.config.dataset)
    repo = _hub_id(facts.run.config())
    asked = facts.config.dataset_config_name or (known.config if known else "")
    scores = {"validation": best.metrics if best else {}}
    if opened and best is not None and opened[-1].step == best.step:
        scores["test"] = opened[-1].metrics
    splits = {split: _split(facts, split) for split in scores}
    return [
        EvalResult(
            task_type="text-classification",
            task_name="Text classification",
            dataset_type=repo or "custom",
            dataset_name=_source(facts) + f" (cut from {splits[split].name})" * splits[split].cut,
            dataset_config=asked or None,
            dataset_split=splits[split].name or None,
            dataset_args=_part(facts, split, splits[split]) or None,
            dataset_revision=facts.data.get("revision") or None,
            metric_type=score,
            metric_name=title,
            metric_value=round(metrics[score], 4),
        )
        for split, metrics in scores.items()
        for score, title in _TITLES.items()
        if score in metrics
    ]


@dataclass(frozen=True)
class _Split:
    """Which split of the source the rows of one of ours are.

    Args:
        name: the source's own; empty where a run of an earlier version did not note it.
        cut: whether only a part of it, which was not trained on: the source has no such split.
    """

    name: str
    cut: bool

    def __str__(self) -> str:
        how = "cut from" if self.cut else "of"
        return f"{how} the source's split {_code(self.name)}"


def _split(facts: CardFacts, split: str) -> _Split:
    names = facts.data.get("splits")
    if not names:
        return _Split("", False)
    cut = split not in names
    return _Split(str(names["train" if cut else split]), cut)


def _part(facts: CardFacts, split: str, found: _Split) -> dict[str, Any]:
    """What must be known of scores that are not those of a whole split."""
    rows = facts.data.get("rows", {}).get(split, 0)
    if found.cut:
        return {"cut_from": found.name, "rows": rows}
    left_out = sum(facts.data.get("left_out", {}).get(split, {}).values())
    return {"rows": rows, "rows_in_split": rows + left_out} if left_out else {}


# The text.


def _source(facts: CardFacts) -> str:
    """What to call the data: the dataset's name; a person's files are not named."""
    dataset = facts.run.config().dataset
    known = catalog.find_dataset(dataset)
    if known is not None:
        return known.label.split(" (")[0]
    own = is_upload(dataset) or catalog.is_local_path(dataset)
    return str((not own and facts.data.get("source")) or f"own {facts.noun}")


def _code(value: object) -> str:
    """A value of the person's as code: nothing in it is markup."""
    plain = re.sub(r"[`\s]+", " ", str(value)).strip()
    return f"`{plain or ' '}`"


def _cell(value: object) -> str:
    """A value in a table, whose cell it must not end.

    A pipe is escaped by an odd number of backslashes, so those that it follows are doubled.
    """
    return re.sub(r"(\\*)\|", r"\1\1\\|", _code(value)) if isinstance(value, str) else str(value)


def _intended(facts: CardFacts) -> str:
    prepared, paired = facts.summary.prepared, facts.summary.paired
    labels = ", ".join(map(_code, facts.labels)) or "its classes"
    count = f"{prepared.train_examples:,} " if prepared else ""
    what = "two sentences" if paired else "a sentence"
    base = _base(facts.run.config()) or facts.config.checkpoint
    language = "English" if catalog.find_dataset(facts.config.dataset) else "their language"
    return (
        f"Puts {what} into one of the classes {labels}. Fine-tuned from {_code(base)} on "
        f"{count}training {facts.noun} ({_plain(_source(facts))}).\n\n"
        "## Intended use\n\n"
        f"Classifying {facts.noun} like those it was trained on, in {language} and from the same "
        "field. Measure it on your own before you rely on it, and do not let it alone decide "
        "anything about people."
    )


def _plain(value: str) -> str:
    """A text of the person's among ours: what could be markup or a link in it is code."""
    return " ".join(_code(word) if _MARKUP.search(word) else word for word in value.split())


def _use(facts: CardFacts) -> str:
    first, second = EXAMPLES[0]
    texts = f'"{first}"' + f', "{second}"' * facts.summary.paired
    repo = json.dumps(facts.full)
    cut = f"truncation=True, max_length={checkpoints.length_of(facts.run.folder)}"
    return f"""## How to use

```python
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({repo})
model = AutoModelForSequenceClassification.from_pretrained({repo})
inputs = tokenizer({texts}, return_tensors="pt", {cut})
with torch.no_grad():
    probabilities = model(**inputs).logits.softmax(dim=-1)[0]
for index, name in model.config.id2label.items():
    print(name, round(probabilities[index].item(), 3))
```{_how_decided(facts)}"""


def _how_decided(facts: CardFacts) -> str:
    """What was saved with the model besides: in `config.json`, which transformers does not read."""
    chosen, said = facts.chosen, []
    if chosen.threshold is not None:
        positive = chosen.positive or facts.data.get("positive_label") or "the positive class"
        said.append(
            f"The answer is {_code(positive)} from a probability of {chosen.threshold:g} on; the "
            "scores below are of the most probable class."
        )
    if chosen.temperature is not None:
        said.append(
            f"Calibrated probabilities are `softmax(logits / {chosen.temperature:.4g})`; no answer "
            "changes by it."
        )
    if not said:
        return ""
    where = "Both lie" if len(said) == 2 else "It lies"
    return "\n\n" + " ".join(said) + f' {where} under `"finetune"` in `config.json`.'


def _results(facts: CardFacts) -> str:
    summary, best, prepared = facts.summary, facts.summary.best, facts.summary.prepared
    if best is None or prepared is None:
        return "## Results\n\nThis model was stopped before it was evaluated."
    ended = " The run was stopped before its end." if summary.status == "stopped" else ""
    split = _split(facts, "validation")
    where = f", {split}," if split.name and (split.cut or split.name != "validation") else ","
    lines = [
        "## Results",
        "",
        f"On {prepared.validation_examples:,} validation {facts.noun}{where} after step "
        f"{best.step} of {prepared.total_steps}, the best by {_measure(facts)} of "
        f"{_counted(len(summary.validation), 'evaluation')}.{ended} The model was "
        "chosen on them, so the figures flatter it somewhat; intervals are of 95%.",
        "",
        f"| | {' | '.join(_TITLES[score] for score in _TITLES if score in best.metrics)} |",
        "|---|" + "---|" * sum(score in best.metrics for score in _TITLES),
        _row("this model", best.metrics, _intervals(facts)),
    ]
    names = summary.baselines or (
        {"majority class": prepared.majority} if prepared.majority else {}
    )
    lines += [_row(name, scores, {}, best.metrics) for name, scores in names.items()]
    return "\n".join(lines) + _confusion(facts.validation)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + "s" * (count != 1)


def _measure(facts: CardFacts) -> str:
    known = facts.config.metric_for_best_model
    return _TITLES.get(known, known)


def _intervals(facts: CardFacts) -> dict[str, tuple[float, float]]:
    if facts.validation is not None:
        return {name: (one.low, one.high) for name, one in facts.validation.scores.items()}
    best = facts.summary.best
    return {name: (ends[0], ends[1]) for name, ends in (best.intervals if best else {}).items()}


def _row(
    name: str,
    scores: dict[str, float],
    ends: dict[str, tuple[float, float]],
    among: dict[str, float] | None = None,
) -> str:
    cells = []
    for score in _TITLES:
        if score not in (scores if among is None else among):
            continue
        interval = f" ({ends[score][0]:.3f} to {ends[score][1]:.3f})" if score in ends else ""
        cells.append(f"{scores[score]:.4f}{interval}" if score in scores else "")
    return f"| {name} | {' | '.join(cells)} |"


def _confusion(found: Analysis | None) -> str:
    if found is None or not 1 < len(found.labels) <= _MOST_CLASSES:
        return ""
    names = [_cell(name) for name in found.labels]
    lines = [
        "", "", "A row is the true class, a column the answer:", "",
        f"| | {' | '.join(names)} | recall |", "|---|" + "---:|" * (len(names) + 1),
    ]  # fmt: skip
    for name, counts, scores in zip(names, found.confusion, found.classes, strict=True):
        cells = " | ".join(f"{int(count):,}" for count in counts)
        lines.append(f"| {name} | {cells} | {scores.recall:.3f} |")
    return "\n".join(lines)


def _test(facts: CardFacts) -> str:
    opened = facts.summary.opened
    if not opened:
        has = "test" in facts.data.get("rows", {})
        return (
            "## Test set\n\nThere is one, and it was never opened: nothing was chosen on it."
            if has
            else ""
        )
    last, times = opened[-1], len(opened)
    often = "once" if times == 1 else f"{times} times; a set that is opened often flatters a model"
    ends: dict[str, Interval] = facts.test.scores if facts.test is not None else {}
    found = {name: (one.low, one.high) for name, one in ends.items()}
    shown = [score for score in _TITLES if score in last.metrics]
    split = _split(facts, "test")
    which = f" It consists of rows {split}." if split.name not in ("", "test") else ""
    lines = [
        "## Test set", "",
        f"Opened {often}.{which} The model of step {last.step} reached:", "",
        f"| | {' | '.join(_TITLES[score] for score in shown)} |", "|---|" + "---|" * len(shown),
        _row("most probable class", last.metrics, found),
    ]  # fmt: skip
    if last.threshold is not None and last.at_threshold:
        lines.append(_row(f"threshold {last.threshold:g}", last.at_threshold, {}, last.metrics))
    return "\n".join(lines) + _confusion(facts.test)


def _limits(facts: CardFacts) -> str:
    """What is known of where it fails, measured on the validation split."""
    length = checkpoints.length_of(facts.run.folder)
    lines = [f"It reads {length} tokens of a {facts.noun[:-1]}; what is longer is cut."]
    if facts.data.get("source") and not catalog.find_dataset(facts.config.dataset):
        lines.append("Its data was brought by a person; how it was labelled is not known here.")
    found = facts.validation
    if found is None:
        lines.append("Where it fails was not measured.")
        return "## Limits\n\n" + "\n".join(f"- {line}" for line in lines)
    lines = [*_gain(facts, found), *lines]
    if found.order is not None:
        lines.append(
            f"Swapping the two sentences changes the answer of {found.order.flips:,} of "
            f"{found.order.pairs:,} validation pairs."
        )
    elif facts.summary.paired:
        lines.append("Whether swapping the two sentences changes its answers was not measured.")
    lines += _weak(found) + _calibrated(found)
    if found.broken:
        lines.append(f"For {found.broken:,} examples a score was not a number.")
    return "## Limits\n\n" + "\n".join(f"- {line}" for line in lines)


def _gain(facts: CardFacts, found: Analysis) -> list[str]:
    """What a reader must know first: classes it never answers, baselines it is not above."""
    lines = []
    never = [n for n, one in enumerate(found.classes) if one.support and not one.predicted]
    answered = [n for n, one in enumerate(found.classes) if one.predicted]
    if len(answered) == 1 and len(found.labels) > 1:
        lines.append(
            f"It always answers {_code(found.labels[answered[0]])}: it has learned nothing that "
            "tells the examples apart."
        )
    elif never:
        named = ", ".join(_code(found.labels[n]) for n in never[:6])
        more = f" and {len(never) - 6} more" if never[6:] else ""
        lines.append(f"It never answers {named}{more}.")
    name = "f1" if "f1" in found.scores else "accuracy"
    known = {
        what: scores[name] for what, scores in facts.summary.baselines.items() if name in scores
    }
    if known and found.scores[name].value <= max(known.values()):
        what, level = max(known.items(), key=lambda one: one[1])
        lines.append(
            f"Its {_TITLES.get(name, name)}, {found.scores[name].value:.4f}, is not above that of "
            f"the best baseline, {what}: {level:.4f}."
        )
    return lines


def _weak(found: Analysis) -> list[str]:
    if not found.slices:
        return []
    weak = [one for one in found.slices if one.weak]
    if not weak and any(one.support and not one.recall for one in found.classes):
        return []  # said before it: a class it never finds
    if not weak:
        return ["No kind of example was found on which it is significantly weaker than elsewhere."]
    return [
        f"Weaker where {one.trait} is {_code(one.value)}: accuracy {one.accuracy.value:.3f} "
        f"({one.accuracy.low:.3f} to {one.accuracy.high:.3f}) on {one.count:,} examples."
        for one in weak
    ]


def _calibrated(found: Analysis) -> list[str]:
    line = (
        "Its confidence and its accuracy differ by "
        f"{found.reliability.ece:.3f} on average (expected calibration error)"
    )
    if found.calibration is None:
        return [f"{line}."]
    return [
        f"{line}; with its logits divided by {found.calibration.temperature:.3g} by "
        f"{found.calibration.after.ece:.3f}."
    ]


def _data(facts: CardFacts) -> str:
    """Where the pairs came from, what was left out, and what an examination found."""
    data, prepared = facts.data, facts.summary.prepared
    if prepared is None or not data:
        return ""
    revision = f" at revision {_code(data['revision'])}" if data.get("revision") else ""
    lines = [f"Source: {_plain(_source(facts))}{revision}."]
    if rows := ", ".join(f"{name} {count:,}" for name, count in data.get("rows", {}).items()):
        lines.append(f"Rows: {rows}.")
    if data.get("positive_label"):
        lines.append(f"The positive class is {_code(data['positive_label'])}.")
    for split, reasons in data.get("left_out", {}).items():
        if reasons:
            said = ", ".join(f"{count:,} ({reason})" for reason, count in reasons.items())
            lines.append(f"Left out of {split}: {said}.")
    lines.append(f"Fingerprint (sha256 over the rows): `{prepared.fingerprint}`.")
    return "## Data\n\n" + " ".join(lines) + _found(facts.findings)


def _found(findings: Sequence[Finding]) -> str:
    titles = [(_plain(one.title.rstrip(".")), one.count) for one in findings]
    shown = [f"- {title} ({_counted(count, 'row')})." for title, count in titles]
    if not shown:
        return ""
    more = len(shown) - _MOST_FINDINGS
    rest = [f"- And {more} more."] if more > 0 else []
    lines = "\n".join([*shown[:_MOST_FINDINGS], *rest])
    return f"\n\nAn examination of them found:\n\n{lines}"


def _training(facts: CardFacts) -> str:
    summary, values = facts.summary, facts.config.to_dict()
    rows = [f"| {name} | {_cell(value)} |" for name, value in values.items() if value != ""]
    picture = f"![Training loss and validation scores by step]({PICTURE})\n\n" * facts.picture
    table = "\n".join(["| hyperparameter | value |", "|---|---|", *rows])
    return (
        f"## Training\n\n{picture}{_time(summary)}\n\n<details>\n<summary>Hyperparameters"
        f"</summary>\n\n{table}\n\n</details>{_versions(summary)}"
    )


def _time(summary: RunSummary) -> str:
    """Time and hardware; the carbon they cost was not measured, so it is not said."""
    steps = f"{summary.step:,} of {summary.total_steps:,} steps"
    device = _plain(summary.started.device) if summary.started else ""
    where = f" on {device}" if device else ""
    many = summary.started.processes if summary.started else 1
    together = f" in {many} processes" if many > 1 else ""
    took = f" in {_duration(summary.trained)}" if summary.trained else ""
    return f"{steps}{took}{where}{together}, evaluations included. Energy was not measured."


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _versions(summary: RunSummary) -> str:
    if summary.started is None or not summary.started.versions:
        return ""
    versions = summary.started.versions.items()
    names = ", ".join(_plain(f"{name} {number}") for name, number in versions)
    return f"\n\nTrained with {names}."


def check_findings(run: Run, summary: RunSummary) -> Sequence[Finding]:
    """What an examination of the run's pairs found, if there was one of the very same rows."""
    with contextlib.suppress(FinetuneError):
        folder = check_report.folder_for(run.folder.parent, run.config())
        report = check_report.read_report(folder)
        trained = summary.prepared.fingerprint if summary.prepared else ""
        if report is not None and trained and report.fingerprint == trained:
            return [one for one in report.findings if one.severity != "notes"]
    return ()
