"""Hostile checkpoints cannot open files, load other models or run code. Downloads of checkpoints:
their progress, an end by force, and what is fetched afterwards."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from transformers import AutoTokenizer

from finetune.data import checkpoint_files
from finetune.environment import confinement
from finetune.environment.project import ROOT
from finetune.errors import Cancelled, ModelError
from finetune.inference.predictor import Predictor
from finetune.tasks.base import Target
from finetune.training import model
from tests.support import toys

TARGET = Target(("no", "yes"))
SECRET = "hush\nsecret\ntoken\n"


@pytest.fixture
def toy(toy_checkpoint, tmp_path):
    """A copy of the toy checkpoint to change."""
    return Path(shutil.copytree(toy_checkpoint, tmp_path / "checkpoints" / "toy"))


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret"
    path.write_text(SECRET)
    return path


def change(folder, file, **values):
    path = folder / file
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | values))


def point_at(file, **values):
    """Add entries to a file; SECRET in them becomes the path of the secret."""

    def make(toy, secret):
        change(toy, file, **json.loads(json.dumps(values).replace("SECRET", str(secret))))

    return make


def names_the_secret(toy, secret):
    (toy / "tokenizer.json").unlink()
    tokens = {str(n): {"content": word} for n, word in enumerate(["[UNK]", "a", "b", "c", "d"])}
    (toy / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "BertTokenizer", "vocab": str(secret), "added_tokens_decoder": tokens}
    ))  # fmt: skip


def links_to_the_secret(toy, secret):
    (toy / "tokenizer.json").unlink()
    (toy / "vocab.txt").symlink_to(secret)


def has_an_adapter(toy, secret):
    other = toys.write_checkpoint(secret.parent / "other")
    change(toy, "adapter_config.json", base_model_name_or_path=str(other), peft_type="LORA")


def has_code(toy, secret):
    change(toy, "config.json", model_type="own", auto_map={"AutoConfig": "own.Own"})
    (toy / "own.py").write_text(f"open({str(secret)!r}, 'w').write('it ran')")


def indexes_the_secret(toy, secret):
    (toy / "model.safetensors").unlink()
    change(toy, "model.safetensors.index.json", weight_map={"a": f"../../{secret.name}"})


def is_damaged(toy, secret):
    (toy / "config.json").write_text('{"model_type": "bert"')


def has_a_large_tokenizer(toy, secret):
    with (toy / "tokenizer.json").open("ab") as file:
        file.truncate(200 * 2**20)


LARGER = "asks for a model that is far larger than its weights, which have 2"
CONFIG, TOKENIZER = "config.json", "tokenizer_config.json"
HOSTILE = {
    "vocabulary": (names_the_secret, "points outside the checkpoint: vocab is"),
    "linked": (links_to_the_secret,
               "vocab.txt in the checkpoint .* is a link to a place outside its folder"),
    "adapter": (has_an_adapter, "is an adapter: it changes another model"),
    "code": (has_code, "needs code of its own, which is never run"),
    "index": (indexes_the_secret, "points outside the checkpoint: weight_map is"),
    "keywords": (point_at(TOKENIZER, mecab_kwargs={"mecab_option": "-d SECRET", "a": "~/x"}),
                 "points outside the checkpoint: mecab_kwargs is"),
    "quantized": (point_at(CONFIG, quantization_config={"quant_method": "gptq"}),
                  "are quantized, so they cannot be fine-tuned"),
    "damaged": (is_damaged, "config.json of the checkpoint .* is damaged"),
    "wide": (point_at(CONFIG, num_hidden_layers=40, hidden_size=768, num_attention_heads=12),
             LARGER),
    "long": (point_at(CONFIG, max_position_embeddings=10**9), LARGER),
    "many classes": (point_at(CONFIG, id2label=None, num_labels=10**9),
                     "1,000,000,000 for num_labels"),
    "large tokenizer": (has_a_large_tokenizer,
                        "tokenizer.json of the checkpoint .* has more than 128 MiB"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "words"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_checkpoint_is_refused(toy, secret, make, words):
    """Refused both for training and for answers."""
    make(toy, secret)
    with pytest.raises(ModelError, match=words):
        model.load_classifier(str(toy), TARGET, 32)
    with pytest.raises(ModelError, match=words):
        Predictor(toy, 32)
    assert secret.read_text() == SECRET


@pytest.mark.parametrize("make", [names_the_secret, has_code, indexes_the_secret])
def test_a_hostile_repository_is_refused_before_its_weights_are_fetched(hub, toy, secret, make):
    make(toy, secret)
    name = f"ada/{make.__name__.replace('_', '-')}"
    hub.add_repo(name, files={path.name: path.read_bytes() for path in toy.iterdir()})
    with pytest.raises(ModelError, match=r"points outside|code of its own"):
        model.load_classifier(name, TARGET, 32)
    asked = [path for _, path, _ in hub.requests if "/resolve/" in path]
    assert asked
    assert not [path for path in asked if path.endswith((".safetensors", ".py"))]


def test_code_that_transformers_has_itself_is_not_asked_for(toy, secret, monkeypatch):
    """Nobody is asked: in a terminal transformers would ask, and run the code after a "y"."""
    asked = []

    def agree(question=""):
        asked.append(question)
        return "y"

    monkeypatch.setattr("builtins.input", agree)
    has_code(toy, secret)
    change(toy, "config.json", model_type="bert")
    change(toy, "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.Own", None]})
    model.load_classifier(str(toy), TARGET, 32)
    assert asked == []
    assert secret.read_text() == SECRET


def test_what_other_programs_leave_in_the_files_is_harmless(toy):
    """Paths of the machine that saved it, notes and pickles are not read and change nothing."""
    change(
        toy, "tokenizer_config.json", name_or_path="/home/ada/bert", tokenizer_file="/root/x.json",
        special_tokens_map_file="/root/.cache/map.json", chat_template="{{ '/etc/hosts' }}",
    )  # fmt: skip
    change(toy, "special_tokens_map.json", unk_token="[UNK]", sep_token={"content": "[SEP]"})
    change(toy, "config.json", _name_or_path="/home/ada/bert", base_model="ada/bert", note="a/b")
    (toy / "pytorch_model.bin").write_bytes(b"a pickle")
    tokenizer, classifier, _ = model.load_classifier(str(toy), TARGET, 32)
    sentence = "the cat sees a dog ."
    assert (
        tokenizer(sentence)["input_ids"]
        == AutoTokenizer.from_pretrained(toy)(sentence)["input_ids"]
    )
    assert classifier.config.name_or_path == tokenizer.name_or_path == str(toy)
    model.save_model(classifier, tokenizer, toy.parent / "best")
    saved = "".join(path.read_text() for path in (toy.parent / "best").glob("*.json"))
    assert "/home/ada" not in saved
    assert "checkpoint-" not in saved


def test_the_tokens_and_settings_of_a_tokenizer_stay(toy):
    (toy / "tokenizer.json").unlink()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "The", "the", "cat", "<x>"]
    (toy / "vocab.txt").write_text("\n".join(words))
    settings = {
        "tokenizer_class": "BertTokenizer", "do_lower_case": False, "model_max_length": 17,
        "truncation_side": "left", "additional_special_tokens": ["<x>"],
    }  # fmt: skip
    (toy / "tokenizer_config.json").write_text(json.dumps(settings))
    with checkpoint_files.open_files(toy) as files:
        ours = files.load(AutoTokenizer)
    theirs = AutoTokenizer.from_pretrained(toy)
    for tokenizer in (ours, theirs):
        assert tokenizer("The cat <x>")["input_ids"] == [2, 5, 7, 8, 3]
        assert (tokenizer.model_max_length, tokenizer.truncation_side) == (17, "left")
    assert ours.all_special_tokens == theirs.all_special_tokens


def test_weights_in_several_files_are_read(toy):
    _, whole, _ = model.load_classifier(str(toy), TARGET, 32)
    whole.save_pretrained(toy, max_shard_size="20KB")
    (toy / "model.safetensors").unlink()
    assert len(list(toy.glob("model-*.safetensors"))) > 1
    _, parts, _ = model.load_classifier(str(toy), TARGET, 32)
    for name, weights in whole.named_parameters():
        assert weights.equal(parts.get_parameter(name)), name


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify is Linux's")
def test_no_entry_of_any_tokenizer_opens_a_file(toy, tmp_path):
    cwd = tmp_path / "watched"
    cwd.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.canary", str(toy)],
        cwd=cwd, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["opened"] == []
    assert found["loaded"] > 1000
    assert found["watch_works"]


LARGE = 32 * 2**20  # bytes of weights
KILLED = """
import os, signal
from finetune.data import checkpoint_files
def die(done, total):
    if done > 15e6:
        os.kill(os.getpid(), signal.SIGKILL)
