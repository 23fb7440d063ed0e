from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from sklearn.calibration import calibration_curve
from sklearn.metrics import log_loss

from finetune.metrics import calibration

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


@pytest.fixture(autouse=True)
def warnings_are_errors() -> None:
    warnings.simplefilter("error")


def told(n: int, classes: int, temperature: float, seed: int = 0) -> tuple[Floats, Labels]:
    """Logits whose softmax at this temperature is the very chance of each class."""
    draw = np.random.default_rng(seed)
    true = draw.normal(scale=1.5, size=(n, classes))
    # The largest of logits with Gumbel noise is a draw from their softmax.
    labels = (true + draw.gumbel(size=true.shape)).argmax(axis=1)
    return true * temperature, labels


def plain(logits: Floats, labels: Labels) -> float:
    """The temperature by a search that knows nothing of slopes."""

    def nll(log_temperature: Floats) -> float:
        found = log_softmax(logits / np.exp(log_temperature[0]), axis=1)
        return float(-found[np.arange(len(labels)), labels].mean())

    found = minimize(nll, [0.0], method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-12})
    return math.exp(float(found.x[0]))


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("temperature", [0.1, 1.0, 7.0])
def test_probabilities_equal_scipys(temperature: float, kind: type[np.floating]) -> None:
    logits = told(40, 5, 2.0)[0].astype(kind)
    found = calibration.probabilities(logits, temperature)
    assert found.dtype == np.float32
    expected = softmax(logits.astype(np.float64) / temperature, axis=1)
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-6)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = told(103, 4, 2.0)
    whole = calibration.probabilities(logits)
    found = calibration.calibrate(logits, labels)
    monkeypatch.setattr(calibration, "_CHUNK", 40)
    np.testing.assert_array_equal(calibration.probabilities(logits), whole)
    again = calibration.calibrate(logits, labels)
    assert found is not None
    assert again is not None
    assert again.temperature == pytest.approx(found.temperature, rel=1e-8)
    assert again.nll_after == pytest.approx(found.nll_after, rel=1e-8)
    np.testing.assert_array_equal(again.after.counts, found.after.counts)


def test_extreme_logits_are_no_trouble() -> None:
    logits = np.array([[3e38, -3e38], [-1e5, 1e5], [0, 0]], dtype=np.float32)
    found = calibration.probabilities(logits, 0.05)
    assert found.tolist() == [[1, 0], [0, 1], [0.5, 0.5]]
    assert math.isfinite(calibration.fit_temperature(logits, np.array([1, 1, 0])))


def test_bins_equal_scikit_learns() -> None:
    draw = np.random.default_rng(0)
    confidence = draw.uniform(0.4, 1, size=500)
    right = draw.random(500) < confidence**2
    found = calibration.reliability(confidence, right, bins=10)
    accuracy, mean = calibration_curve(right, confidence, n_bins=10)
    filled = found.counts > 0
    np.testing.assert_allclose(found.accuracy[filled], accuracy)
    np.testing.assert_allclose(found.confidence[filled], mean)
    assert np.isnan(found.accuracy[~filled]).all()
    assert filled.sum() == 6
    gaps = np.abs(accuracy - mean)
    assert found.ece == pytest.approx((gaps * found.counts[filled]).sum() / 500)
    assert found.mce == pytest.approx(gaps.max())


def test_a_bin_holds_its_upper_edge() -> None:
    confidence = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    found = calibration.reliability(confidence, np.ones(6, dtype=bool), bins=5)
    assert found.counts.tolist() == [2, 1, 1, 1, 1]
    assert found.edges.tolist() == [0, 0.2, 0.4, 0.6, 0.8, 1]


def test_errors_of_two_bins_by_hand() -> None:
    confidence = np.array([0.6, 0.7, 0.9, 0.9])
    right = np.array([False, True, True, True])
    found = calibration.reliability(confidence, right, bins=4)
    assert found.counts.tolist() == [0, 0, 2, 2]
    assert found.ece == pytest.approx((0.15 * 2 + 0.1 * 2) / 4)
    assert found.mce == pytest.approx(0.15)


@pytest.mark.parametrize("classes", [2, 6])
def test_calibrated_data_has_next_to_no_error(classes: int) -> None:
    logits, labels = told(40_000, classes, 1.0)
    chances = calibration.probabilities(logits)
    found = calibration.reliability(chances.max(axis=1), chances.argmax(axis=1) == labels)
    assert found.ece < 0.01
    wrong = calibration.probabilities(logits, 0.4)
    found = calibration.reliability(wrong.max(axis=1), wrong.argmax(axis=1) == labels)
    assert found.ece > 0.08


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("temperature", [0.2, 0.7, 1.0, 3.0, 12.0])
def test_a_known_temperature_is_found_again(temperature: float, classes: int) -> None:
    found = calibration.fit_temperature(*told(20_000, classes, temperature))
    assert found == pytest.approx(temperature, rel=0.04)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
