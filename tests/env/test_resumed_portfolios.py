"""Portfolios that are taken up again where they were observed: the same weights and state of the reward are seen."""

from __future__ import annotations

import numpy as np
import pytest

from finflow.config import ObjectivesConfig
from finflow.env.decision_process import resumed_state
from finflow.env.objective import Moments, Objective
from tests.env.conftest import MOMENTS, build_process, random_prices


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_a_resumed_portfolio_is_observed_as_it_was(lag: int) -> None:
    """After some decisions; at lag 0 the weights have drifted since, which is taken back to one part in 1e12."""
    process = build_process(random_prices(), execution_lag=lag)
    rng = np.random.default_rng(0)
    bars = np.arange(5, 25)
    state = process.start(bars, rng.dirichlet(np.ones(5), 20))
    for _ in range(6):
        state = process.step(state, rng.dirichlet(np.ones(5), 20)).state
    observed = process.observed_portfolio(state)
    resumed = resumed_state(process, state.bar, observed)
    np.testing.assert_allclose(process.observed_portfolio(resumed), observed, atol=1e-10)
    np.testing.assert_allclose(resumed.weights, state.weights, atol=1e-12)
    assert (resumed.wealth == process.env.initial_capital).all()
    fresh = resumed_state(process, state.bar, process.observed_portfolio(process.start(state.bar)))
    assert np.abs(process.observed_portfolio(fresh) - observed).max() > 0.1  # nothing above holds for any portfolio


@pytest.mark.parametrize("lag", [0, 1])
def test_the_same_action_after_a_resume_has_the_same_outcome(lag: int) -> None:
    """Rewards of the log return and the next weights, to rounding; costs that depend on wealth are not among them."""
    process = build_process(random_prices(), execution_lag=lag, objectives={"sharpe_beta": 0.0})
    rng = np.random.default_rng(1)
    state = process.start(np.arange(5, 25), rng.dirichlet(np.ones(5), 20))
    for _ in range(3):
        state = process.step(state, rng.dirichlet(np.ones(5), 20)).state
    action = rng.dirichlet(np.ones(5), 20)
    again = process.step(resumed_state(process, state.bar, process.observed_portfolio(state)), action)
    step = process.step(state, action)
    np.testing.assert_allclose(again.components[:, 0], step.components[:, 0], atol=1e-12)
    np.testing.assert_allclose(again.state.weights, step.state.weights, atol=1e-12)


def test_assets_that_are_not_listed_are_not_taken_up() -> None:
    """A stored portfolio of a bar before an asset has a price holds none of it, and the rest sums to one."""
    prices = random_prices()
    prices[:30, 1] = np.nan
    process = build_process(prices)
    observed = process.observed_portfolio(process.start(np.array([20])))
    observed[:, :5] = 0.2
    weights = resumed_state(process, np.array([20]), observed).weights
    assert weights[0, 1] == 0.0
    assert weights.sum() == pytest.approx(1.0)


def test_what_is_observed_of_the_reward_s_state_is_recalled() -> None:
    """The inverse in both orders, to one part in 1e12 of the observation."""
    objective = Objective(ObjectivesConfig(), Moments(MOMENTS.first, MOMENTS.second))
    rng = np.random.default_rng(2)
    state = np.stack([rng.normal(4e-4, 1e-3, 50), rng.uniform(1e-5, 4e-4, 50), -rng.exponential(0.1, 50)], axis=1)
    observed = objective.observe(state)
    np.testing.assert_allclose(objective.recall(observed), state, atol=1e-14)
    np.testing.assert_allclose(objective.observe(objective.recall(observed)), observed, rtol=1e-10, atol=1e-10)
    assert np.abs(observed - state).max() > 1.0  # another unit
