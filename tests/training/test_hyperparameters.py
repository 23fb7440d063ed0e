"""What each hyperparameter does to a run of a toy model: that it is obeyed, not only accepted;
batch size and learning rate by the model, the device and the pairs."""

import pytest
import torch
from accelerate.utils import TorchDynamoPlugin
from datasets import Dataset
from transformers import AutoTokenizer

from finetune import config
from finetune.config import PRESETS, RunConfig
from finetune.errors import ConfigError, ModelError
from finetune.jobs import pipeline
from finetune.runs import events
from finetune.training import accelerator, dataloaders, recipe
from tests.support import toys
from tests.support.training import fit, losses, prepared, work_in_this_process


@pytest.fixture
def short(toy_config):
    return toy_config.changed(max_steps=6, dropout=0.0, max_eval_samples=8)


@pytest.fixture(scope="module")
def plain():
    """The losses of `short` itself, once a test has trained it."""
    return []


# Each is changed alone.
LEARNS_OTHERWISE = {
    "optim": "adafactor", "adam_beta1": 0.5, "adam_epsilon": 1e-3, "label_smoothing_factor": 0.2,
    "class_weights": "balanced", "dropout": 0.3, "freeze_embeddings": True, "frozen_layers": 1,
    "use_lora": True, "warmup_steps": 3, "max_grad_norm": 0.05, "mixed_precision": "bf16",
    "decay_biases_and_norms": False, "swap_augmentation": True, "sentence_order": "random",
}  # fmt: skip
LEARNS_THE_SAME = {
    "gradient_checkpointing": True, "padding": "max_length", "pad_to_multiple_of": 8,
    "attn_implementation": "eager", "optim": "adamw_torch_fused", "deterministic": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [*LEARNS_OTHERWISE.items(), *LEARNS_THE_SAME.items(),
     pytest.param("torch_compile", True, marks=pytest.mark.long)],
    ids=str,
)  # fmt: skip
def test_it_changes_what_is_learned_or_the_means(short, toy_pairs, plain, name, value, monkeypatch):
    def without_a_compiler(backend, dynamic):
        assert backend == "inductor"
        return TorchDynamoPlugin(backend="eager", dynamic=dynamic)

    monkeypatch.setattr("accelerate.utils.TorchDynamoPlugin", without_a_compiler)
    if not plain:
        plain += losses(fit(short, toy_pairs)[0])
    changed = losses(fit(short.changed(**{name: value}), toy_pairs)[0])
    torch.use_deterministic_algorithms(False)
    assert len(changed) == len(plain) == 6
    assert all(0 < loss < 5 for loss in changed)
    if LEARNS_OTHERWISE.get(name) == value:
        assert changed != plain
    else:
        assert changed == pytest.approx(plain, abs=2e-5)


def test_every_schedule_goes_to_its_end(short, toy_pairs):
    rates = {}
    for name in config.hyperparameters()["lr_scheduler_type"].choices:
        scheduled = short.changed(lr_scheduler_type=name, warmup_ratio=0.3, eval_steps=3)
        stream, _ = fit(scheduled, toy_pairs)
        assert isinstance(stream[-1], events.Finished)
        rates[name] = tuple(e.learning_rate for e in stream if isinstance(e, events.Stepped))
    assert rates["constant"] == (1e-3,) * 6
    assert rates["linear"][0] == 0.0
    assert rates["linear"][-1] < rates["linear"][2] == max(rates["linear"])
    assert len(set(rates.values())) >= 6


def test_batches_have_the_width_asked_for_and_an_order_of_the_seed_alone(short, toy_pairs):
    def batches(**values):
        torch.rand(3)  # whatever else draws a number must not matter
        _, _, loaders = prepared(short.changed(**values), toy_pairs)
        return [batch["input_ids"] for batch in loaders.train]

    for values, width in (
        ({}, 15),  # [CLS] six words [SEP] six words [SEP]
        ({"max_length": 9}, 9),
        ({"padding": "max_length"}, short.max_length),
        ({"pad_to_multiple_of": 16}, 16),
        ({"pad_to_multiple_of": -1, "mixed_precision": "no"}, 15),
        ({"pad_to_multiple_of": -1, "mixed_precision": "bf16"}, 16),
    ):
        assert {ids.shape[1] for ids in batches(**values)} == {width}
    first, again, other = batches(seed=1), batches(seed=1), batches(seed=2)
    assert all(map(torch.equal, first, again))
    assert not all(map(torch.equal, first, other))


