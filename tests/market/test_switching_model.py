"""Two regimes of returns: their law is recovered, and probabilities are those of independent implementations."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from statsmodels.tsa.regime_switching.markov_regression import MarkovRegression

from finflow.market.features import regimes as regimes_module
from finflow.market.features.regimes import SwitchingModel, fit_switching, forward, smooth

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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regimes_module, "ITERATIONS", 1)
        return fit_switching(returns, everywhere(len(returns)))


def test_the_filter_at_a_bar_is_the_same_whatever_comes_after_it() -> None:
    _, returns = draw(700, seed=2)
    model = fit_switching(returns, everywhere(len(returns)))
    later = returns.copy()
    later[100:] *= -2.0
    before, after = (model.filtered(one, everywhere(len(one))) for one in (returns, later))
    assert np.array_equal(before[:100], after[:100])
    assert not np.allclose(before[100:], after[100:])


def test_where_no_regime_can_have_given_a_return_nothing_is_known_and_nothing_fails() -> None:
    """The first regime is never left, and the second alone explains the bar: its density over the first's is beyond a
    number."""
    densities, stays = np.array([[0.0, 0.0], [-800.0, 0.0]]), np.array([[1.0, 0.0], [0.02, 0.98]])
    found, _ = forward(densities, stays, np.array([1.0, 0.0]))
    assert np.array_equal(found, [[1.0, 0.0], [np.nan, np.nan]], equal_nan=True)
