"""The files of a checkpoint, checked before a library reads them.

A checkpoint is data, but the classes of transformers take the contents of its JSON files as
arguments, and some of these name files to open, repositories to load or code to run. So files are
fetched by known names, JSON files are read here first, and libraries get a temporary folder that
holds only checked files. `CheckedFiles.load` is the only call of `from_pretrained`.
"""

import contextlib
import json
import math
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from finetune import disk, hub_errors
from finetune.data import catalog, checkpoints, hub_access
from finetune.data.model_cache import fetch_large_files
from finetune.environment import logs
from finetune.errors import FinetuneError, ModelError
from finetune.hub_errors import Cause
from finetune.runs.run import NOTES

CONFIG, INDEX, WEIGHTS = "config.json", "model.safetensors.index.json", "model.safetensors"
ENCODER_FILES = ("modules.json", "1_Pooling/config.json")  # of a sentence encoder
_ADAPTER = "adapter_config.json"
# Passed on unchanged: nothing in them is read as the name of a file.
_VOCABULARIES = (
    "tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "bpe.codes", "spiece.model",
    "sentencepiece.bpe.model", "sentencepiece.model", "spm.model", "tokenizer.model",
    "entity_vocab.json", "prophetnet.tokenizer",
)  # fmt: skip
_LARGEST_JSON, _LARGEST_VOCABULARY = 64 * 2**20, 128 * 2**20  # bytes
# A model may have so many times the parameters of its file, because shared ones count each time
# that they are built, and a new head.
_SHARED, _OF_HEAD = 4, 2**21
_TENSORS_OF_HEAD = 1000
# Last word of a number in a configuration by which lists are made -> its limit.
_COUNTS = {"layer": 1000, "layers": 1000, "labels": 100_000}
_SHARD = re.compile(r"[\w.-]+\.safetensors")
# Settings of a tokenizer that are kept, besides its tokens.
_SETTINGS = {
    "add_bos_token", "add_eos_token", "add_prefix_space", "clean_text",
    "clean_up_tokenization_spaces", "do_basic_tokenize", "do_clean_text", "do_lower_case",
    "do_lowercase", "do_lowercase_and_remove_accent", "extra_ids", "keep_accents", "legacy",
    "legacy_behaviour", "max_length", "model_max_length", "normalization", "offset",
    "pad_to_multiple_of", "pad_token_type_id", "remove_space", "split_by_punct",
    "split_special_tokens", "spaces_between_special_tokens", "stride", "strip_accents",
    "tokenize_chinese_chars", "trim_offsets", "unk_id",
}  # fmt: skip
_WORDS = {  # settings whose values are words
    "backend", "errors", "language", "model_input_names", "never_split", "padding_side",
    "src_lang", "task", "tgt_lang", "tokenizer_class", "truncation_side", "truncation_strategy",
    "wordpieces_prefix",
}  # fmt: skip
_TOKENS = {"added_tokens_decoder", "additional_special_tokens", "extra_special_tokens"}
# Keys in which older libraries stored paths of the machine that saved the checkpoint.
_ORIGINS = {
    "_name_or_path", "name_or_path", "special_tokens_map_file", "tokenizer_file", "vocab_file",
    "merges_file", "spm_file", "base_model_name_or_path", "chat_template", "task_specific_params",
}  # fmt: skip
# Keys of a configuration that do not describe the weights.
_UNUSED = _ORIGINS | {
    "auto_map", "_commit_hash", "transformers_weights", "attn_implementation",
    "_attn_implementation", "_attn_implementation_internal", "_attn_implementation_autoset",
    "experts_implementation", "_experts_implementation", "_experts_implementation_internal",
    "custom_pipelines",
}  # fmt: skip
_NAMES = {"id2label", "label2id", "architectures", NOTES}  # may hold any text
_DTYPES = {"float32", "float16", "bfloat16"}
_PLACE = re.compile(r"[/~\\]|[A-Za-z]:[/\\]|\w+://|(.*[/\\])?\.\.([/\\]|$)|.*\0", re.DOTALL)


