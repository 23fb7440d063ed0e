"""What a run gives away. Its script repeats its losses and scores; its ONNX model gives PyTorch's
logits; its card is derived from it, names what was not measured, and quotes no pairs."""

import ast
import contextlib
import csv
import io
import json
import re
import runpy
import shutil
import zipfile
from pathlib import Path

import numpy as np
import onnxruntime
import pyarrow as pa
import pytest
import torch
import yaml
from accelerate.state import AcceleratorState, GradientState
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt
from markupsafe import escape
from onnx import load
from safetensors.torch import load_file

from finetune.config import PRESETS, RunConfig
from finetune.data import splits
from finetune.data.check_report import CheckReport
from finetune.disk import write_atomically
from finetune.errors import DataError, ModelError, StoreError
from finetune.evaluation import saved_predictions
from finetune.findings import Example, Finding
from finetune.hub import downloads, model_card, onnx
from finetune.inference import decision_rule
from finetune.jobs import check, pipeline
from finetune.runs import events
from finetune.tasks.base import SureRule
from finetune.training import model
from finetune.ui import live_updates
from tests.support import toys, training
from tests.support.families import lively
from tests.support.families import write as write_family

KINDS = ("low", "mid", "high")


def single_sentences(count, seed):
    rows = toys.rows(count, seed)
    return [(first, KINDS[at % 3]) for at, (first, _, _) in enumerate(rows)]


ROWS = {
    "pairs": (["sentence1", "sentence2", "label"], toys.rows),
    "scores": (["first", "second", "score"], toys.graded_rows),
    "labels": (["text", "labels"], toys.labelled_rows),
    "kinds": (["text", "kind"], single_sentences),
}


@pytest.fixture
def uploaded(store, tmp_path):
    """Uploads rows of a kind, whose name it returns."""

    def upload(kind):
        head, rows = ROWS[kind]
        files = {split: tmp_path / f"{split}.csv" for split in ("train", "validation")}
        for seed, path in enumerate(files.values()):
            with path.open("w", newline="") as file:
                csv.writer(file).writerows([head, *rows(64 - 40 * seed, seed)])
        return store.uploads.add(files)

    return upload


@pytest.fixture
def trained(store, monkeypatch):
    """Train a run in this process, as a worker does."""
    training.work_in_this_process(monkeypatch)

    def carry_out(config, stop_at):
        run = store.create(config.changed(mixed_precision="no"))
        for event in pipeline.train_events(run, pipeline.StopSwitch(run)):
            run.append(event)
            if isinstance(event, events.Stepped) and event.step == stop_at:
                run.request_stop()
        return run

    return carry_out


def unpacked(run, store):
    pieces = list(downloads.script_zip(run, store))
    assert len(pieces) > 3  # it is not held as a whole
    with zipfile.ZipFile(io.BytesIO(b"".join(pieces))) as bundle:
        bundle.extractall(store.root.parent / "bundle")
    return store.root.parent / "bundle" / downloads.file_name(run.title())


def assert_repeated(run, printed):
    """Assert that losses at the same steps agree within 1e-6, and scores are equal."""
    stream = run.tail()[0]
    losses = {int(at): float(loss) for at, loss in re.findall(r"step (\d+): loss (\S+)", printed)}
    expected = {e.step: e.loss for e in stream if isinstance(e, events.Stepped)}
    assert losses == pytest.approx(expected, abs=1e-6)
    evaluations = re.findall(r"step (\d+): validation (\{.*?\})", printed)
    scores = {int(at): ast.literal_eval(text) for at, text in evaluations}
    evaluated = {e.step: e for e in stream if isinstance(e, events.Evaluated)}
    assert list(scores) == list(evaluated)
    for step, evaluation in evaluated.items():
        known = dict(evaluation.metrics)
        for name in {"pearson", "spearmanr"} & known.keys():  # of answers that are nearly equal
            assert scores[step].pop(name) == pytest.approx(known.pop(name), abs=0.02)
        assert scores[step] == pytest.approx(known, abs=1e-6)
    best = ast.literal_eval(printed.rsplit("best: ", 1)[1])
    improved = [step for step, e in evaluated.items() if e.best]
    assert (best and best["step"]) == (improved[-1] if improved else None)


