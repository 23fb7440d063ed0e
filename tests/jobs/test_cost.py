"""What a run will cost, against what it did, and the checkpoint that it needs."""

import itertools
import json
import math
import os
import threading

import psutil
import pytest
import safetensors.torch
import torch

import finetune
from finetune.cli.commands import models as command
from finetune.config import BUNDLED_CHECKPOINT, RunConfig
from finetune.data import checkpoint_files
from finetune.data.check_report import CheckReport, SplitSummary, TokenLengths
from finetune.environment import devices, pace
from finetune.errors import ConfigError, StoreError
from finetune.jobs import check, cost, memory, pipeline, service, workers
from finetune.jobs.check import CheckJob
from finetune.owners import Visitor
from finetune.runs import events
from finetune.runs.job_folder import hold_lock
from finetune.runs.summary import ENDED
from finetune.training import model, recipe
from finetune.ui import train_plan
from tests.support import training
from tests.support.waiting import until

PAIRS = RunConfig(dataset="somebody/pairs", num_train_epochs=3, per_device_train_batch_size=16)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(devices, "list_accelerators", lambda: ())
    monkeypatch.setattr(pace, "known_pace", lambda: None)


@pytest.fixture
def toy(store, toy_config, toy_pairs_folder):
    """The toy's configuration on an upload of the toy's pairs."""
    files = {path.stem: path for path in toy_pairs_folder.glob("*.csv")}
    return toy_config.changed(dataset=store.uploads.add(files))


def checked(store, config, rows, held_out=0, **lengths):
    """A check of a configuration's pairs as it lies on disk."""
    splits = [SplitSummary("train", "train", rows, [rows])]
    splits += [SplitSummary("validation", "validation", held_out, [held_out])] * bool(held_out)
    lengths = {"rows": rows, "of": rows, "max_length": 128} | lengths if lengths else {}
    report = CheckReport("x", labels=["a"], splits=splits, lengths=TokenLengths(**lengths))
    job = check.check_folder(store, config)
    job.folder.mkdir(parents=True)
    job.describe_job("check", "", config.to_dict())
    (job.folder / "report.json").write_text(report.to_json())


def timed(store, config, rate=50.0, device="CPU"):
    """A run of a configuration on 100 pairs that was timed."""
    run, steps = store.create(config), cost.count_steps(training.resolved(config), 100)
    run.append(events.Started(device=device))
    prepared = events.Prepared(
        train_examples=steps.pairs, validation_examples=20, steps_per_epoch=steps.per_epoch,
        total_steps=steps.total, labels=["a", "b"], parameters=1234, precision="no",
        per_device_train_batch_size=training.resolved(config).per_device_train_batch_size,
    )  # fmt: skip
    run.append(prepared)
    step = events.Stepped(step=1, epoch=0.1, loss=1, learning_rate=1e-5, samples_per_second=rate)
    for event in (step, step.model_copy(update={"step": 2})):
        run.append(event)
    run.append(events.Evaluated(step=5, epoch=1, metrics={}, seconds=2.0, best=True))


@pytest.mark.parametrize(
    "values",
    [
        {"per_device_train_batch_size": 5, "gradient_accumulation_steps": 4},
        {"max_train_samples": 13},
        {"swap_augmentation": True, "per_device_train_batch_size": 10},
        {"per_device_train_batch_size": 500, "gradient_accumulation_steps": 3},
    ],
    ids=str,
)
def test_the_steps_are_those_the_run_takes(values, store, toy, monkeypatch):
    training.work_in_this_process(monkeypatch)
    config = toy.changed(**values)
    checked(store, toy, rows=64)
    run = store.create(config)
    stream = pipeline.train_events(run, pipeline.StopSwitch(run))
    prepared = next(event for event in stream if isinstance(event, events.Prepared))
    stream.close()
    steps = cost.estimate_cost(store, config).steps
    assert (steps.per_epoch, steps.total) == (prepared.steps_per_epoch, prepared.total_steps)
    assert (steps.pairs, steps.about) == (prepared.train_examples, False)


def test_evaluations_and_shared_batches_are_counted_as_they_are(toy_config, toy_pairs, monkeypatch):
    monkeypatch.setattr(recipe, "FREE_PAIRS", 100)  # four evaluations
    for values in ({}, {"eval_steps": 3, "max_steps": 7}, {"eval_steps": -1}):
        config = training.resolved(toy_config.changed(num_train_epochs=1, **values))
        stream, _ = training.fit(config, toy_pairs)
        counted = cost.count_evaluations(config, cost.count_steps(config, 64), 24)
        assert counted == 1 + len(training.evaluations(stream))
    for processes, pairs in itertools.product((1, 2, 3), (1, 63, 64, 65, 1746)):
        config = PAIRS.changed(num_processes=processes, gradient_accumulation_steps=3)
        steps = cost.count_steps(config, pairs)
        batches = math.ceil(math.ceil(pairs / config.per_device_train_batch_size) / processes)
        assert (steps.per_epoch, steps.total) == recipe.count_steps(config, batches, processes)


