"""This machine as an engine: a run's own worker carries it out (`jobs.workers`)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from finetune.config import RunConfig
from finetune.engines.base import HERE, Engine, EngineSpec
from finetune.messages import message as _
from finetune.runs.run import Run

if TYPE_CHECKING:
    from finetune.inference.files import WindowScorer


class LocalEngine(Engine):
    """The engine of a run without a spec."""

    name, label = HERE, _("This machine")
    places = None
    is_remote = False
    scores_files = True

    @classmethod
    def check_config(cls, config: RunConfig) -> None:
        """Accept every configuration."""

    def scorer(self, run: Run, spec: EngineSpec) -> AbstractContextManager[WindowScorer]:
        from finetune.inference.files import LocalScorer

        return nullcontext(LocalScorer(run))
