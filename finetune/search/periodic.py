"""What an app's scheduler does for searches. Optuna is imported only if there is one."""

from __future__ import annotations

from finetune.runs.store import RunStore


def advance_all(store: RunStore) -> None:
    """Advance every search of a store."""
    if any(store.root.glob("studies/*/study.json")):
        from finetune.search import driver

        driver.advance_all(store)
