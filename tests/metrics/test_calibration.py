from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from sklearn.calibration import calibration_curve

from finetune.metrics import calibration

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


@pytest.fixture(autouse=True)
def warnings_are_errors() -> None:
    warnings.simplefilter("error")


def drawn(n: int, classes: int, temperature: float, seed: int = 0) -> tuple[Floats, Labels]:
    """Logits whose softmax at this temperature is the very chance of each class."""
    random = np.random.default_rng(seed)
    true = random.normal(scale=1.5, size=(n, classes))
    # The largest of logits with Gumbel noise is a draw from their softmax.
    labels = (true + random.gumbel(size=true.shape)).argmax(axis=1)
    return true * temperature, labels


def nll(logits: Floats, labels: Labels, temperature: float) -> float:
    return float(-log_softmax(logits / temperature, axis=1)[np.arange(len(labels)), labels].mean())


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("temperature", [0.1, 1.0, 7.0])
def test_probabilities_equal_scipys(temperature: float, kind: type[np.floating]) -> None:
    logits = drawn(40, 5, 2.0)[0].astype(kind)
    found = calibration.probabilities(logits, temperature)
    assert found.dtype == np.float32
    expected = softmax(logits.astype(np.float64) / temperature, axis=1)
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-6)


def test_extreme_logits_are_no_trouble() -> None:
    logits = np.array([[3e38, -3e38], [-1e5, 1e5], [0, 0]], dtype=np.float32)
    before = logits.copy()
    assert calibration.probabilities(logits, 0.05).tolist() == [[1, 0], [0, 1], [0.5, 0.5]]
    assert (logits == before).all()
    assert math.isfinite(calibration.fit_temperature(logits, np.array([1, 1, 0])))


def test_bins_equal_scikit_learns() -> None:
    random = np.random.default_rng(0)
    confidence = random.uniform(0.4, 1, size=500)
    right = random.random(500) < confidence**2
    found = calibration.reliability(confidence, right, bins=10)
    accuracy, mean = calibration_curve(right, confidence, n_bins=10)
    filled = found.counts > 0
    np.testing.assert_allclose(found.accuracy[filled], accuracy)
    np.testing.assert_allclose(found.confidence[filled], mean)
    assert np.isnan(found.accuracy[~filled]).all()
    gaps = np.abs(accuracy - mean)
    assert found.ece == pytest.approx((gaps * found.counts[filled]).sum() / 500)


def test_two_bins_by_hand_and_a_bin_holds_its_upper_edge() -> None:
    found = calibration.reliability(
        np.array([0.6, 0.7, 0.9, 0.9]), np.array([False, True, True, True]), bins=4
    )
    assert found.counts.tolist() == [0, 0, 2, 2]
    assert found.ece == pytest.approx((0.15 * 2 + 0.1 * 2) / 4)
    edges = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    found = calibration.reliability(edges, np.ones(6, dtype=bool), bins=5)
    assert found.counts.tolist() == [2, 1, 1, 1, 1]


@pytest.mark.parametrize(("n", "classes"), [(30, 2), (408, 2), (300, 7)])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_the_temperature_is_that_of_a_plain_search(
    n: int, classes: int, temperature: float
) -> None:
    logits, labels = drawn(n, classes, temperature)
    found = minimize(
        lambda log: nll(logits, labels, math.exp(log[0])), [0.0],
        method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-12},
    )  # fmt: skip
    expected = math.exp(float(found.x[0]))
    assert calibration.fit_temperature(logits, labels) == pytest.approx(expected, rel=1e-5)


def test_separated_data_gets_the_coldest_and_nonsense_the_hottest() -> None:
    logits = np.array([[4.0, -4.0]] * 20 + [[-4.0, 4.0]] * 20)
    labels = np.repeat([0, 1], 20)
    for scale in (1, 1000):
        assert calibration.fit_temperature(logits * scale, labels) == calibration.COLDEST
    assert calibration.fit_temperature(logits, 1 - labels) == calibration.HOTTEST
    assert calibration.fit_temperature(logits[:1], labels[:1]) == calibration.COLDEST
    assert calibration.fit_temperature(np.full((5, 3), 2.0), np.arange(5) % 3) == 1
    assert calibration.fit_temperature(np.ones((5, 1)), np.zeros(5, dtype=np.int64)) == 1


def test_many_numbers_are_fitted_on_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = drawn(30_000, 3, 2.0)
    monkeypatch.setattr(calibration, "_FITTED_ON", 30_000)
    part = calibration.fit_temperature(logits, labels)
    assert part == pytest.approx(2.0, rel=0.05)
    assert part == calibration.fit_temperature(logits, labels)


def test_overconfident_data_gets_better_on_examples_not_fitted_on() -> None:
    for seed in range(10):
        logits, labels = drawn(408, 2, 3.0, seed)
        found = calibration.calibrate(logits, labels)
        assert found is not None
        assert found.folds == 5
        assert found.temperature == calibration.fit_temperature(logits, labels)
        assert found.after.ece < found.before.ece
        assert found.after.counts.sum() == found.before.counts.sum() == 408


def test_calibration_by_chunks_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = drawn(103, 4, 2.0)
    whole = calibration.calibrate(logits, labels)
    chances = softmax(logits, axis=1)
    expected = calibration.reliability(chances.max(axis=1), chances.argmax(axis=1) == labels)
    monkeypatch.setattr(calibration, "_CHUNK", 40)
    again = calibration.calibrate(logits, labels)
    assert whole is not None
    assert again is not None
    assert again.before.ece == whole.before.ece == pytest.approx(expected.ece)
    assert again.after.ece == pytest.approx(whole.after.ece, rel=1e-8)


@pytest.mark.parametrize(("n", "folds"), [(10, 2), (19, 2), (35, 3), (50, 5), (5000, 5)])
def test_small_sets_have_fewer_folds(n: int, folds: int) -> None:
    found = calibration.calibrate(*drawn(n, 2, 2.0))
    assert found is not None
    assert found.folds == folds


def test_fewer_than_ten_examples_are_too_few() -> None:
    assert calibration.calibrate(*drawn(9, 2, 2.0)) is None


@pytest.mark.parametrize("labels", [np.zeros(12, dtype=np.int64), np.arange(12) % 2])
def test_a_single_class_and_separated_data_stay_finite(labels: Labels) -> None:
    logits = np.where(labels[:, None] == np.arange(2), 500.0, -500.0)
    found = calibration.calibrate(logits, labels)
    assert found is not None
    assert found.temperature == calibration.COLDEST
    assert found.after.ece == 0
