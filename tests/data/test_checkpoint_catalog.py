"""The checkpoints that are offered."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from finetune.config import BUNDLED_CHECKPOINT, RunConfig
from finetune.data import catalog
from finetune.data.checkpoint_catalog import CHECKPOINTS, matching


def test_each_entry_says_what_a_person_chooses_by() -> None:
    longest = RunConfig(max_length=8192).max_length
    for entry in CHECKPOINTS:
        assert catalog.is_hub_id(entry.repo), entry.name
        assert entry.name == BUNDLED_CHECKPOINT or catalog.may_be_fetched(entry.name)
        assert 10 < entry.millions < 2000, entry.name
        assert 512 <= entry.tokens <= longest, entry.name
        assert entry.languages, entry.name
        assert re.fullmatch(r"apache-2\.0|mit", entry.licence), entry.name
        assert entry.purpose.endswith("."), entry.name
    for values in ("name", "repo", "label"):
        (_, most), *_ = Counter(getattr(entry, values) for entry in CHECKPOINTS).most_common(1)
        assert most == 1, values


@pytest.mark.parametrize("size", ["small", "base", "large"])
def test_the_filters_part_it(size: str) -> None:
    english, other = (set(matching(size, languages)) for languages in ("english", "other"))
    assert english
    assert other
    assert not english & other
    assert english | other == set(matching(size))
    assert {*matching()} == {*CHECKPOINTS}
    assert not any(entry.multilingual for entry in english)
