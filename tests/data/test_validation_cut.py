"""The validation split cut from train: each class by its share, equal pairs together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune.config import RunConfig
from finetune.data import checks
from finetune.data.dataset_cache import RowHashes
from finetune.data.validation_cut import cut_validation
from tests.support.uploads import Row, pairs, texts, upload


def hashes(rows: list[tuple[int, int, int]]) -> RowHashes:
    """Make hashes from rows of first sentence, second sentence and class, each a number."""
    first, second, label = np.array(rows, np.int64).reshape(-1, 3).T
    return RowHashes(label, np.arange(len(rows)), first * 1000 + second, first + 1, second + 10**6)


def hub_rows() -> list[Row]:
    """Make six sentences, each in many pairs of the common class; every tenth pair is alone."""
    rows: list[Row] = [(f"hub {n % 6}", f"spoke {n}", "no") for n in range(540)]
    return rows + [(f"alone {n}", f"alone too {n}", "yes") for n in range(60)]


def test_the_cut_keeps_shares_and_shares_no_sentence(tmp_path: Path) -> None:
    draw = np.random.default_rng(5)
    rows = [
        (f"question {draw.integers(400)}", f"question {draw.integers(400)} again", int(n % 4 == 0))
        for n in range(300)
    ] + [(f"alone {n}", f"alone too {n}", int(n % 3 == 0)) for n in range(900)]
    loaded = pairs(tmp_path, train=rows, validation_share=0.2)
    sides = [{text for pair in texts(split) for text in pair} for split in loaded.splits.values()]
    assert len(sides) == 2
    assert not sides[0] & sides[1]
    sizes = np.bincount([label for _, _, label in rows])
    validation = np.round(sizes * 0.2).astype(int)
    assert loaded.counts["validation"] == validation.tolist()
    assert loaded.counts["train"] == (sizes - validation).tolist()


def test_rows_of_one_sentence_in_many_pairs_are_cut_by_class_and_it_is_said(tmp_path: Path) -> None:
    rows = hub_rows()
    loaded = pairs(tmp_path, train=rows)
    assert loaded.counts["validation"] == [54, 6]
    train, validation = (set(texts(loaded.splits[name])) for name in ("train", "validation"))
    assert not train & validation
    name = upload(tmp_path, "sentence1,sentence2,label", rows, (), ())
    report = checks.check_pairs(RunConfig(dataset=name, checkpoint=str(tmp_path)), tmp_path)
    assert next(f for f in report.findings if f.kind == "shared").count == 54


def test_groups_of_one_class_and_of_two_meet_both_shares() -> None:
    """The rarest class comes first; otherwise the common class would fill the split with groups
    that lack it."""
    rows = []
    for group in range(110):
        labels = [0] * 5 + [1] * (group % 2)
        rows += [(group, 1000 * group + n, label) for n, label in enumerate(labels)]
    keys = hashes(rows)
    for seed in range(20):
        cut = cut_validation(keys, keys.label, 0.1, seed)
        assert np.bincount(keys.label[cut]).tolist() == [55, 6]
        assert not set(keys.first[cut]) & set(keys.first[~cut])


def test_a_few_large_groups_do_not_make_the_split() -> None:
    """Single rows keep their share beside groups that would fill the split."""
    rows = [(group, 1000 * group + n, n % 2) for group in range(50) for n in range(10)]
    rows += [(10_000 + n, 10_000 + n, n % 2) for n in range(500)]
    keys = hashes(rows)
    cut = cut_validation(keys, keys.label, 0.1, 0)
    assert cut.sum() == 100
    assert (keys.first[cut] > 10_000).sum() == 50


@pytest.mark.parametrize("rows", [[], [(1, 1, 0)], [(1, 1, 0), (2, 2, 1)], [(1, 1, 0)] * 30])
def test_rows_that_leave_no_choice(rows: list[tuple[int, int, int]]) -> None:
    keys = hashes(rows)
    cut = cut_validation(keys, keys.label, 0.1, 0)
    assert cut.sum() == (0 if len(rows) < 2 else max(1, len(rows) // 10))


@settings(max_examples=200, deadline=None)
@given(
    pairs=st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 200), st.integers(0, 3)),
        min_size=2,
        max_size=400,
    ),
    share=st.sampled_from([0.05, 0.1, 0.2, 0.5]),
    seed=st.integers(0, 9),
)
def test_each_class_has_its_share_within_what_equal_pairs_force(
    pairs: list[tuple[int, int, int]], share: float, seed: int
) -> None:
    keys = hashes(pairs)
    cut = cut_validation(keys, keys.label, share, seed)
    assert (cut == cut_validation(keys, keys.label, share, seed)).all()
    assert 0 < cut.sum() < len(cut)
    sizes = np.bincount(keys.label)
    wanted = np.where(sizes > 1, np.maximum(1, np.round(sizes * share)), 0)
    if not wanted.any():
        return
    shares = wanted / wanted.sum()
    found = np.bincount(keys.label[cut], minlength=len(sizes))
    largest = np.unique(keys.unordered, return_counts=True)[1].max()
    allowed = 1 + (largest - 1) * len(sizes)
    spread = np.sqrt(cut.sum() * shares * (1 - shares)) / 2
    assert (np.abs(found - cut.sum() * shares) <= np.maximum(allowed, spread)).all()
    # Equal pairs are torn apart only where they are as many as a class's share.
    together = not set(keys.unordered[cut]) & set(keys.unordered[~cut])
    assert together or largest > wanted[wanted > 0].min()
