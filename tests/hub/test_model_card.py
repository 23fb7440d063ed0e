"""The model card is derived from the run, names what was not measured, and quotes no pairs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

from finetune.config import RunConfig
from finetune.data.check_report import CheckReport
from finetune.disk import write_atomically
from finetune.evaluation import saved_predictions
from finetune.findings import Example, Finding
from finetune.hub import model_card
from finetune.inference import decision_rule
from finetune.jobs import check
from finetune.runs import events
from finetune.runs.run import Run
from finetune.runs.store import RunStore
from finetune.tasks.base import SureRule
from tests.support import toys

LABELS = ["not_equivalent", "equivalent"]
SECRET = "the minister resigned on a rainy tuesday"


def prepared(**values: Any) -> events.Prepared:
    data = {
        "source": "tickets.csv", "positive_label": "equivalent", "columns": {},
        "rows": {"train": 64, "validation": 40, "test": 8}, "revision": "",
        "left_out": {"train": {"duplicates": 3}},
        "splits": {"train": "train", "validation": "validation", "test": "test"},
    }  # fmt: skip
    defaults: dict[str, Any] = {
        "train_examples": 64, "validation_examples": 40, "steps_per_epoch": 8, "total_steps": 8,
        "labels": LABELS, "parameters": 1000, "precision": "no", "fingerprint": "f" * 64,
        "majority": {"accuracy": 0.6, "f1": 0.75}, "data": data,
    }  # fmt: skip
    return events.Prepared(**defaults | values)


def evaluate(run: Run, labels: list[str] = LABELS) -> None:
    """Save the model of step 8 and its logits of 40 examples, 30 of them right."""
    draw = np.random.default_rng(0)
    truth = draw.integers(0, len(labels), 40)
    logits = draw.normal(0, 0.1, (40, len(labels))).astype(np.float32)
    answers = np.where(np.arange(40) < 30, truth, (truth + 1) % len(labels))
    logits[np.arange(40), answers] += 2
    swapped = np.concatenate([logits[:5, ::-1], logits[5:]])
    saved_predictions.save_logits(run, 8, logits, truth)
    texts = pa.table({"sentence1": [SECRET] * 40, "sentence2": [SECRET] * 40, "label": truth})
    saved_predictions.save_examples(run, "validation", texts)
    scores = {"accuracy": 0.75, "f1": 0.7}
    run.append(events.Evaluated(step=8, epoch=1.0, metrics=scores, seconds=0.1, best=True))
    run.append(events.Saved(step=8))
    both = saved_predictions.SwappedLogits(8, np.arange(40), logits, swapped)
    saved_predictions.save_swapped_logits(run, both)


def begin(store: RunStore, model: Path, event: events.Prepared, **values: Any) -> Run:
    run = store.create(RunConfig(max_length=32, **values))
    run.append(events.Started(device="CPU (2 threads)", versions={"torch": "2.13.0"}))
    run.append(event)
    toys.copy_model(model, run.best)
    return run


@pytest.fixture
def run(store: RunStore, toy_checkpoint: Path) -> Run:
    run = begin(store, toy_checkpoint, prepared())
    evaluate(run)
    run.append(events.Finished(step=8, seconds=4000.0))
    return run


def written(run: Run, **values: Any) -> str:
    return model_card.card_text(run, run.state(), "ada/pairs", **values)


def metadata(text: str) -> dict[str, Any]:
    return dict(yaml.safe_load(text.split("---\n")[1]))


def test_what_is_written_after_the_run_is_told(run: Run) -> None:
    """Its rule, how its answers depend on the order, and each look at the test set."""
    decision_rule.write_rule(run.best, threshold=0.43, temperature=1.31, positive="equivalent")
    decision_rule.write_rule(run.best, sure=SureRule(0.02, 0.95, 0.97, (), 400, 240))
    scores, at_threshold = {"accuracy": 0.5, "f1": 0.4}, {"accuracy": 0.6, "f1": 0.45}
    opened = events.TestSetOpened(step=8, metrics=scores, threshold=0.3, at_threshold=at_threshold)
    for _ in range(2):
        run.append(opened)
    text = written(run)
    for words in (
        "The answer is `equivalent` from a probability of 0.43 on", "softmax(logits / 1.31)",
        "Opened 2 times", "| threshold 0.3 | 0.6000 | 0.4500 |",
        "changes the answer of 5 of 40 validation pairs",
        "at most 2% of its answers with a probability above 0.9700 are wrong, with 95% confidence. "
        "On 400 validation pairs these were 60%",
    ):  # fmt: skip
        assert words in text, words
    splits = [result["dataset"]["split"] for result in metadata(text)["model-index"][0]["results"]]
    assert splits == ["validation", "test"]


@pytest.mark.usefixtures("hub")
def test_the_metadata_is_readable_by_the_hub(
    store: RunStore, toy_checkpoint: Path, run: Run
) -> None:
    text = written(run, licence="mit")
    ModelCard(text).validate()
    values = metadata(text)
    assert values["license"] == "mit"
    unseen = begin(store, toy_checkpoint, prepared())  # stopped before its evaluation
    unseen.append(events.Saved(step=3))
    unseen.append(events.Stopped(step=3, seconds=1.0))
    assert "stopped before it was evaluated" in written(unseen)
    assert "model-index" not in metadata(written(unseen))
    # Scores stand beside the rows that they are of.
    event = prepared()
    event.data.update(splits={"train": "train"}, revision="abc123")
    run = begin(store, toy_checkpoint, event, dataset="glue/mrpc", checkpoint="roberta-base")
    evaluate(run)
    values = metadata(written(run))
    assert (values["datasets"], values["license"]) == (["nyu-mll/glue"], "mit")
    assert values["model-index"][0]["results"][0]["dataset"] == {
        "name": "GLUE MRPC (cut from train)", "type": "nyu-mll/glue", "split": "train",
        "revision": "abc123",
    }  # fmt: skip


def test_nobodys_sentences_files_and_folders_are_named(
    store: RunStore, toy_checkpoint: Path
) -> None:
    event = prepared()
    event.data["source"] = "acme-layoffs.csv, dev.csv"
    upload = store.uploads.add({"train": toys.write_pairs(store.root / "pairs") / "train.csv"})
    run = begin(
        store, toy_checkpoint, event, dataset=upload, checkpoint=str(toy_checkpoint),
        accelerate_config="/home/ada/secret/accelerate.yaml",
    )  # fmt: skip
    evaluate(run)
    # Findings of the check are told, if it was of the same rows; and none of the rows.
    title, example = "Pairs stand in both train and validation", Example("train", 1, SECRET)
    finding = Finding("leakage", "warns", title, 3, "", [example])
    job = check.check_folder(store, run.config())
    job.folder.mkdir(parents=True)
    for fingerprint, told in (("0" * 64, False), ("f" * 64, True)):
        report = CheckReport(source="x", findings=[finding], fingerprint=fingerprint)
        write_atomically(job.folder / "report.json", report.to_json())
        assert (f"- {title} (3 rows)." in written(run)) == told
    text = written(run)
    for private in (SECRET, str(toy_checkpoint.parent), "/home/ada", ".csv", "`toy`"):
        assert private not in text
    assert "Fine-tuned from `local-checkpoint`" in text
    assert "Source: own pairs." in text
    assert "base_model" not in metadata(text)
    assert metadata(text)["model-index"][0]["results"][0]["dataset"]["name"] == "own pairs"
    assert model_card.public_config(run.config()).accelerate_config == "accelerate_config.yaml"


EVIL = (
    "![x](https://evil.example/x.png)", "<a href='https://evil.example'>evil</a>",
    "https://evil.example", "www.evil.example", "eve@evil.example", "[evil](//evil.example)",
    "a\\|<img src=evil>", "`\n# evil", "\n---\nevil: 1\n---\n", "```\n<b>evil", "*evil*|\0",
    "</code><script>evil()</script>", "&lt;evil&gt;", "evil\u202e", "\u2066evil",
)  # fmt: skip


def test_nothing_from_outside_is_markup(
    store: RunStore, toy_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin(
        store, toy_checkpoint, prepared(labels=list(EVIL)),
        name=EVIL[0], label_column=EVIL[6], positive_label=EVIL[1], dataset_revision=EVIL[11],
    )  # fmt: skip
    data = {"positive_label": EVIL[1], "revision": EVIL[0], "source": EVIL[2]}
    decision_rule.write_rule(run.best, threshold=0.43, positive=EVIL[6])
    findings = [Finding("x", "warns", f"Few rows: {name!r}, {name}", 3, "") for name in EVIL]
    monkeypatch.setattr(model_card, "check_findings", lambda *_: findings[:12])
    for names in (EVIL[:7], EVIL[7:]):
        evaluate(run, list(names))
        run.append(prepared(labels=list(names), data={**prepared().data, **data}))
        text = written(run)
        assert not set(text) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
        assert metadata(text)["license"] == "apache-2.0"
        body = text.split("\n---\n", 1)[1]
        html = MarkdownIt("commonmark").enable("table").render(body)
        prose = re.sub(r"<code.*?</code>", "", html, flags=re.DOTALL)
        assert "evil.example" not in prose
        assert not re.findall(r"<(?:a|b|em|hr|script)\b", prose)
        assert (html.count("<img"), html.count("<h1")) == (1, 1)  # the curves, the model's name
        matrix = html.split("A row is the true class")[1].split("</table>")[0]
        assert matrix.count("<tr>") == len(names) + 1
        assert all(row.count("<td") == len(names) + 2 for row in matrix.split("<tr>")[2:])
