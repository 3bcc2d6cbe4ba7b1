"""Crisis score and regimes find the hidden states of a market, with the probabilities of independent implementations.

That neither knows anything of later bars is tested with the other features.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from scipy import stats
from statsmodels.tsa.regime_switching.markov_regression import MarkovRegression

from finflow.arrays import FloatArray, IntArray
from finflow.market.features.market_features import TwoStates, crisis, fit_states
from finflow.market.features.regimes import (
    SwitchingModel,
    fit_regimes,
    fit_switching,
    forward,
    forward_backward,
    regime,
)
from finflow.market.features.rolling_windows import PanelView
from tests.env.conftest import panel_of

TRUTH = TwoStates(np.array([0.0006, -0.0015]), np.array([0.007, 0.02]) ** 2, np.array([0.985, 0.95]))
MEANS = np.array([[0.5, -0.3], [-0.5, 0.6]])
COVARIANCES = np.array([[[1.0, 0.3], [0.3, 0.5]], [[0.6, -0.2], [-0.2, 2.0]]])
TRANSITIONS = np.array([[0.97, 0.03], [0.05, 0.95]])
FIT = 3000


def states_of(rng: np.random.Generator, bars: int, stay: Any) -> IntArray:
    """A path of two states, each with its chance to last another bar."""
    states = np.zeros(bars, dtype=np.int64)
    for bar in range(1, bars):
        stays = rng.random() < stay[states[bar - 1]]
        states[bar] = states[bar - 1] if stays else 1 - states[bar - 1]
    return states


def switching(seed: int, bars: int = 6000) -> tuple[FloatArray, IntArray]:
    """Log returns of one asset, and the states."""
    rng = np.random.default_rng(seed)
    states = states_of(rng, bars, TRUTH.stay)
    return TRUTH.means[states] + np.sqrt(TRUTH.variances)[states] * rng.standard_normal(bars), states


def leaders(bars: int = 4000, spread: float = 1.0) -> tuple[FloatArray, IntArray]:
    """Four assets: the first leads in one state and the last in the other; their mean is the same in both."""
    rng = np.random.default_rng(0)
    states = states_of(rng, bars, (0.97, 0.97))
    lead = np.array([0.006, 0.002, -0.002, -0.006])
    means = np.where(states[:, None] == 0, lead, lead[::-1])
    return means + np.where(states[:, None] == 0, 1.0, spread) * 0.01 * rng.standard_normal((bars, 4)), states


def view_of(returns: FloatArray) -> PanelView:
    return PanelView(panel_of(50.0 * np.exp(np.cumsum(returns, axis=0))))


def score_of(view: PanelView, fit_until: int) -> FloatArray:
    """The crisis probability, fitted on the bars before `fit_until`."""
    return crisis(view.market[:, 0], fit_states(view.market[:fit_until, 0]))


def agreement(probability: FloatArray, states: IntArray) -> float:
    """Share of bars whose likelier regime is the true one, whatever the numbers of the regimes."""
    right = float(((probability > 0.5) == (states == 1)).mean())
    return max(right, 1.0 - right)


def reference(returns: FloatArray, states: TwoStates) -> tuple[FloatArray, float]:
    """Bayes' rule as in Hamilton (1994), chapter 22, in matrices; probabilities and the log likelihood."""
    transition = np.array([[states.stay[0], 1 - states.stay[1]], [1 - states.stay[0], states.stay[1]]])
    belief, rows, evidence = np.array([0.5, 0.5]), [], 0.0
    densities = stats.norm.pdf(returns[:, None], states.means, np.sqrt(states.variances))
    for bar, density in enumerate(densities):
        belief = belief if bar == 0 else transition @ belief
        if np.isfinite(density).all():
            joint = density * belief
            evidence += np.log(joint.sum())
            belief = joint / joint.sum()
        rows.append(belief)
    return np.array(rows), float(evidence)


def test_the_crisis_filter_equals_bayes_rule() -> None:
    returns, _ = switching(0, 1500)
    returns[[0, 700, 701]] = np.nan
    expected, _ = reference(returns, TRUTH)
    result = crisis(returns, TRUTH)
    known = np.isfinite(returns)
    assert np.isnan(result[~known]).all()
    np.testing.assert_allclose(result[known], expected[known, 1], atol=1e-10)


def test_the_fit_of_the_crisis_score_is_the_likeliest() -> None:
    returns, _ = switching(0, 2500)
    fitted = fit_states(returns)
    best = reference(returns, fitted)[1]
    assert best > reference(returns, TRUTH)[1]
    for name in ("means", "variances", "stay"):
        for state, factor in itertools.product(range(2), (0.97, 1.01)):
            moved = np.array(getattr(fitted, name))
            moved[state] = min(moved[state] * factor, 1.0 - 1e-4)
            assert reference(returns, fitted._replace(**{name: moved}))[1] < best + 1e-3
    np.testing.assert_allclose(np.sqrt(fitted.variances), np.sqrt(TRUTH.variances), rtol=0.12)
    np.testing.assert_allclose(fitted.stay, TRUTH.stay, atol=0.03)


def test_the_crisis_score_finds_the_states_of_bars_that_it_was_not_fitted_to() -> None:
    returns, states = switching(1)
    view = view_of(np.stack([returns, returns], axis=1))
    assert agreement(score_of(view, FIT)[FIT:], states[FIT:]) > 0.9


