"""Regimes of a market: found where there are some, no prediction where there are none, and nothing foreseen."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from statsmodels.tsa.regime_switching.markov_regression import MarkovRegression

from finflow.config import Config
from finflow.env.decision_process import DecisionProcess
from finflow.env.joined_markets import with_growths
from finflow.training.data.regime_prediction import SwitchingModel, fit_switching, forward, regime_returns, smooth
from finflow.training.data.training_data import TrainingData, prepare

Make = Callable[..., Config]
MEANS = np.array([[0.5, -0.3], [-0.5, 0.6]])
COVARIANCES = np.array([[[1.0, 0.3], [0.3, 0.5]], [[0.6, -0.2], [-0.2, 2.0]]])
TRANSITIONS = np.array([[0.97, 0.03], [0.05, 0.95]])


def draw(bars: int, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Regimes and returns of a market with two."""
    rng = np.random.default_rng(seed)
    regimes = np.zeros(bars, dtype=np.int64)
    for t in range(1, bars):
        regimes[t] = rng.choice(2, p=TRANSITIONS[regimes[t - 1]])
    noise = rng.standard_normal((bars, 2))
    return regimes, MEANS[regimes] + np.einsum("tij,tj->ti", np.linalg.cholesky(COVARIANCES)[regimes], noise)


def everywhere(bars: int) -> NDArray[np.bool_]:
    return np.ones(bars, dtype=np.bool_)


@pytest.fixture(scope="module")
def fitted() -> tuple[NDArray[np.int64], NDArray[np.float64], SwitchingModel]:
    regimes, returns = draw(20_000)
    return regimes, returns, fit_switching(returns, everywhere(len(returns)))


def test_the_law_of_two_regimes_is_recovered(fitted: tuple[Any, Any, SwitchingModel]) -> None:
    """Tolerances of three standard errors: some 7,500 and 12,500 bars of returns of unit size."""
    model = fitted[2]
    order = np.argsort(-model.means[:, 0])
    assert np.abs(model.means[order] - MEANS).max() < 0.07
    assert np.abs(model.covariances[order] - COVARIANCES).max() < 0.15
    assert np.abs(model.transitions[np.ix_(order, order)] - TRANSITIONS).max() < 0.01


def test_probabilities_are_those_of_an_independent_implementation(fitted: tuple[Any, Any, SwitchingModel]) -> None:
    """Statsmodels' filter and smoother in one dimension, which begin from the stationary distribution."""
    returns, known = np.ascontiguousarray(fitted[1][:2000, :1]), everywhere(2000)
    model = fit_switching(returns, known)
    theirs = MarkovRegression(returns[:, 0], k_regimes=2, switching_variance=True)
    parameters = [*model.transitions[:, 0], *model.means[:, 0], *model.covariances[:, 0, 0]]
    found = theirs.smooth(np.array(parameters))
    leaving = model.transitions[[1, 0], [0, 1]]
    first = leaving / leaving.sum()
    densities = model.log_densities(returns, known)
    filtered, likelihood = forward(densities, model.transitions, first)
    assert np.abs(filtered - found.filtered_marginal_probabilities).max() < 1e-9
    assert likelihood - 0.5 * 2000 * np.log(2.0 * np.pi) == pytest.approx(found.llf, abs=1e-6)
    smoothed, pairs, _ = smooth(densities, model.transitions, first)
    assert np.abs(smoothed - found.smoothed_marginal_probabilities).max() < 1e-9
    theirs_pairs = found.smoothed_joint_probabilities[:, :, 1:].sum(axis=2)  # [to, from]
    assert np.abs(pairs - theirs_pairs.T).max() < 1e-6


def test_the_likelihood_is_that_of_all_paths_and_no_step_lowers_it() -> None:
    """Summed over the 2^10 paths of ten bars."""
    _, returns = draw(300, seed=1)
    model = fit_switching(returns, everywhere(300))
    few = returns[:10]
    densities = np.stack(
        [stats.multivariate_normal(m, c).pdf(few) for m, c in zip(model.means, model.covariances, strict=True)], axis=1
    )
    total = np.zeros(2)
    for path in range(2**10):
        states = [path >> t & 1 for t in range(10)]
        moves = np.prod([model.transitions[a, b] for a, b in itertools.pairwise(states)])
        total[states[-1]] += 0.5 * moves * np.prod([densities[t, s] for t, s in enumerate(states)])
    assert model.filtered(few, everywhere(10))[-1] == pytest.approx(total / total.sum(), abs=1e-12)
    assert model.log_likelihood > fit_once(returns).log_likelihood


def fit_once(returns: NDArray[np.float64]) -> SwitchingModel:
    """After a single step."""
    from finflow.training.data import regime_prediction

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regime_prediction, "ITERATIONS", 1)
        return fit_switching(returns, everywhere(len(returns)))


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
    process = data.learning.process
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
    process = data.learning.process
    window = process.decision_bars(data.split.train)
    bars = np.arange(window.start, window.stop)
    shares = []
    for seed in range(10):
        other, _ = market_with(process, 0.0, seed)
        found = regime_returns(other, bars)[bars + 1]
        shares.append(float((found**2).mean()) / 0.01**2)
    assert np.mean(shares) < 2e-3
    assert np.median(shares) < 5e-4


def test_a_prediction_knows_no_later_return_than_its_decision(data: TrainingData) -> None:
    """With the parameters as they are: the filter at a bar is the same whatever comes after it."""
    process = data.learning.process
    _, returns = draw(len(process.listed), seed=2)
    model = fit_switching(returns, everywhere(len(returns)))
    later = returns.copy()
    later[100:] *= -2.0
    before, after = (model.filtered(one, everywhere(len(one))) for one in (returns, later))
    assert np.array_equal(before[:100], after[:100])
    assert not np.allclose(before[100:], after[100:])
