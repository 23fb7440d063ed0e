from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from sklearn.calibration import calibration_curve

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


@pytest.mark.parametrize("kind", [np.float16, np.float64])
@pytest.mark.parametrize("temperature", [0.1, 7.0])
def test_probabilities_equal_scipys(temperature: float, kind: type[np.floating]) -> None:
    logits = drawn(40, 5, 2.0)[0].astype(kind)
    expected = softmax(logits.astype(np.float64) / temperature, axis=1)
    shares = calibration.probabilities(logits, temperature)
    np.testing.assert_allclose(shares, expected, rtol=2e-4, atol=1e-6)


def test_bins_equal_scikit_learns() -> None:
    random = np.random.default_rng(0)
    confidence = np.append(random.uniform(0.4, 1, size=500), [0.0, 1.0])
    right = random.random(502) < confidence**2
    bins = calibration.reliability(confidence, right)
    accuracy, mean = calibration_curve(right, confidence, n_bins=calibration.BINS)
    filled = bins.counts > 0
    np.testing.assert_allclose(bins.accuracy[filled], accuracy)
    np.testing.assert_allclose(bins.confidence[filled], mean)
    assert np.isnan(bins.accuracy[~filled]).all()
    assert bins.ece == pytest.approx(
        (np.abs(accuracy - mean) * bins.counts[filled]).sum() / len(right)
    )


@pytest.mark.parametrize(("n", "classes"), [(30, 2), (300, 7)])
@pytest.mark.parametrize("temperature", [0.3, 4.0])
def test_the_temperature_is_that_of_a_plain_search(
    n: int, classes: int, temperature: float
) -> None:
    logits, labels = drawn(n, classes, temperature)

    def loss(log: Floats) -> float:
        likelihoods = log_softmax(logits / math.exp(log[0]), axis=1)[np.arange(n), labels]
        return float(-likelihoods.mean())

    options = {"xatol": 1e-7, "fatol": 1e-12}
    best = minimize(loss, [0.0], method="Nelder-Mead", options=options)
    expected = math.exp(float(best.x[0]))
    assert calibration.fit_temperature(logits, labels) == pytest.approx(expected, rel=1e-5)


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