def test_before_a_run_like_it_the_time_is_by_the_pace_of_this_machine(store, monkeypatch):
    monkeypatch.setattr(pace, "known_pace", lambda: pace.Pace(0.001, 1e10, 4e10))

    def time(**values):
        config = RunConfig(checkpoint="somebody/model", dropout=0.1).changed(**values)
        (found,) = filter(None, [cost.estimate_cost(store, config).time])
        return found

    # Three passes of BERT base, 40 tokens a pair, forward, and two times that backward.
    forward = 12 * pace.layer_flops(768, 3072, 40, 40)
    first = time()
    assert first.rate == pytest.approx(4e10 / (3 * forward))
    assert first.seconds > 4 * 2038 / first.rate  # the evaluations take time too
    assert time(mixed_precision="no").rate == pytest.approx(first.rate / 4)
    assert time(frozen_layers=12).rate == pytest.approx(3 * first.rate)
    assert time(max_length=20).rate > 1.9 * first.rate
    # Without dropout the last layer computes the first token alone: a sixth of it is left.
    monkeypatch.setattr(pace, "known_pace", lambda: pace.Pace(0.0, 1e10, 4e10))
    whole, short = (time(checkpoint=RunConfig().checkpoint, dropout=each) for each in (0.1, 0.0))
    assert short.rate == pytest.approx(whole.rate * 36 / 31)
    assert cost.estimate_cost(store, RunConfig(), "elsewhere").time is None


def test_the_time_is_from_the_run_most_like_it(store):
    def time(config):
        return cost.estimate_cost(store, config).time

    checked(store, PAIRS, rows=200, held_out=40, bins=[(0, 40, 200)], longest=39)
    timed(store, PAIRS, device="NVIDIA H100")
    assert time(PAIRS) is None
    timed(store, PAIRS.changed(dataset="glue/mrpc", name="other pairs"), rate=10.0)
    # Three epochs of 200 pairs at 10 a second, and four evaluations of twice as many pairs.
    each_epoch = PAIRS.changed(eval_steps=0)
    assert time(each_epoch) == cost.Time(60 + 4 * 4, 10.0, "other pairs", "CPU", False)
    timed(store, PAIRS.changed(name="same pairs"), rate=50.0)
    assert time(each_epoch) == cost.Time(600 / 50 + 4 * 2, 50.0, "same pairs", "CPU", True)
    # Before the first step, and as often as its pairs allow.
    assert time(PAIRS) == cost.Time(600 / 50 + 11 * 2, 50.0, "same pairs", "CPU", True)
    fewer = cost.Time(600 / 50 + 11 * 1, 50.0, "same pairs", "CPU", True)
    assert time(PAIRS.changed(max_eval_samples=10)) == fewer
    timed(store, PAIRS.changed(per_device_train_batch_size=12), rate=99.0)
    longer = time(PAIRS.changed(num_train_epochs=30))
    assert longer == cost.Time(6000 / 50 + 11 * 2, 50.0, "same pairs", "CPU", True)
    for values in (
        {"checkpoint": "roberta-base"}, {"mixed_precision": "no"}, {"use_lora": True},
        {"per_device_train_batch_size": 64}, {"max_length": 32},
    ):  # fmt: skip
        assert time(PAIRS.changed(**values)) is None, values


@pytest.mark.parametrize("place", ["bundled", "folder", "cached"])
def test_a_length_beyond_the_checkpoints_is_refused(place, store, toy_checkpoint, monkeypatch):
    path = str(toy_checkpoint / "config.json")
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *names: path)
    names = {"bundled": RunConfig().checkpoint, "folder": str(toy_checkpoint), "cached": "a/b"}
    most = 512 if place == "bundled" else 64
    config = RunConfig(checkpoint=names[place], max_length=most)
    assert cost.estimate_cost(store, config).steps is not None
    for ask in (cost.estimate_cost, service.start_run):
        with pytest.raises(ConfigError, match=rf"is {most + 1}, but .* at most {most} tokens"):
            ask(store, config.changed(max_length=most + 1))
    assert store.runs() == []


def test_another_visitors_files_and_places_are_not_looked_at(store, toy):
    checked(store, toy, rows=64)
    timed(store, RunConfig())
    other = store.for_visitor(Visitor(("somebody",)))
    assert cost.estimate_cost(store, toy).steps is not None
    assert cost.estimate_cost(other, toy) == cost.Estimate()
    assert cost.estimate_cost(other, RunConfig()).time is None
    assert cost.estimate_cost(other, RunConfig(checkpoint="/etc")) == cost.Estimate()


def test_parameters_are_counted_from_the_header_alone(toy_checkpoint, toy_config, toy_pairs):
    shape = memory.read_shape(str(toy_checkpoint))
    assert (shape.layers, shape.hidden, shape.wide, shape.heads) == (2, 32, 64, 2)
    for values in ({}, {"freeze_embeddings": True}, {"frozen_layers": 2}):
        config = toy_config.changed(**values)
        _, classifier, _ = model.load_classifier(str(toy_checkpoint), toy_pairs.target, 32)
        assert shape.parameters == classifier.num_parameters()
        adapted = model.apply_config(classifier, config)
        trained = sum(tensor.numel() for tensor in adapted.parameters() if tensor.requires_grad)
        assert memory.trained_parameters(config, shape) == pytest.approx(trained, rel=0.02), values


