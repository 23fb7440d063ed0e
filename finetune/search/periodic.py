"""The scheduler's periodic work for searches. Imports Optuna only if there is a search."""

from __future__ import annotations

from finetune.runs.store import RunStore


def advance_all(store: RunStore) -> None:
    """Advance every search of a store."""
    if any(store.root.glob("studies/*/study.json")):
        from finetune.search import driver

        driver.advance_all(store)