@pytest.mark.parametrize(
    "returns",
    [
        np.zeros(400),
        np.random.default_rng(0).standard_normal(400) * 0.01,
        np.where(np.arange(400) == 200, -4.6, 0.001),
        np.concatenate([np.full(399, np.nan), [0.01]]),
        np.full(400, np.nan),
    ],
    ids=["still", "one state", "a crash of 99 %", "one return", "none"],
)
def test_markets_without_two_states_give_probabilities(returns: FloatArray) -> None:
    fitted = fit_states(returns)
    assert all(np.isfinite(part).all() for part in fitted)
    score = crisis(returns, fitted)[np.isfinite(returns)]
    assert ((score >= 0.0) & (score <= 1.0)).all()


@pytest.fixture(scope="module")
def fitted() -> tuple[FloatArray, SwitchingModel]:
    """Returns of two regimes, and the model fitted to them."""
    rng = np.random.default_rng(0)
    regimes = states_of(rng, 20_000, TRANSITIONS.diagonal())
    noise = rng.standard_normal((20_000, 2))
    returns = MEANS[regimes] + np.einsum("tij,tj->ti", np.linalg.cholesky(COVARIANCES)[regimes], noise)
    return returns, fit_switching(returns, np.ones(20_000, dtype=np.bool_))


def test_the_law_of_two_regimes_is_recovered(fitted: tuple[FloatArray, SwitchingModel]) -> None:
    """Tolerances of three standard errors: some 7,500 and 12,500 bars of returns of unit size."""
    model = fitted[1]
    order = np.argsort(-model.means[:, 0])
    assert np.abs(model.means[order] - MEANS).max() < 0.07
    assert np.abs(model.covariances[order] - COVARIANCES).max() < 0.15
    assert np.abs(model.transitions[np.ix_(order, order)] - TRANSITIONS).max() < 0.01


def test_probabilities_are_those_of_an_independent_implementation(fitted: tuple[FloatArray, SwitchingModel]) -> None:
    """Statsmodels' filter and smoother in one dimension, which begin from the stationary distribution."""
    returns, known = np.ascontiguousarray(fitted[0][:2000, :1]), np.ones(2000, dtype=np.bool_)
    model = fit_switching(returns, known)
    theirs = MarkovRegression(returns[:, 0], k_regimes=2, switching_variance=True)
    parameters = [*model.transitions[:, 0], *model.means[:, 0], *model.covariances[:, 0, 0]]
    found = theirs.smooth(np.array(parameters))
    leaving = model.transitions[[1, 0], [0, 1]]
    first = leaving / leaving.sum()
    densities = model.log_densities(returns, known)
    probabilities, likelihood = forward(densities, model.transitions, first)
    assert np.abs(probabilities - found.filtered_marginal_probabilities).max() < 1e-9
    assert likelihood - 0.5 * 2000 * np.log(2.0 * np.pi) == pytest.approx(found.llf, abs=1e-6)
    smoothed, pairs, _ = forward_backward(densities, model.transitions, first)
    assert np.abs(smoothed - found.smoothed_marginal_probabilities).max() < 1e-9
    theirs_pairs = found.smoothed_joint_probabilities[:, :, 1:].sum(axis=2)  # [to, from]
    assert np.abs(pairs - theirs_pairs.T).max() < 1e-6


def test_where_no_regime_can_have_given_a_return_nothing_is_known_and_nothing_fails() -> None:
    """The first regime is never left, and the second alone explains the bar: its density over the first's is beyond a
    number."""
    densities, stays = np.array([[0.0, 0.0], [-800.0, 0.0]]), np.array([[1.0, 0.0], [0.02, 0.98]])
    found, _ = forward(densities, stays, np.array([1.0, 0.0]))
    assert np.array_equal(found, [[1.0, 0.0], [np.nan, np.nan]], equal_nan=True)


def test_regimes_see_who_leads_where_the_mean_says_nothing() -> None:
    returns, states = leaders()
    view = view_of(returns)
    found = regime(view, fit_regimes(view, FIT))
    assert agreement(found[FIT:], states[FIT:]) > 0.9  # bars that it was not fitted to
    assert agreement(score_of(view, FIT)[FIT:], states[FIT:]) < 0.65


@pytest.mark.parametrize("columns", [[0, 1, 2, 3], [3, 2, 1, 0]])
def test_the_second_regime_is_the_one_that_spreads_more(columns: list[int]) -> None:
    returns, states = leaders(spread=2.0)
    view = view_of(returns[:, columns])
    assert ((regime(view, fit_regimes(view, FIT)) > 0.5) == (states == 1)).mean() > 0.95


def test_assets_that_list_late_or_end_leave_the_regime_to_the_others() -> None:
    returns, states = leaders(spread=2.0)
    close = 50.0 * np.exp(np.cumsum(returns, axis=0))
    close[:500, 1] = close[3500:, 2] = np.nan
    view = PanelView(panel_of(close))
    assert agreement(regime(view, fit_regimes(view, FIT))[FIT:], states[FIT:]) > 0.9


def test_with_few_bars_the_regime_is_constant() -> None:
    view = view_of(leaders(bars=800)[0])
    assert fit_regimes(view, 200) is None
    np.testing.assert_array_equal(regime(view, None), 0.5)