def test_the_size_of_a_download_is_told_before_the_click(hub, store, toy_checkpoint):
    repo = hub.add_repo("ada/before", files=toy_checkpoint)
    repo.files |= {"pytorch_model.bin": b"x" * 10**6, "onnx/model.safetensors": b"x" * 10**6}
    config = RunConfig(checkpoint="ada/before", max_length=32)
    assert cost.estimate_cost(store, config).download == cost.Download(unasked=True)
    assert cost.measure(store, config)
    needed = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    size = sum(len(content) for name, content in repo.files.items() if name in needed)
    assert cost.estimate_cost(store, config).download == cost.Download(size)
    assert not cost.measure(store, config)  # it is known
    assert "Download" in train_plan.costs(store, cost.estimate_cost(store, config), config, 1, None)
    checkpoint_files.fetch("ada/before")
    assert cost.estimate_cost(store, config).download is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model.safetensors": None}, "has no safetensors weights"),
        ({"config.json": {"model_type": "clip"}}, "is a clip model, of which transformers makes"),
        ({"config.json": {"model_type": "fnet"}}, "is a fnet model, which reads a batch's padding"),
    ],
)
def test_what_cannot_be_tuned_is_refused_at_the_form(hub, store, toy_checkpoint, change, words):
    name = f"ada/{words.split()[2]}"
    repo = hub.add_repo(name, files=toy_checkpoint)
    for file, content in change.items():
        repo.files[file] = json.dumps(content).encode()
        if content is None:
            del repo.files[file]
    config = RunConfig(checkpoint=name, max_length=32)
    assert cost.measure(store, config)
    for ask in (service.start_run, cost.estimate_cost):
        with pytest.raises(ConfigError, match=words):
            ask(store, config)
    checkpoint_files.fetch(name, weights=False)  # as the check of the pairs does
    with pytest.raises(ConfigError, match=words):
        cost.estimate_cost(store, config)
    assert not store.runs()


def test_what_is_on_the_disk_is_removed_if_unused(hub, store, toy_checkpoint, adopt, monkeypatch):
    name = "ada/fetched"
    hub.add_repo(name, files=toy_checkpoint)
    checkpoint_files.fetch(name)
    assert {model.name: model.bytes for model in finetune.list_models()}[name] > 10_000
    run = store.create(RunConfig(checkpoint=name, name="busy"))
    run.append(events.Started(device="CPU"))
    adopt(run)
    with pytest.raises(StoreError, match=f"{name} is in use by the run busy"):
        memory.remove_model(store, name)
    with pytest.raises(StoreError, match="Visitors cannot remove"):
        memory.remove_model(store.for_visitor(Visitor(("browser:a",))), name)
    run.append(events.Finished(step=1, seconds=1.0))
    job = CheckJob(store.root / "checks" / ("0" * 24))
    job.folder.mkdir(parents=True)
    job.describe_job("check", "", {"checkpoint": name})
    handle = hold_lock(job.lock_file)  # it is at work
    with pytest.raises(StoreError, match="is being read to check or compare it"):
        memory.remove_model(store, name)
    os.close(handle)
    command(["--remove", name, "--runs", str(store.root)])
    assert name not in {model.name for model in finetune.list_models()}
    with pytest.raises(StoreError, match="is not among the downloaded checkpoints"):
        finetune.remove_model(name, str(store.root))
    for other in ("..", "../..", "", BUNDLED_CHECKPOINT):
        with pytest.raises(StoreError):
            finetune.remove_model(other, store)
    checkpoint_files.fetch(name)
    monkeypatch.setenv("FINETUNE_ADMINS", "ada")
    admin = store.for_visitor(Visitor(("user:ada",)))
    assert memory.remove_model(admin, name).name == name


@pytest.mark.long
def test_a_run_stops_while_its_checkpoint_comes(
    hub, store, toy_checkpoint, toy_config, toy_pairs_folder, processes
):
    repo = hub.add_repo("ada/slow", files=toy_checkpoint)
    weights = safetensors.torch.load(repo.files["model.safetensors"])
    weights["unused"] = torch.zeros(9 * 2**18)  # nine megabytes, which are fetched by parts
    repo.files["model.safetensors"] = safetensors.torch.save(weights, {"format": "pt"})
    gate = threading.Event()
    asked = hub.fail("GET", "^/lfs/", gate=gate)
    dataset = store.uploads.add({path.stem: path for path in toy_pairs_folder.glob("*.csv")})
    config = toy_config.changed(checkpoint="ada/slow", dataset=dataset, max_steps=2)
    run = service.start_run(store, config)
    until(lambda: not asked.times)
    worker = workers.worker_process(run)
    processes.append(worker)
    service.stop_run(store, run)
    until(lambda: run.state().status == "stopped")
    assert psutil.wait_procs([worker], 60)[1] == []
    gate.set()
    service.resume_run(store, run)
    until(lambda: run.state().status in ENDED)
    assert run.state().status == "finished", run.state().error