def test_batches_of_one_length_waste_less(tmp_path, toy_config):
    folder = toys.write_pairs(tmp_path)
    rows = [f"{'the cat ' * (1 + n % 12)},a dog {n},{n % 2}" for n in range(256)]
    (folder / "train.csv").write_text("\n".join(["sentence1,sentence2,label", *rows]))
    pairs = toys.load(folder)

    def padding(**values):
        _, _, loaders = prepared(toy_config.changed(**values), pairs)
        batches = list(loaders.train)
        assert sum(len(batch["labels"]) for batch in batches) == 256
        return sum(int((batch["attention_mask"] == 0).sum()) for batch in batches)

    assert padding(group_by_length=True) < 0.3 * padding()


@pytest.mark.parametrize("by_length", [True, False])
def test_each_pair_is_read_once_an_epoch_in_an_order_drawn_anew(short, toy_pairs, by_length):
    config = short.changed(sentence_order="random", group_by_length=by_length)
    _, _, batches = prepared(config, toy_pairs)
    assert batches.either_order
    rows = len(toy_pairs.splits["train"])
    epochs = [sorted(batches.train.sampler) for _ in range(2)]
    for epoch in epochs:
        assert sorted(index % rows for index in epoch) == list(range(rows))
        assert 0.25 * rows < sum(index >= rows for index in epoch) < 0.75 * rows
    assert epochs[0] != epochs[1]
    given, swapped = (batches.train.dataset[index]["input_ids"].tolist() for index in (3, rows + 3))
    assert given != swapped
    assert sorted(given) == sorted(swapped)
    # Both orders of all pairs leave nothing to draw; and what tells the order is left as it is.
    assert not prepared(config.changed(sentence_order="auto"), toy_pairs)[2].either_order
    _, _, both = prepared(config.changed(swap_augmentation=True), toy_pairs)
    assert not both.either_order
    read = sorted(tuple(ids.tolist()) for batch in both.train for ids in batch["input_ids"])
    every = [batches.train.dataset[index]["input_ids"].tolist() for index in range(2 * rows)]
    assert read == sorted(map(tuple, every))