def fetch(
    checkpoint: str, weights: bool = True, on_progress: Callable[[int, int], None] | None = None
) -> Path:
    """Return the folder with a checkpoint's files; missing ones are fetched from the Hub. What a
    former download has fetched of a file is kept. Raises as `checkpoints.resolve_checkpoint` and
    `open_files`.

    Args:
        checkpoint: an offered name, a Hub id, or a folder.
        weights: False if only the configuration and the tokenizer are needed.
        on_progress: called with the bytes fetched of large files, and their total. What it raises
            ends the download.
    """
    place = checkpoints.resolve_checkpoint(checkpoint)
    if catalog.is_folder(place):
        return Path(place)
    with explaining(checkpoint):
        folder = _snapshot(place, [CONFIG, _ADAPTER, INDEX, *_CHECKS, *ENCODER_FILES])
        shards = _shards(_read_json_files(folder, checkpoint)) if weights else []
        missing = [shard for shard in shards if not (folder / shard).exists()]
        if missing and not hub_access.is_offline():
            commit, report = folder.name, on_progress or (lambda done, total: None)
            hub_errors.retried(lambda: fetch_large_files(place, missing, commit, report))
        _snapshot(place, [*_VOCABULARIES, *shards], folder.name)
    if weights and not any((folder / shard).exists() for shard in shards):
        cause = "silent" if hub_access.is_offline() else "pickle"
        raise hub_errors.refusal("checkpoint", checkpoint, Cause(cause))
    return folder


def _snapshot(repo: str, names: list[str], revision: str | None = None) -> Path:
    from huggingface_hub import snapshot_download

    fetched = partial(snapshot_download, repo, revision=revision, allow_patterns=names)
    return Path(hub_errors.retried(fetched))


@dataclass(frozen=True)
class CheckedFiles:
    """A folder that holds only checked files, and the contents of its JSON files."""

    folder: Path
    checkpoint: str
    contents: Mapping[str, Any]  # file name -> the object in it

    def load(self, auto: Any, **options: Any) -> Any:
        """Load an object by an `Auto` class of transformers; `options` go to `from_pretrained`.
        ModelError if it is a model and far larger than its weights."""
        with self._bounded() if "use_safetensors" in options else contextlib.nullcontext():
            loaded = auto.from_pretrained(
                self.folder, trust_remote_code=False, local_files_only=True, **options
            )
        main = loaded[0] if isinstance(loaded, tuple) else loaded
        parts: list[Any] = [main, getattr(main, "config", None)]
        for part in parts:
            if hasattr(part, "name_or_path"):
                part.name_or_path = self.checkpoint  # saved with the model
        return loaded

    @contextlib.contextmanager
    def _bounded(self) -> Iterator[None]:
        """End the building of a model in this thread that becomes far larger than its weights."""
        from safetensors import safe_open
        from torch.nn.modules.module import register_module_parameter_registration_hook

        sizes = []
        for path in self.folder.glob("*.safetensors"):
            with safe_open(path, framework="np") as file:
                sizes += [math.prod(file.get_slice(name).get_shape()) for name in file.keys()]  # noqa: SIM118
        left = [_SHARED * sum(sizes) + _OF_HEAD, _SHARED * len(sizes) + _TENSORS_OF_HEAD]
        thread = threading.get_ident()

        def count(module: object, name: str, parameter: Any) -> None:
            if threading.get_ident() != thread or parameter is None or not parameter.is_meta:
                return
            left[:] = left[0] - parameter.numel(), left[1] - 1
            if min(left) < 0:
                raise ModelError(
                    "config.json of the checkpoint {name} asks for a model that is far larger than "
                    "its weights, which have {n:,} parameters.",
                    "Choose another checkpoint.",
                    name=self.checkpoint,
                    n=sum(sizes),
                )

        hook = register_module_parameter_registration_hook(count)
        try:
            yield
        finally:
            hook.remove()