# Configurations of runs whose scripts repeat them; some are stopped at a step.
RUNS = json.loads(Path(__file__).with_name("scripts.json").read_text("utf-8"))


@pytest.mark.parametrize("case", RUNS, ids=[case["of"] for case in RUNS])
def test_the_script_repeats_the_run(trained, uploaded, store, toy_checkpoint, tmp_path, case):
    checkpoint, kind = toy_checkpoint, case["kind"]
    if kind == "kinds":  # its tokenizer has no padding token
        checkpoint = write_family(tmp_path / "gpt2", "GPT2")
    elif kind == "reranker":
        checkpoint = lively(write_family(tmp_path / "reranker", "Bert", num_labels=1))
    base = {"learning_rate": 1e-3, "num_train_epochs": 2, "max_length": 32, "seed": 7}
    values = base | PRESETS.get(case.get("preset", ""), {}) | case["values"]
    rows = "pairs" if kind == "reranker" else kind
    config = RunConfig(dataset=uploaded(rows), checkpoint=str(checkpoint)).changed(**values)
    run = trained(config, case.get("stop_at", 0))
    folder = unpacked(run, store)
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(folder / "train.py"))
    assert_repeated(run, printed.getvalue())
    ours, its = (load_file(best / "model.safetensors") for best in (run.best, folder / "best"))
    assert all(torch.allclose(ours[name], its[name], atol=1e-5) for name in ours)
    named = [(best / "config.json").read_text() for best in (run.best, folder / "best")]
    assert json.loads(named[0])["id2label"] == json.loads(named[1])["id2label"]
    card = model_card.card_text(run, run.state(), "ada/toy")
    begins = "The checkpoint has a single output, as rerankers have"
    assert (begins in card) == (kind == "reranker")


def test_what_the_script_does_not_repeat_is_refused_by_name(store, toy_checkpoint, uploaded):
    config = RunConfig(dataset=uploaded("pairs"), torch_compile=True, optim="adafactor")
    run = store.create(config)
    with pytest.raises(StoreError, match="has no model"):
        downloads.script_zip(run, store)
    assert "script.zip" not in live_updates.code(run)
    toys.copy_model(toy_checkpoint, run.best)
    run.append(events.Started(device="CPU (2 threads)", processes=2))
    prepared = events.Prepared(
        train_examples=64, validation_examples=24, steps_per_epoch=8, total_steps=24,
        labels=["0", "1"], parameters=1, precision="no", fingerprint="0" * 64,
        data={"source": "pairs.csv", "positive_label": "1"},
    )  # fmt: skip
    run.append(prepared)
    with pytest.raises(DataError, match="has changed since run"):
        downloads.script_zip(run, store)
    pairs = splits.load_pairs(run.config(), store.root)
    run.append(prepared.model_copy(update={"fingerprint": pairs.fingerprint}))
    folder = unpacked(run, store)
    shown = live_updates.code(run)  # what the page shows is the script that the zip has
    assert escape((folder / "train.py").read_text().strip()) in shown
    assert f"/{run.id}/script.zip" in shown
    with pytest.raises(SystemExit, match="'optim', 'num_processes', 'torch_compile'"):
        runpy.run_path(str(folder / "train.py"))


SENTENCES = (["the cat sees a dog .", "the owl"], ["a cat sees the dog .", "a cow fears the hen"])


def assert_same_answers(folder, file):
    """Assert that the ONNX file gives PyTorch's logits; returns the names of its inputs."""
    tokenizer, classifier = model.load_saved_model(folder)
    batch = tokenizer(*SENTENCES, padding=True, return_tensors="pt")
    session = onnxruntime.InferenceSession(file)
    inputs = [entry.name for entry in session.get_inputs()]
    (logits,) = session.run(None, {name: batch[name].numpy() for name in inputs})
    with torch.no_grad():
        expected = classifier(**{name: batch[name] for name in inputs}).logits
    assert np.allclose(logits, expected.numpy(), atol=1e-4)
    shapes = [entry.shape for entry in session.get_inputs()]
    assert not [size for shape in shapes for size in shape if isinstance(size, int)]
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["labels"]) == list(classifier.config.id2label.values())
    assert json.loads(metadata["max_length"]) in (64, 65, 66)
    assert json.loads(metadata["finetune"]) == decision_rule.read_notes(folder)
    return inputs


