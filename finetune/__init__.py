"""Fine-tune a transformer on sentence pairs: in the browser, from a terminal, or from Python.

Names are imported when they are first used, so that `import finetune` is quick and loads no torch.
"""

# ruff: noqa: F403, F405
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from finetune.api import *
    from finetune.config import RunConfig
    from finetune.inference.predictor import Predictor
    from finetune.runs.run import Run
    from finetune.runs.store import RunStore

__version__ = "0.2.0"
__all__ = [
    "Predictor", "Run", "RunConfig", "RunStore", "answer_when_sure", "check", "cross_validate",
    "evaluate", "export", "gate", "groups", "label", "list_models", "list_runs", "load_pairs",
    "predict", "probe", "push_to_hub", "rank", "remove_model", "search", "still_holds", "train",
]  # fmt: skip
_MODULES = {
    "Predictor": "inference.predictor",
    "Run": "runs.run",
    "RunConfig": "config",
    "RunStore": "runs.store",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'finetune' has no attribute {name!r}")
    return getattr(import_module(f"finetune.{_MODULES.get(name, 'api')}"), name)


def __dir__() -> list[str]:
    return __all__
