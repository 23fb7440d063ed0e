"""Toy runs in the process of the test."""

import gc

from accelerate.state import AcceleratorState

from finetune.jobs import pipeline
from finetune.runs import events
from finetune.tasks.registry import measured, task_of
from finetune.training import accelerator as engine
from finetune.training import dataloaders, loop, model, recipe


def resolved(config):
    """The configuration with the batch size and learning rate of a small model on a processor."""
    return recipe.resolve(config, parameters=0, pairs=0, gpu_memory=0, processes=1)


def prepared(config, pairs, device=None):
    """Tokenizer, model and batches of a configuration."""
    config = resolved(config)
    tokenizer, classifier, _ = model.load_classifier(
        config.checkpoint, pairs.target, config.max_length, config.dropout,
        config.attn_implementation,
    )  # fmt: skip
    classifier = model.apply_config(classifier, config)
    return tokenizer, classifier, dataloaders.build_loaders(pairs, tokenizer, config, device)


def stream(config, pairs, resume=None, interval=0, **hooks):
    """The events of a run as they happen, and the model that it trains."""
    AcceleratorState._reset_state(reset_partial_state=True)  # of the run before, in this process
    config = resolved(config)
    accelerator = engine.make_accelerator(config)
    _, classifier, batches = prepared(config, pairs, accelerator.device)
    hooks_ = loop.Hooks(**hooks)
    task = task_of(pairs.target)
    metric = task.score_modules(pairs.target, measured(config, pairs.target))
    work = loop.Loop(config, accelerator, classifier, batches, task, metric, hooks_, interval)
    return work.fit(resume), classifier


def fit(config, pairs, **options):
    """All events of a run, and its model."""
    happening, classifier = stream(config, pairs, **options)
    return list(happening), classifier


def losses(happened):
    return [event.loss for event in happened if isinstance(event, events.Stepped)]


def evaluations(happened):
    """Those of the model in training, which has taken a step."""
    return [event for event in happened if isinstance(event, events.Evaluated) and event.step]


def work_in_this_process(monkeypatch):
    """Let `jobs.train.carry_out_run` leave the test's process as it was."""
    monkeypatch.setattr(pipeline, "_set_environment", lambda config: None)
    monkeypatch.setattr(engine, "keep_freed_memory", lambda: None)
    monkeypatch.setattr(pipeline.StopSwitch, "install", lambda self: None)
    monkeypatch.setattr(gc, "collect", lambda: 0)  # takes long in a process of many tests