def test_what_is_frozen_stays(short, toy_pairs):
    frozen = short.changed(freeze_embeddings=True, frozen_layers=1)
    _, before, _ = prepared(frozen, toy_pairs)
    start = {name: value.clone() for name, value in before.state_dict().items()}
    after = fit(frozen, toy_pairs)[1].state_dict()
    changed = {name for name, value in after.items() if not torch.equal(value, start[name])}
    assert not any("word_embeddings" in name or "layer.0." in name for name in changed)
    assert any("layer.1." in name for name in changed)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"frozen_layers": 3}, "frozen_layers is 3, but .* has 2 layers"),
        ({"use_lora": True, "lora_target_modules": "nothing"},
         "lora_target_modules is 'nothing', .* no such layers"),
        pytest.param(
            {"optim": "adamw_bnb_8bit"}, "adamw_bnb_8bit, which needs a CUDA device",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is one"),
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused(short, toy_pairs, values, words):
    with pytest.raises((ConfigError, ModelError), match=words):
        fit(short.changed(**values), toy_pairs)


def test_the_tokens_of_a_large_split_are_mapped_from_a_file_that_has_no_name(toy_config, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(toy_config.checkpoint)
    # More than one batch of the Arrow writer.
    texts = [" ".join(["the", "cat", "sees", "a", "dog"][: 1 + n % 5]) for n in range(2500)]
    table = Dataset.from_dict({"sentence1": texts, "label": [0] * len(texts)})
    dataloaders.tokenize(table, tokenizer, 16).save_to_disk(tmp_path / "rows")
    rows = Dataset.load_from_disk(tmp_path / "rows")
    before = sorted(tmp_path.rglob("*"))
    split = dataloaders.TokenizedSplit(rows, tokenizer, 16, 1)
    assert sorted(tmp_path.rglob("*")) == before
    ids = [split.token_ids(row) for row in (0, 1234, 2499)]
    assert ids == [rows[row]["input_ids"].tolist() for row in (0, 1234, 2499)]


MINILM, BASE, LARGE = 10_600_000, 86_000_000, 303_000_000
MRPC, SOME, MANY = 3668, 11_004, 400_000  # pairs
CPU, OLD, LAPTOP, H100 = 0, 16_000_000_000, 8_000_000_000, 85_000_000_000  # bytes of a GPU


def chosen(parameters, pairs, memory=CPU, processes=1, family="", **values):
    config = recipe.resolve(RunConfig(**values), parameters, pairs, memory, processes, family)
    return config.per_device_train_batch_size, config.learning_rate


@pytest.mark.parametrize(
    ("parameters", "pairs", "memory", "values", "expected"),
    [
        # Small models learn faster, and in larger batches on a GPU.
        (MINILM, MANY, CPU, {}, (16, 7e-5)), (BASE, MRPC, CPU, {}, (16, 3e-5)),
        (MINILM, MRPC, H100, {}, (16, 7e-5)), (MINILM, SOME, H100, {}, (32, 9.9e-5)),
        (MINILM, MANY, H100, {}, (64, 1.4e-4)), (MINILM, MANY, LAPTOP, {}, (16, 7e-5)),
        (BASE, SOME, OLD, {}, (32, 4.2e-5)), (LARGE, MANY, H100, {}, (16, 1e-5)),
        (MINILM, 0, H100, {}, (16, 7e-5)),
        # A family has its authors' rate, but not for LoRA.
        (BASE, MRPC, CPU, {"family": "deberta-v2"}, (16, 2e-5)),
        (LARGE, MRPC, CPU, {"family": "deberta-v2"}, (16, 6e-6)),
        (BASE, MRPC, CPU, {"family": "modernbert"}, (16, 5.6e-5)),
        (MINILM, MRPC, CPU, {"family": "modernbert"}, (16, 7e-5)),
        (BASE, MRPC, CPU, {"family": "deberta-v2", "use_lora": True}, (16, 3e-4)),
        # A number that is given stays, and the rate follows the pairs of a step.
        (MINILM, MRPC, CPU, {"per_device_train_batch_size": 4}, (4, 3.5e-5)),
        (MINILM, MRPC, CPU, {"per_device_train_batch_size": 4096}, (4096, 1.4e-4)),
        (MINILM, MRPC, CPU, {"gradient_accumulation_steps": 4}, (16, 1.4e-4)),
        (MINILM, MRPC, CPU, {"processes": 2}, (16, 9.9e-5)),
        (MINILM, MRPC, CPU, {"learning_rate": 5e-4, "per_device_train_batch_size": 8}, (8, 5e-4)),
        # A batch stays small if a larger one leaves few steps or takes much memory.
        (MINILM, SOME, H100, {"max_length": 1024}, (16, 7e-5)),
        (MINILM, SOME, H100, {"max_steps": 1000}, (16, 7e-5)),
        (MINILM, SOME, H100, {"num_train_epochs": 1}, (16, 7e-5)),
        (MINILM, SOME, H100, {"gradient_accumulation_steps": 2}, (16, 9.9e-5)),
    ],
    ids=str,
)  # fmt: skip
def test_batch_size_and_learning_rate(parameters, pairs, memory, values, expected):
    assert chosen(parameters, pairs, memory, **values) == expected
    course = RunConfig(**PRESETS["As the course"])  # stays the course
    assert recipe.resolve(course, parameters, pairs, memory, 1) == course


def test_a_run_keeps_what_it_took_on_resume(store, toy_checkpoint, toy_pairs_folder, monkeypatch):
    work_in_this_process(monkeypatch)
    files = {path.stem: path for path in toy_pairs_folder.glob("*.csv")}
    config = RunConfig(
        checkpoint=str(toy_checkpoint), dataset=store.uploads.add(files), max_length=32,
        mixed_precision="no",
    )  # fmt: skip

    def prepared(run):
        stream = pipeline.train_events(run, pipeline.StopSwitch(run))
        event = next(event for event in stream if isinstance(event, events.Prepared))
        stream.close()
        run.append(event)
        return event.per_device_train_batch_size, event.learning_rate, event.steps_per_epoch

    run, explicit = store.create(config), store.create(config.changed(learning_rate=1e-3))
    assert prepared(run) == (16, 7e-5, 4)
    assert run.state().resolved(config).learning_rate == 7e-5
    assert prepared(explicit) == (16, 1e-3, 4)
    run.begin_checkpoint()
    run.end_checkpoint(1, keep=1)
    monkeypatch.setattr(accelerator, "gpu_memory", lambda device: H100)
    monkeypatch.setattr(recipe, "LEAST_STEPS", 10)
    assert prepared(run) == (16, 7e-5, 4)
    assert prepared(store.create(config)) == (64, 1.4e-4, 1)
    assert config == run.config()