@pytest.mark.parametrize(("n", "classes"), [(30, 2), (408, 2), (300, 7)])
def test_the_temperature_equals_that_of_a_plain_search(
    n: int, classes: int, temperature: float
) -> None:
    logits, labels = told(n, classes, temperature)
    expected = plain(logits, labels)
    assert calibration.COLDEST < expected < calibration.HOTTEST
    assert calibration.fit_temperature(logits, labels) == pytest.approx(expected, rel=1e-5)


def test_separated_data_gets_the_coldest_and_nonsense_the_hottest() -> None:
    logits = np.array([[4.0, -4.0]] * 20 + [[-4.0, 4.0]] * 20)
    labels = np.repeat([0, 1], 20)
    assert calibration.fit_temperature(logits, labels) == calibration.COLDEST
    assert calibration.fit_temperature(logits * 1000, labels) == calibration.COLDEST
    assert calibration.fit_temperature(logits, 1 - labels) == calibration.HOTTEST
    assert calibration.fit_temperature(logits[:20], labels[:20]) == calibration.COLDEST
    assert calibration.fit_temperature(np.full((5, 3), 2.0), np.arange(5) % 3) == 1
    assert calibration.fit_temperature(np.ones((5, 1)), np.zeros(5, dtype=np.int64)) == 1
    assert calibration.fit_temperature(logits[:1], labels[:1]) == calibration.COLDEST


def test_many_numbers_are_fitted_on_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = told(30_000, 3, 2.0)
    whole = calibration.fit_temperature(logits, labels)
    monkeypatch.setattr(calibration, "_ENOUGH", 30_000)
    part = calibration.fit_temperature(logits, labels)
    assert part != whole
    assert part == pytest.approx(whole, rel=0.05)
    assert part == calibration.fit_temperature(logits, labels)
    found = calibration.calibrate(logits, labels)
    assert found is not None
    assert found.nll_after < found.nll_before


def test_the_figures_before_are_scikit_learns() -> None:
    logits, labels = told(200, 4, 3.0)
    found = calibration.calibrate(logits, labels)
    assert found is not None
    chances = softmax(logits, axis=1)
    assert found.nll_before == pytest.approx(log_loss(labels, chances, labels=range(4)))
    expected = calibration.reliability(chances.max(axis=1), chances.argmax(axis=1) == labels)
    assert found.before.ece == pytest.approx(expected.ece)
    assert found.temperature == pytest.approx(plain(logits, labels), rel=1e-5)


def test_overconfident_data_gets_better_on_examples_not_fitted_on() -> None:
    for seed in range(20):
        found = calibration.calibrate(*told(408, 2, 3.0, seed))
        assert found is not None
        assert found.folds == 5
        assert found.nll_after <= found.nll_before
        assert found.after.ece < found.before.ece
        assert found.after.counts.sum() == found.before.counts.sum() == 408


def test_the_figures_after_promise_no_more_than_new_examples_keep() -> None:
    """With few examples the fitted temperature flatters its own; the folds do not."""
    own, folds, new = [], [], []
    for seed in range(300):
        logits, labels = told(24, 2, 1.0, seed)
        found = calibration.calibrate(logits, labels)
        assert found is not None
        fresh, truth = told(2000, 2, 1.0, seed + 1000)
        own.append(calibration._judged(logits, labels, np.full(24, found.temperature))[2])
        folds.append(found.nll_after)
        new.append(calibration._judged(fresh, truth, np.full(2000, found.temperature))[2])
    assert np.mean(own) < np.mean(new) - 0.01
    # A fold's temperature rests on fewer examples still, so it may be worse, not better.
    assert np.mean(folds) > np.mean(new) - 0.01


@pytest.mark.parametrize(("n", "folds"), [(10, 2), (19, 2), (35, 3), (50, 5), (5000, 5)])
def test_small_sets_have_fewer_folds(n: int, folds: int) -> None:
    found = calibration.calibrate(*told(n, 2, 2.0))
    assert found is not None
    assert found.folds == folds


def test_fewer_than_ten_examples_are_too_few() -> None:
    assert calibration.calibrate(*told(9, 2, 2.0)) is None


@pytest.mark.parametrize("labels", [np.zeros(12, dtype=np.int64), np.arange(12) % 2])
def test_a_single_class_and_separated_data_stay_finite(labels: Labels) -> None:
    logits = np.where(labels[:, None] == np.arange(2), 500.0, -500.0)
    found = calibration.calibrate(logits, labels)
    assert found is not None
    assert found.temperature == calibration.COLDEST
    assert found.nll_before == found.nll_after == found.after.ece == 0