@pytest.mark.long
@pytest.mark.parametrize("family", ["Roberta", "DistilBert", "DebertaV2"])
def test_a_family_answers_the_same_as_onnx(family, tmp_path):
    folder = write_family(tmp_path / family, family)
    assert onnx.export_onnx(folder, tmp_path / "model.onnx") <= onnx.TOLERANCE
    assert_same_answers(folder, tmp_path / "model.onnx")


@pytest.mark.long
def test_a_bert_is_exported_for_any_batch_or_not_at_all(toy_checkpoint, tmp_path, monkeypatch):
    file = tmp_path / "out" / "model.onnx"
    best = Path(shutil.copytree(toy_checkpoint, tmp_path / "best"))
    decision_rule.write_rule(best, sure=SureRule(0.02, 0.95, 0.9, (("equivalent", 0.97),), 40, 20))
    onnx.export_onnx(best, file)
    assert list(file.parent.iterdir()) == [file]
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    assert assert_same_answers(best, file) == inputs
    graph = load(file).graph
    shapes = {entry.name: entry.type.tensor_type.shape.dim for entry in graph.value_info}
    norms = [node.output[0] for node in graph.node if node.op_type == "LayerNormalization"]
    assert shapes[norms[0]][1].dim_param  # the length of the batch
    assert shapes[norms[-1]][1].dim_value == 1  # the last layer is computed for the first token
    monkeypatch.setattr(onnx, "TOLERANCE", -1.0)
    with pytest.raises(ModelError, match="does not agree with PyTorch: a logit differs"):
        onnx.export_onnx(toy_checkpoint, tmp_path / "wrong" / "model.onnx")
    assert list((tmp_path / "wrong").iterdir()) == []


LABELS = ["not_equivalent", "equivalent"]
SECRET = "the minister resigned on a rainy tuesday"


def prepared(**values):
    data = {
        "source": "tickets.csv", "positive_label": "equivalent", "columns": {},
        "rows": {"train": 64, "validation": 40, "test": 8}, "revision": "",
        "left_out": {"train": {"duplicates": 3}},
        "splits": {"train": "train", "validation": "validation", "test": "test"},
    }  # fmt: skip
    defaults = {
        "train_examples": 64, "validation_examples": 40, "steps_per_epoch": 8, "total_steps": 8,
        "labels": LABELS, "parameters": 1000, "precision": "no", "fingerprint": "f" * 64,
        "majority": {"accuracy": 0.6, "f1": 0.75}, "data": data,
    }  # fmt: skip
    return events.Prepared(**defaults | values)


def evaluate(run, labels=LABELS):
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


def begin(store, model, event, **values):
    run = store.create(RunConfig(max_length=32, **values))
    run.append(events.Started(device="CPU (2 threads)", versions={"torch": "2.13.0"}))
    run.append(event)
    toys.copy_model(model, run.best)
    return run


@pytest.fixture
def run(store, toy_checkpoint):
    run = begin(store, toy_checkpoint, prepared())
    evaluate(run)
    run.append(events.Finished(step=8, seconds=4000.0))
    return run


def written(run, **values):
    return model_card.card_text(run, run.state(), "ada/pairs", **values)


def metadata(text):
    return dict(yaml.safe_load(text.split("---\n")[1]))


def test_what_is_written_after_the_run_is_told(run):
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
def test_the_metadata_is_readable_by_the_hub(store, toy_checkpoint, run):
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


def test_nobodys_sentences_files_and_folders_are_named(store, toy_checkpoint):
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
    finding = Finding("leakage", "warns", title, "", count=3, examples=[example])
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


def test_nothing_from_outside_is_markup(store, toy_checkpoint, monkeypatch):
    run = begin(
        store, toy_checkpoint, prepared(labels=list(EVIL)),
        name=EVIL[0], label_column=EVIL[6], positive_label=EVIL[1], dataset_revision=EVIL[11],
    )  # fmt: skip
    data = {"positive_label": EVIL[1], "revision": EVIL[0], "source": EVIL[2]}
    decision_rule.write_rule(run.best, threshold=0.43, positive=EVIL[6])
    findings = [Finding("x", "warns", f"Few rows: {name!r}, {name}", "", count=3) for name in EVIL]
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
