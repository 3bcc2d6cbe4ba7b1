"""The reward is what its formulas say, and at the default weights no penalty drowns the return."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from finflow.config import ObjectivesConfig, load_config
from finflow.env.objective import COMPONENTS, Moments, Objective
from finflow.market.bar_frequency import BARS_PER_YEAR
from finflow.training.data.training_data import prepare

MOMENTS = Moments(5e-4, 1.5e-4)
returns = st.floats(-0.3, 0.3)


def objective(**weights: float) -> Objective:
    return Objective(ObjectivesConfig(**weights), MOMENTS)


def one_step(goal: Objective, state: list[float], log_return: float, turnover: float = 0.0) -> dict[str, float]:
    components, _ = goal.step(np.array([state]), np.array([log_return]), np.array([turnover]))
    return dict(zip(COMPONENTS, components[0], strict=True))


def moving_sharpe(eta: float, first: float, second: float, value: float) -> float:
    """The Sharpe ratio of exponential moving averages, one step on at the rate eta."""
    first, second = first + eta * (value - first), second + eta * (value**2 - second)
    return first / math.sqrt(second - first**2)


@given(value=returns, first=st.floats(-0.01, 0.01), deviation=st.floats(0.004, 0.05))
def test_the_differential_sharpe_ratio_is_the_derivative_of_the_moving_one(
    value: float, first: float, deviation: float
) -> None:
    """Moody and Saffell: D_t = dS_t / d eta at eta = 0, against a central difference of its definition."""
    second, beta, eta, step = first**2 + deviation**2, 2.0, 1 / 252, 1e-7
    found = one_step(objective(sharpe_beta=beta), [first, second, 0.0], value)["sharpe"]
    ahead, behind = moving_sharpe(step, first, second, value), moving_sharpe(-step, first, second, value)
    derivative = (ahead - behind) / (2 * step)
    # (return / deviation)^4 step^2 is left out by the difference, up to 5e-6; rounding adds 1e-16 / step
    assert found == pytest.approx(beta * eta * derivative, rel=1e-4, abs=1e-9)


def test_a_long_time_in_cash_does_not_make_the_first_risky_day_everything() -> None:
    """Without a floor the moving deviation shrinks to nothing, and one day of 1 % would be worth years of returns."""
    goal = objective()
    state = goal.initial(np.zeros((1, 3)))
    for _ in range(5000):
        _, state = goal.step(state, np.zeros(1), np.zeros(1))
    assert abs(one_step(goal, list(state[0]), 0.01)["sharpe"]) < 0.05


def test_the_moments_move_at_the_rate_eta_and_start_from_equal_weights() -> None:
    goal = objective(sharpe_eta=0.1)
    start = goal.initial(np.zeros((2, 5)))
    np.testing.assert_array_equal(start, [[5e-4, 1.5e-4, 0.0]] * 2)
    _, after = goal.step(start, np.array([0.02, -0.01]), np.zeros(2))
    np.testing.assert_allclose(after[:, 0], [0.9 * 5e-4 + 0.1 * 0.02, 0.9 * 5e-4 - 0.1 * 0.01], rtol=1e-14)
    np.testing.assert_allclose(after[:, 1], [0.9 * 1.5e-4 + 0.1 * 4e-4, 0.9 * 1.5e-4 + 0.1 * 1e-4], rtol=1e-14)


@given(value=returns, below=st.floats(-1.0, 0.0), turnover=st.floats(0.0, 1.0))
def test_each_component_is_its_formula(value: float, below: float, turnover: float) -> None:
    goal = objective(lambda_turn=0.3, lambda_cvar=4.0, cvar_alpha=0.1, cvar_target=-0.015, lambda_dd=2.0)
    found = one_step(goal, [5e-4, 1.5e-4, below], value, turnover)
    assert found["log_return"] == value
    assert found["turnover"] == pytest.approx(-0.3 * 0.01 * turnover, abs=1e-15)
    assert found["cvar"] == pytest.approx(-4.0 * 0.005 / 0.1 * max(0.0, -value - 0.015), abs=1e-15)
    drawdown_before, drawdown_after = 1.0 - math.exp(below), 1.0 - math.exp(min(below + value, 0.0))
    increase = max(0.0, drawdown_after - drawdown_before)
    assert found["drawdown"] == pytest.approx(-2.0 * 0.1 * increase, abs=1e-15)


def test_only_a_deeper_drawdown_is_penalised_and_each_part_of_it_once() -> None:
    """100, 90, 95, 80, 130, 117: drawdowns 0, 10, 5, 20, 0, 10 %; increases 10 + 15 + 10 points."""
    goal, wealth = objective(lambda_dd=1.0), np.array([100.0, 90.0, 95.0, 80.0, 130.0, 117.0])
    state, total = goal.initial(np.zeros((1, 3))), 0.0
    for value in np.diff(np.log(wealth)):
        components, state = goal.step(state, np.array([value]), np.zeros(1))
        total += components[0, COMPONENTS.index("drawdown")]
    assert total == pytest.approx(-0.1 * 0.35, abs=1e-15)


def test_the_observed_state_is_in_units_of_a_network() -> None:
    goal = objective()
    start = goal.initial(np.zeros((1, 3)))
    np.testing.assert_allclose(goal.observe(start), [[0.0, 0.0, 0.0]], rtol=0, atol=1e-15)
    deviation = math.sqrt(1.5e-4 - 25e-8)
    state = np.array([[5e-4 + 0.2 * deviation, 3e-4, -0.1]])
    np.testing.assert_allclose(goal.observe(state), [[2.0, 1.0, -1.0]], rtol=0, atol=1e-12)


def test_at_the_default_weights_no_penalty_outweighs_the_return_of_equal_weight() -> None:
    """On the embedded prices' training window, net of costs, restored every day, in episodes of a year.

    lambda_dd is 0 by default and tried at 1.
    """
    data = prepare(load_config(None, {"objectives.lambda_dd": 1.0}, environ={}))
    process, bars = data.process, data.process.decision_bars(data.split.train)
    years = np.arange(bars.start, bars.stop - BARS_PER_YEAR, BARS_PER_YEAR)
    equal = np.tile(np.append(np.full(process.n_weights - 1, 1.0 / (process.n_weights - 1)), 0.0), (len(years), 1))
    state, rows = process.start(years, equal), []
    for _ in range(BARS_PER_YEAR):
        outcome = process.step(state, equal)
        state = outcome.state
        rows.append(outcome.components.mean(axis=0))
    mean = dict(zip(COMPONENTS, np.mean(rows, axis=0), strict=True))
    assert max(mean["turnover"], mean["cvar"], mean["drawdown"]) < 0.0
    assert max(abs(mean[name]) for name in COMPONENTS[1:]) < mean["log_return"]
    assert mean["log_return"] + mean["turnover"] + mean["cvar"] > 0.0
