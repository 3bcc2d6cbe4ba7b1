"""One decision: what it may know, when it fills, what it costs and what it earns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from finflow.env.decision_process import DecisionProcess
from finflow.env.market_growth import equal_weight_log_returns, equal_weight_moments
from finflow.env.portfolio_state import PortfolioState, join_states
from finflow.errors import ConfigError
from tests.env.conftest import build_featured_process as featured_process_of
from tests.env.conftest import build_process as process_of
from tests.env.conftest import random_prices as prices

FloatArray = NDArray[np.float64]

LAGS = pytest.mark.parametrize("lag", [0, 1, 2])


def weights_of(process: DecisionProcess, state: PortfolioState) -> FloatArray:
    """The weights that are observed."""
    observed: FloatArray = process.observed_portfolio(state)[:, : process.n_weights]
    return observed


def random_targets(process: DecisionProcess, count: int, batch: int = 1, seed: int = 1) -> FloatArray:
    return np.random.default_rng(seed).dirichlet(np.full(process.n_weights, 0.5), size=(count, batch))


def play(process: DecisionProcess, targets: FloatArray, bar: int) -> PortfolioState:
    """The state after some decisions from cash."""
    state = process.start(np.full(targets.shape[1], bar))
    for target in targets:
        state = process.step(state, target).state
    return state


@LAGS
@pytest.mark.parametrize("limits", [{}, {"no_trade_band": 0.05}, {"max_turnover": 0.1}])
@settings(max_examples=8)
@given(seed=st.integers(0, 2**32 - 1))
def test_naming_the_observed_portfolio_trades_exactly_nothing(lag: int, limits: dict[str, float], seed: int) -> None:
    process = process_of(prices(seed=seed, deviation=0.05), execution_lag=lag, cash_rate=1e-4, **limits)
    state = process.start(np.array([3, 9]), random_targets(process, 1, 2, seed)[0])
    for _ in range(20):
        outcome = process.step(state, weights_of(process, state))
        assert (outcome.turnover == 0.0).all()
        assert (outcome.cost == 0.0).all()
        state = outcome.state


@LAGS
def test_what_is_not_listed_is_not_bought(lag: int) -> None:
    close = prices()
    close[:30, 2] = np.nan
    process = process_of(close, execution_lag=lag)
    outcome = process.step(process.start(np.array([10])), np.array([[0.1, 0.2, 0.5, 0.1, 0.1]]))
    assert outcome.filled[0, 2] == 0.0
    assert outcome.turnover[0] == pytest.approx(0.8, abs=0.02)  # spread over the others, drifted by a day


def test_an_account_cannot_begin_with_what_is_not_listed() -> None:
    close = prices()
    close[:30, 2] = np.nan
    state = process_of(close).start(np.array([10]), np.array([[0.1, 0.2, 0.5, 0.1, 0.1]]))
    np.testing.assert_allclose(state.weights, [[0.2, 0.4, 0.0, 0.2, 0.2]], rtol=0, atol=1e-15)


@LAGS
def test_equal_weight_pays_for_rebalancing_every_day(lag: int) -> None:
    process = process_of(prices(), execution_lag=lag)
    state, equal = process.start(np.array([5])), np.array([[0.25, 0.25, 0.25, 0.25, 0.0]])
    state = process.step(state, equal).state
    for _ in range(40):
        outcome = process.step(state, equal)
        assert outcome.turnover[0] > 0.0
        assert outcome.cost[0] > 0.0
        state = outcome.state


@LAGS
def test_buy_and_hold_pays_once_and_then_nothing(lag: int) -> None:
    """Bought for the value of what is left: 1 / (1 + 0.0015) of the money."""
    close = prices()
    process = process_of(close, execution_lag=lag)
    outcome = process.step(process.start(np.array([5])), np.array([[0.25, 0.25, 0.25, 0.25, 0.0]]))
    assert outcome.cost[0] == pytest.approx(0.0015 / 1.0015, abs=1e-15)
    bought = outcome.filled[0, :-1] * 1e6 / 1.0015 / close[5]
    for bar in range(6, 50):
        outcome = process.step(outcome.state, weights_of(process, outcome.state))
        assert outcome.cost[0] == 0.0
        assert outcome.state.wealth[0] == pytest.approx(bought @ close[bar + 1], rel=1e-12)


@pytest.mark.parametrize(("lag", "stated"), [(0, 10), (1, 9), (2, 9)])
def test_a_target_is_stated_at_the_prices_of_the_observed_portfolio(lag: int, stated: int) -> None:
    """Half the money in A at those prices is a number of shares, which moves on to the fill at bar 10."""
    close = prices(deviation=0.1)
    process = process_of(close, execution_lag=lag, commission_bps=0.0, slippage_bps=0.0)
    outcome = process.step(process.start(np.array([10])), np.array([[0.5, 0.0, 0.0, 0.0, 0.5]]))
    value = 0.5 * close[10, 0] / close[stated, 0]
    assert outcome.filled[0, 0] == pytest.approx(value / (value + 0.5), abs=1e-15)


def test_the_reward_is_earned_between_the_fill_and_the_next_bar() -> None:
    close = prices(deviation=0.1)
    process = process_of(close, commission_bps=0.0, slippage_bps=0.0)
    all_in = np.array([[1.0, 0.0, 0.0, 0.0, 0.0]])
    outcome = process.step(process.start(np.array([10])), all_in)
    assert outcome.simple_return[0] == pytest.approx(close[11, 0] / close[10, 0] - 1.0, abs=1e-14)
    assert outcome.components[0, 0] == pytest.approx(np.log(close[11, 0] / close[10, 0]), abs=1e-14)


def test_fills_at_the_open_are_refused_where_they_are_impossible() -> None:
    with pytest.raises(ConfigError, match="no opening prices"):
        process_of(prices(), fill="open")
    with pytest.raises(ConfigError, match="execution_lag is 0"):
        process_of(prices(), fill="open", execution_lag=0)


BARS, TRAIN_END, NOW = 420, 330, 380


def shocked(close: FloatArray, known: int) -> FloatArray:
    """Other prices on every bar after ``known``."""
    changed = close.copy()
    changed[known + 1 :] *= np.random.default_rng(9).uniform(0.5, 2.0, size=changed[known + 1 :].shape)
    return changed


@pytest.mark.parametrize(("lag", "portfolio_lag"), [(0, 0), (1, 1), (2, 1)])
def test_a_decision_sees_nothing_after_its_information_set(lag: int, portfolio_lag: int) -> None:
    """Every price after bar t - lag is another: the observation at decision t stays, its outcome does not.

    At lag 2 this holds for the market; the account itself is known up to bar t - 1, as at lag 1.
    """
    close = prices(bars=BARS)
    process = featured_process_of(close, TRAIN_END, execution_lag=lag)
    targets = random_targets(process, 20)
    state = play(process, targets, NOW - 20)
    seen = process.observe(state)
    for delay, names in ((lag, ("assets", "market")), (portfolio_lag, ("portfolio",))):
        other = featured_process_of(shocked(close, NOW - delay), TRAIN_END, execution_lag=lag)
        changed = play(other, targets, NOW - 20)
        older = featured_process_of(shocked(close, NOW - delay - 1), TRAIN_END, execution_lag=lag)
        moved = older.observe(play(older, targets, NOW - 20))
        for name in names:
            np.testing.assert_array_equal(other.observe(changed)[name], seen[name])
            assert not np.array_equal(moved[name], seen[name])  # and it is not older than it need be
        target = targets[0]
        assert other.step(changed, target).reward[0] != process.step(state, target).reward[0]


@LAGS
def test_the_reward_state_that_is_seen_holds_only_returns_that_were_known(lag: int) -> None:
    """At decision t: the moments through bar t at lag 0, through bar t - 1 otherwise."""
    process = process_of(prices(), execution_lag=lag)
    eta, moments = 1 / 252, process.objective.moments
    state = process.start(np.array([5]))
    returns, first = [], [moments.first]
    for target in random_targets(process, 10):
        outcome = process.step(state, target)
        state = outcome.state
        returns.append(outcome.components[0, 0])
        first.append(first[-1] + eta * (returns[-1] - first[-1]))
    seen = process.observed_portfolio(state)[0, process.n_weights]
    expected = first[-1] if lag == 0 else first[-2]
    assert seen == pytest.approx((expected - moments.first) / (0.1 * moments.deviation), abs=1e-12)


def test_what_is_fitted_is_fitted_on_the_training_window_alone() -> None:
    """Other prices after the training window: scales and moments stay, seen in the bars before the change."""
    close = prices(bars=BARS)
    one = featured_process_of(close, TRAIN_END)
    other = featured_process_of(shocked(close, TRAIN_END - 1), TRAIN_END)
    np.testing.assert_array_equal(other.asset_features[:TRAIN_END], one.asset_features[:TRAIN_END])
    np.testing.assert_array_equal(other.market_features[:TRAIN_END], one.market_features[:TRAIN_END])
    assert other.objective.moments == one.objective.moments
    assert not np.array_equal(other.asset_features[TRAIN_END:], one.asset_features[TRAIN_END:])


def test_the_moments_are_those_of_equal_weight() -> None:
    close = prices()
    close[:20, 1] = np.nan
    panel = process_of(close).panel
    moments = equal_weight_moments(panel, "close", range(30, 50))
    returns = np.log((close[30:50] / close[29:49]).mean(axis=1))
    assert moments.first == pytest.approx(returns.mean(), abs=1e-15)
    assert moments.second == pytest.approx((returns**2).mean(), abs=1e-15)
    assert moments.deviation == pytest.approx(returns.std(), abs=1e-12)
    early = equal_weight_moments(panel, "close", range(2, 19))  # only what is listed
    others = np.delete(close, 1, axis=1)
    assert early.first == pytest.approx(np.log((others[2:19] / others[1:18]).mean(axis=1)).mean(), abs=1e-15)


@LAGS
def test_decisions_lie_inside_their_window_with_a_bar_of_growth_after_them(lag: int) -> None:
    process = process_of(prices(), execution_lag=lag)
    assert process.decision_bars(range(0, 60)) == range(max(lag, 1), 59)
    assert process.decision_bars(range(20, 40)) == range(20, 39)
    assert process.decision_bars(range(20, 999)) == range(20, 59)
    observation = process.observe(process.start(np.array([20])))
    assert observation["market"][0, 0] == 20 - lag
    assert observation["assets"][0, 0].tolist() == [20 - lag, 20 - lag, 1.0]


@LAGS
def test_cash_that_earns_is_no_skill(lag: int) -> None:
    """All in cash at a rate: the return counts, its Sharpe ratio does not, and the moments of the excess shrink."""
    process = process_of(prices(), cash_rate=2e-4, execution_lag=lag)
    state = process.start(np.array([5]))
    cash = np.eye(process.n_weights)[-1:]
    before = state.objective[0].copy()
    outcome = process.step(state, cash)
    assert outcome.components[0, 0] == pytest.approx(np.log1p(2e-4), abs=1e-15)
    eta = 1 / 252
    np.testing.assert_allclose(outcome.state.objective[0, :2], (1 - eta) * before[:2], rtol=1e-9)


def test_the_moments_are_in_excess_of_cash() -> None:
    close = prices()
    paid, free = (process_of(close, cash_rate=rate).panel for rate in (2e-4, 0.0))
    first, other = (equal_weight_moments(panel, "close", range(30, 50)).first for panel in (paid, free))
    assert first == pytest.approx(other - np.log1p(2e-4), abs=1e-15)


def test_equal_weight_of_a_single_listed_asset_is_that_asset() -> None:
    close = prices()
    close[:20, 1:] = np.nan
    panel = process_of(close).panel
    found = equal_weight_log_returns(panel, "close")
    np.testing.assert_allclose(found[1:20], np.diff(np.log(close[:20, 0])), rtol=1e-10)  # of returns of two percent
    assert found[0] == 0.0


def test_portfolios_of_one_state_joined_are_those_of_the_state() -> None:
    state = process_of(prices(80, 5)).start(np.array([30, 31]))
    for count in (1, 2):
        joined = join_states([state] * count)
        for name, value in vars(state).items():
            np.testing.assert_array_equal(getattr(joined, name), np.concatenate([value] * count))


def test_an_asset_that_the_first_decision_does_not_know_yet_is_not_held() -> None:
    """Listed at bar 20: a decision that fills at bar 21 with a lag of two saw the market up to bar 19."""
    close = prices()
    close[:20, 0] = np.nan
    process = process_of(close, execution_lag=2)
    assert process.known_listed(np.array([21, 22]))[:, 0].tolist() == [False, True]
    wanted = np.tile([1.0, 0.0, 0.0, 0.0, 0.0], (2, 1))
    assert process.start(np.array([21, 22]), wanted).weights[:, 0].tolist() == [0.0, 1.0]
