from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import softmax

from finetune.metrics import calibration

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
pytestmark = pytest.mark.filterwarnings("error")


def drawn(n: int, classes: int, temperature: float, seed: int = 0) -> tuple[Floats, Labels]:
    """Draw logits and labels; the labels follow the softmax of the logits at this temperature."""
    random = np.random.default_rng(seed)
    true = random.normal(scale=1.5, size=(n, classes))
    # The largest of logits with Gumbel noise is a draw from their softmax.
    labels = (true + random.gumbel(size=true.shape)).argmax(axis=1)
    return true * temperature, labels


def test_separated_data_gets_the_coldest_and_nonsense_the_hottest() -> None:
    logits = np.array([[4.0, -4.0]] * 20 + [[-4.0, 4.0]] * 20)
    labels = np.repeat([0, 1], 20)
    for scale in (1, 1000):
        assert calibration.fit_temperature(logits * scale, labels) == calibration.COLDEST
    assert calibration.fit_temperature(logits, 1 - labels) == calibration.HOTTEST
    assert calibration.fit_temperature(np.full((5, 3), 2.0), np.arange(5) % 3) == 1


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_overconfident_data_gets_better_on_examples_not_fitted_on(seed: int) -> None:
    logits, labels = drawn(408, 2, 3.0, seed)
    shares = softmax(logits, axis=1)
    before = calibration.reliability(shares.max(axis=1), shares.argmax(axis=1) == labels)
    fitted = calibration.calibrate(logits, labels)
    assert fitted.refusal == ""
    assert fitted.after is not None
    assert fitted.temperature == calibration.fit_temperature(logits, labels)
    assert fitted.after.ece < before.ece
    assert fitted.after.counts.sum() == 408


def erring(errors: int, n: int = 200, scale: float = 4.0) -> tuple[Floats, Labels]:
    """Make equally confident logits of two classes, this many of them wrong."""
    labels = np.arange(n) % 2
    answers = np.where(np.arange(n) < errors, 1 - labels, labels)
    return scale * np.eye(2)[answers], labels


@pytest.mark.parametrize(
    ("logits", "labels", "refusal"),
    [
        (*erring(0), "few errors"),
        (*erring(9), "few errors"),
        (*erring(10), ""),  # 98% sure, right in 95%
        (*erring(200), "bound"),
        (*erring(20, scale=math.log(9)), "no gain"),  # 90% sure, right in 90%
        (*drawn(9, 2, 2.0), "few errors"),
        (np.full((30, 3), 2.0), np.arange(30) % 3, "no gain"),
    ],
)
def test_a_temperature_is_offered_where_errors_determine_it(
    logits: Floats, labels: Labels, refusal: str
) -> None:
    fitted = calibration.calibrate(logits, labels)
    assert fitted.refusal == refusal
    assert (fitted.temperature is None) == (fitted.after is None) == bool(refusal)
    assert fitted.errors == (logits.argmax(axis=1) != labels).sum()