@contextlib.contextmanager
def open_files(folder: Path, checkpoint: str = "") -> Iterator[CheckedFiles]:
    """Yield the checked files of a checkpoint, in a temporary folder. Its name, for errors and for
    saved models, is the folder by default. ModelError if a file is damaged, links to a place
    outside the folder, or names another file, another model or code, and if transformers cannot
    load the files in the `with` block."""
    name = checkpoint or str(folder)
    with explaining(name), tempfile.TemporaryDirectory(prefix="checkpoint-") as temporary:
        contents = _read_json_files(folder, name)
        # transformers guesses the kind of a model from its name if its files do not say it.
        checked = Path(temporary) / (re.sub(r"[^\w.-]", "_", Path(name).name) or "model")
        checked.mkdir()
        for file, content in contents.items():
            if "/" not in file:
                (checked / file).write_text(json.dumps(content), encoding="utf-8")
        for file in [*_VOCABULARIES, *_shards(contents)]:
            if (path := _inside(folder, file, name)) is not None:
                if file in _VOCABULARIES and path.stat().st_size > _LARGEST_VOCABULARY:
                    raise ModelError(
                        "{file} of the checkpoint {name} has more than {n} MiB, which no tokenizer "
                        "has.",
                        "Choose another checkpoint.",
                        file=file,
                        name=name,
                        n=_LARGEST_VOCABULARY // 2**20,
                    )
                (checked / file).symlink_to(path)
        yield CheckedFiles(checked, name, contents)


@contextlib.contextmanager
def explaining(checkpoint: str) -> Iterator[None]:
    """Turn errors of the Hub's clients and of file readers into errors for people."""
    try:
        yield
    except (FinetuneError, MemoryError):
        raise
    except Exception as error:  # safetensors and tokenizers raise bare Exceptions on damage
        if (explained := hub_errors.explained("checkpoint", checkpoint, error)) is not None:
            raise explained from error
        raise ModelError(
            "The checkpoint {checkpoint!r} cannot be loaded: {error}",
            "Check its name; it must be a text encoder with safetensors weights.",
            checkpoint=checkpoint,
            error=logs.first_line(error),
        ) from error


def _inside(folder: Path, file: str, name: str) -> Path | None:
    """The path of a checkpoint's file, or None; ModelError if it leads outside the folder."""
    path, root = folder / file, folder.resolve()
    if not path.exists():
        return None
    if folder.parent.name == "snapshots":  # the Hub's cache, whose files are links to `blobs`
        root = root.parents[1]
    if not (real := path.resolve()).is_relative_to(root) or not real.is_file():
        raise ModelError(
            "{file} in the checkpoint {name} is a link to a place outside its folder.",
            "Put the file itself there in place of the link.",
            file=file,
            name=name,
        )
    return real


def _read_json_files(folder: Path, name: str) -> dict[str, Any]:
    """Return file name -> content of a checkpoint's JSON files, without unsafe entries."""
    if (folder / _ADAPTER).exists():
        raise ModelError(
            "{name} is an adapter: it changes another model and is incomplete without it.",
            "Choose the model it belongs to, or merge it into that one and save the result.",
            name=name,
        )
    contents = {}
    for file in (CONFIG, INDEX, *_CHECKS, *ENCODER_FILES):
        if (path := _inside(folder, file, name)) is None:
            continue
        try:
            if path.stat().st_size > _LARGEST_JSON:
                raise ValueError
            content = disk.parse_json(path.read_bytes())
            check = _CHECKS.get(file)
            contents[file] = check(content, file, name) if check else content
        except (ValueError, TypeError, AttributeError) as error:
            raise ModelError(
                "{file} of the checkpoint {name} is damaged.",
                "Choose another, or fetch it again.",
                file=file,
                name=name,
            ) from error
    return contents


def _shards(contents: Mapping[str, Any]) -> list[str]:
    index = contents.get(INDEX)
    return sorted(set(index["weight_map"].values())) if index else [WEIGHTS]


def _check_index(index: Any, file: str, name: str) -> Any:
    for shard in index["weight_map"].values():
        if not isinstance(shard, str) or not _SHARD.fullmatch(shard):
            raise _names_a_place(file, name, "weight_map", shard)
    return {"metadata": {}, "weight_map": index["weight_map"]}


