"""How much faster is the Recommended preset than the loop the course publishes?

The sides train one checkpoint on the same pairs with the same batch size and learning rate: the
published loop written out straight (fp32); `finetune`'s loop under Recommended; and `Trainer` with
its best equivalent flags. Each measurement is a process of its own, the sides alternate, and the
median of training samples a second counts. The ratio is Recommended over the published loop. Where
the hardware has no bf16, all train in fp32. The pairs are MRPC's where they are there, else the
bundled ones; the clock starts after `--warm` steps.

    python -m tests.benchmarks.training [--train_file FILE] [--checkpoint FOLDER] [--batch 8]
        [--steps 60] [--rounds 3] [--quick]
"""

import json
import tempfile
from pathlib import Path

import torch
import transformers
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.optim import AdamW
from torch.utils.data import DataLoader

from finetune.config import RunConfig, preset
from finetune.data import splits
from finetune.runs import events
from finetune.tasks.base import Target
from finetune.tasks.single_label import SingleLabel
from finetune.training import accelerator as engine
from finetune.training import dataloaders, loop
from finetune.training import model as models
from finetune.uploads import Uploads
from tests.benchmarks import machine

RATE, SEED, MAX_LENGTH = 5e-5, 42, 128


def main():
    args = machine.parsed(
        __doc__, train_file=(next(machine.MRPC.glob("train-*"), Path), None),
        checkpoint=RunConfig().checkpoint, batch=8, steps=(60, 2), warm=(10, 1), rounds=(3, 1),
        side=str,
    )  # fmt: skip
    if args.side:
        with tempfile.TemporaryDirectory() as own:
            print(json.dumps(SIDES[args.side](Path(own), args)))
        return
    with machine.begun() as folder:
        if args.quick:
            args.checkpoint = str(machine.tiny_bert(folder))
        sides = ["course", "recommended"] if args.quick else [*SIDES]
        medians = measure(sides, args.rounds, args)
    print(f"training: ratio {medians['recommended'] / medians['course']:.2f}")


def measure(sides, rounds, args):
    """Print and return samples a second of each side."""
    medians = machine.medians(
        sides, rounds, lambda side: machine.of_side("training", side, args), "samples/s"
    )
    for side, value in medians.items():
        print(f"{side:<14}{value:>10.1f} samples/s, {value / medians['course']:.2f} times")
    return medians


def config_of(name, args):
    """A preset with the batch size and the learning rate that all sides have."""
    same = {"learning_rate": RATE, "per_device_train_batch_size": args.batch}
    return RunConfig(seed=SEED).changed(**preset(name) | same | {"max_length": MAX_LENGTH})


def _prepared(folder, args, config):
    """Pairs, tokenizer, model and batches of a configuration."""
    config = config.changed(checkpoint=args.checkpoint)
    if args.train_file is not None:
        config = config.changed(dataset=Uploads(folder / "uploads").add({"train": args.train_file}))
    pairs = splits.load_pairs(config, folder)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    half = engine.choose_precision(config.mixed_precision) == "bf16"
    attention = models.choose_attention(config.attn_implementation, device, half, config.max_length)
    tokenizer, classifier, _ = models.load_classifier(
        config.checkpoint, pairs.target, config.max_length, config.dropout, attention
    )
    classifier = models.apply_config(classifier, config)
    return pairs, tokenizer, classifier, dataloaders.build_loaders(pairs, tokenizer, config, device)


def course(folder, args):
    """The published loop: fp32, shuffled, padded batch by batch."""
    accelerator = Accelerator()
    set_seed(SEED)
    pairs, tokenizer, model, _ = _prepared(folder, args, config_of("As the course", args))
    rows = dataloaders.tokenize(pairs.splits["train"], tokenizer, MAX_LENGTH)
    collator = transformers.DataCollatorWithPadding(tokenizer)
    optimizer = AdamW(model.parameters(), lr=RATE)
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, DataLoader(rows, args.batch, shuffle=True, collate_fn=collator)
    )
    scheduler = transformers.get_scheduler("linear", optimizer, 0, args.warm + args.steps)
    model.train()
    step, samples, began = 0, 0, 0.0
    while True:
        for batch in loader:
            if step == args.warm:
                samples, began = 0, machine.clock()
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            step += 1
            samples += len(batch["labels"])
            if step == args.warm + args.steps:
                return samples / (machine.clock() - began)


def recommended(folder, args):
    """`finetune`'s own loop and preset, as the app runs it."""
    run_config = config_of("Recommended", args).changed(
        max_steps=args.warm + args.steps, logging_steps=10, eval_steps=10 * args.steps,
        max_eval_samples=8,
    )  # fmt: skip
    accelerator = engine.make_accelerator(run_config)
    engine.keep_freed_memory()
    _, _, model, batches = _prepared(folder, args, run_config)
    task = SingleLabel()
    metric = task.score_modules(Target(("0", "1")), task.metrics)
    work = loop.Loop(run_config, accelerator, model, batches, task, metric, loop.Hooks())
    steps = (event for event in work.fit() if isinstance(event, events.Stepped))
    times = {event.step: machine.clock() for event in steps}
    return int(args.batch * args.steps) / (times[args.warm + args.steps] - times[args.warm])


def trainer(folder, args):
    """`Trainer` with its best equivalent flags."""
    set_seed(SEED)
    pairs, tokenizer, model, _ = _prepared(folder, args, config_of("As the course", args))
    half = engine.choose_precision("auto") == "bf16"
    moments = {}

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, _, state, *__, **___):
            if state.global_step in (args.warm, state.max_steps):
                moments[state.global_step] = machine.clock()

    arguments = transformers.TrainingArguments(
        str(folder / "trainer"), max_steps=args.warm + args.steps,
        per_device_train_batch_size=args.batch, learning_rate=RATE, bf16=half,
        optim="adamw_torch_fused", report_to="none",
        train_sampling_strategy="group_by_length", logging_steps=10, save_strategy="no",
        warmup_steps=0.06, disable_tqdm=True, seed=SEED, use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip
    transformers.Trainer(
        model, arguments,
        transformers.DataCollatorWithPadding(tokenizer),
        dataloaders.tokenize(pairs.splits["train"], tokenizer, MAX_LENGTH), callbacks=[Clock()],
    ).train()  # fmt: skip
    return int(args.batch * args.steps) / (moments[args.warm + args.steps] - moments[args.warm])


SIDES = {"course": course, "recommended": recommended, "trainer": trainer}

if __name__ == "__main__":
    main()
