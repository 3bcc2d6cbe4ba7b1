"""Regimes of a market: found where there are some, no prediction where there are none, and nothing foreseen."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from finflow.config import Config
from finflow.env.decision_process import DecisionProcess
from finflow.env.process_variants import with_growths
from finflow.training.data.regime_prediction import regime_returns
from finflow.training.data.training_data import TrainingData, prepare

Make = Callable[..., Config]
MEANS = np.array([[0.5, -0.3], [-0.5, 0.6]])
COVARIANCES = np.array([[[1.0, 0.3], [0.3, 0.5]], [[0.6, -0.2], [-0.2, 2.0]]])
TRANSITIONS = np.array([[0.97, 0.03], [0.05, 0.95]])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, make_tiny: Callable[..., Make]) -> TrainingData:
    return prepare(make_tiny(tmp_path_factory.mktemp("regimes"))())


def market_with(process: DecisionProcess, share: float, seed: int) -> tuple[DecisionProcess, NDArray[np.float64]]:
    """The market with other returns: of the given share, a regime's sign of half of the assets against the others."""
    rng = np.random.default_rng(seed)
    bars, assets = process.listed.shape
    regimes = np.cumsum(rng.random(bars) < 0.03) % 2
    signs = np.where(np.arange(assets) < assets // 2, 1.0, -1.0)
    expected = share * (2.0 * regimes - 1.0)[:, None] * signs
    expected -= expected.mean(axis=1, keepdims=True)
    other = with_growths(process, [])
    other.growth[:, :-1] = np.exp(0.01 * (expected + rng.standard_normal((bars, assets))))
    return other, 0.01 * expected


def test_returns_that_follow_a_regime_are_predicted(data: TrainingData) -> None:
    process = data.learning
    window = process.decision_bars(data.split.train)
    bars = np.arange(window.start, window.stop)
    other, expected = market_with(process, 0.5, seed=3)
    found, wanted = regime_returns(other, bars)[bars + 1], expected[bars + 1]
    assert np.corrcoef(found.ravel(), wanted.ravel())[0, 1] > 0.7  # a regime's first bars cannot be known
    outside = np.ones(len(process.listed), dtype=np.bool_)
    outside[bars + 1] = False
    assert not regime_returns(other, bars)[outside].any()


def test_nothing_is_predicted_where_returns_are_independent(data: TrainingData) -> None:
    """What little a chance find adds is a thousandth of the returns' variance in the mean of ten markets."""
    process = data.learning
    window = process.decision_bars(data.split.train)
    bars = np.arange(window.start, window.stop)
    shares = []
    for seed in range(10):
        other, _ = market_with(process, 0.0, seed)
        found = regime_returns(other, bars)[bars + 1]
        shares.append(float((found**2).mean()) / 0.01**2)
    assert np.mean(shares) < 2e-3
    assert np.median(shares) < 5e-4