def _check_config(config: Any, file: str, name: str) -> Any:
    from transformers import CONFIG_MAPPING

    kind = config.get("model_type")
    if config.get("auto_map") and kind not in CONFIG_MAPPING:
        raise ModelError(
            "The checkpoint {name} needs code of its own, which is never run here.",
            "Choose one of a type that transformers supports; it does not support {kind!r}.",
            name=name,
            kind=str(kind),
        )
    if config.get("quantization_config"):
        raise ModelError(
            "The weights of the checkpoint {name} are quantized, so they cannot be fine-tuned.",
            "Choose the checkpoint that it was made from.",
            name=name,
        )
    return _without_places(config, file, name)


def _without_places(config: dict[str, Any], file: str, name: str) -> dict[str, Any]:
    """Copy a configuration, nested ones included, without entries that could name a file, a
    repository or code."""
    kept = {}
    for key, value in config.items():
        most = _COUNTS.get(key.rpartition("_")[2], math.inf)
        if isinstance(value, int) and value > most:
            raise ModelError(
                "{file} of the checkpoint {name} says {value:,} for {key}; the most is {most:,}.",
                "Choose another checkpoint.",
                file=file,
                name=name,
                value=value,
                key=key,
                most=most,
            )
        if key in _UNUSED or (key in ("dtype", "torch_dtype") and value not in _DTYPES):
            continue
        if isinstance(value, dict) and key not in _NAMES:
            value = _without_places(value, file, name)
        elif key not in _NAMES and _has_place(value, file, name, key):
            continue
        kept[key] = value
    return kept


def _has_place(value: Any, file: str, name: str, key: str) -> bool:
    """True if a string in a JSON value has a slash. Raises ModelError if one is a path."""
    texts = list(_texts(value))
    for text in texts:
        if _PLACE.match(text):
            raise _names_a_place(file, name, key, text)
    return any("/" in text or "\\" in text for text in texts)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)


def _names_a_place(file: str, name: str, key: str, value: object) -> ModelError:
    return ModelError(
        "{file} in the checkpoint {name} points outside the checkpoint: {key} is {value}.",
        "Choose another checkpoint, or remove that entry if the checkpoint is yours.",
        file=file,
        name=name,
        key=key,
        value=repr(value)[:80],
    )


def _check_tokenizer_config(config: Any, file: str, name: str) -> Any:
    kept = _tokens_only(config, file, name)
    for key, value in config.items():
        if key in kept or key in _ORIGINS:
            continue
        if key in _SETTINGS:
            if value is None or isinstance(value, bool | int | float):
                kept[key] = value
        elif not _has_place(value, file, name, key) and key in _WORDS:
            kept[key] = value
    return kept


def _tokens_only(tokens: Any, file: str, name: str) -> Any:
    """Keep the special tokens of a tokenizer: texts, or objects with a text and flags."""
    named = {key: value for key, value in tokens.items() if key in _TOKENS or key[-6:] == "_token"}
    return {key: value for key, value in named.items() if _is_tokens(value)}


def _is_tokens(value: Any) -> bool:
    if isinstance(value, dict) and "content" in value:
        flags = value.keys() - {"content", "__type"}
        return isinstance(value["content"], str) and all(
            type(value[flag]) is bool for flag in flags
        )
    if isinstance(value, dict | list):
        return all(map(_is_tokens, value.values() if isinstance(value, dict) else value))
    return value is None or isinstance(value, str)


# File -> function of its content, its name and the checkpoint's name; returns the content to keep.
_CHECKS: dict[str, Callable[[Any, str, str], Any]] = {
    CONFIG: _check_config,
    INDEX: _check_index,
    "tokenizer_config.json": _check_tokenizer_config,
    "special_tokens_map.json": _tokens_only,
    "added_tokens.json": lambda tokens, *_: {
        token: index for token, index in tokens.items() if type(index) is int
    },
}