checkpoint_files.fetch("ada/large", on_progress=die)
"""


@pytest.fixture
def large(hub, toy_checkpoint):
    """The Hub with a checkpoint whose weights take a while."""
    files = {path.name: path.read_bytes() for path in toy_checkpoint.iterdir()}
    weights = safetensors.numpy.load(files["model.safetensors"])
    weights["more"] = np.zeros(LARGE // 4, np.float32)
    files["model.safetensors"] = safetensors.numpy.save(weights, {"format": "pt"})
    hub.add_repo("ada/large", files=files)
    return hub


def answers(hub):
    """How the storage answered each request for the weights."""
    return [s for method, path, s in hub.requests if method == "GET" and "/lfs/" in path]


@pytest.mark.long
def test_a_download_that_was_killed_goes_on_where_it_ended(large, tmp_path):
    home = large.environment(tmp_path / "home")
    command = [sys.executable, "-c", KILLED]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | home)
    assert done.returncode == -signal.SIGKILL
    assert answers(large) == [206]
    command[-1] = KILLED.replace("os.kill(os.getpid(), signal.SIGKILL)", "print(done, total)")
    again = subprocess.run(command, cwd=ROOT, env=os.environ | home, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert answers(large) == [206, 206]
    first, *_, last = [tuple(map(int, line.split())) for line in again.stdout.splitlines()]
    assert first[0] > 15e6  # the rest only
    assert last[0] == last[1] > LARGE


def test_a_download_tells_its_progress_and_can_be_ended(large):
    told = []

    def end(done, total):
        told.append((done, total))
        if done > 15e6:
            raise Cancelled("Enough.")

    with pytest.raises(Cancelled):
        checkpoint_files.fetch("ada/large", on_progress=end)
    folder = checkpoint_files.fetch("ada/large", on_progress=lambda *facts: told.append(facts))
    dones = [done for done, _ in told]
    assert dones == sorted(dones)
    assert told[-1][0] == told[-1][1] > LARGE
    assert (folder / "model.safetensors").stat().st_size == told[-1][1]
    count = len(told)
    checkpoint_files.fetch("ada/large", on_progress=lambda *facts: told.append(facts))
    assert len(told) == count  # it lies on the disk


def test_a_download_that_is_cut_off_goes_on_with_its_own_part(large):
    large.fail("GET", "/lfs/", cut=True, after=12_000_000, times=2)
    large.add_repo("ada/cut", files=large.repos["model", "ada/large"].files)
    folder = checkpoint_files.fetch("ada/cut")
    assert (folder / "model.safetensors").stat().st_size > LARGE
    assert answers(large) == [206, 206, 206]
    large.add_repo("ada/never", files=large.repos["model", "ada/large"].files)
    broken = large.fail("GET", "/lfs/", cut=True, times=99)
    with pytest.raises(ModelError, match="could not be read: the Hub"):
        checkpoint_files.fetch("ada/never")
    broken.times = 0
    # What another program left where the part is kept is not taken for it.
    files = large.repos["model", "ada/large"].files
    whole = files["model.safetensors"]
    blobs = confinement.hub_cache() / "models--ada--damaged" / "blobs"
    large.add_repo("ada/damaged", files=files)
    blobs.mkdir(parents=True)
    (blobs / f"{hashlib.sha256(whole).hexdigest()}.part").write_bytes(b"x" * 2**20)
    folder = checkpoint_files.fetch("ada/damaged")
    assert (folder / "model.safetensors").read_bytes() == whole
    assert not [*blobs.glob("*.part")]
