"""One decision: what it may know, when it fills, what it costs and earns, over halts and after a resume."""

from __future__ import annotations

import numpy as np
import pytest

from finflow.arrays import FloatArray
from finflow.env.decision_process import DecisionProcess, resumed_state, with_growths
from finflow.env.market_growth import equal_weight_moments
from finflow.env.portfolio_state import PortfolioState
from finflow.errors import ConfigError
from tests.env.conftest import LAGS, build_featured_process, build_process, random_prices


def random_targets(process: DecisionProcess, count: int) -> FloatArray:
    return np.random.default_rng(1).dirichlet(np.full(process.n_weights, 0.5), size=(count, 1))


def play(process: DecisionProcess, targets: FloatArray, bar: int) -> PortfolioState:
    """The state after some decisions from cash."""
    state = process.start(np.full(targets.shape[1], bar))
    for target in targets:
        state = process.step(state, target).state
    return state


@LAGS
def test_buy_and_hold_pays_once_and_then_nothing(lag: int) -> None:
    """Bought for the value of what is left: 1 / (1 + 0.0015) of the money."""
    close = random_prices()
    process = build_process(close, execution_lag=lag)
    outcome = process.step(process.start(np.array([5])), np.array([[0.25, 0.25, 0.25, 0.25, 0.0]]))
    assert outcome.cost[0] == pytest.approx(0.0015 / 1.0015, abs=1e-15)
    bought = outcome.filled[0, :-1] * 1e6 / 1.0015 / close[5]
    for bar in range(6, 50):
        outcome = process.step(outcome.state, process.observed_portfolio(outcome.state)[:, :5])
        assert outcome.cost[0] == 0.0
        assert outcome.state.wealth[0] == pytest.approx(bought @ close[bar + 1], rel=1e-12)


@pytest.mark.parametrize(("lag", "stated"), [(0, 10), (1, 9), (2, 9)])
def test_a_target_is_stated_at_the_prices_of_the_observed_portfolio(lag: int, stated: int) -> None:
    """Half the money in A at those prices is a number of shares, which moves on to the fill at bar 10."""
    close = random_prices(deviation=0.1)
    process = build_process(close, execution_lag=lag, commission_bps=0.0, slippage_bps=0.0)
    outcome = process.step(process.start(np.array([10])), np.array([[0.5, 0.0, 0.0, 0.0, 0.5]]))
    value = 0.5 * close[10, 0] / close[stated, 0]
    assert outcome.filled[0, 0] == pytest.approx(value / (value + 0.5), abs=1e-15)


def test_fills_at_the_open_are_refused_where_they_are_impossible() -> None:
    with pytest.raises(ConfigError, match="no opening prices"):
        build_process(random_prices(), fill="open")
    with pytest.raises(ConfigError, match="execution_lag is 0"):
        build_process(random_prices(), fill="open", execution_lag=0)


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
    close = random_prices(bars=BARS)
    process = build_featured_process(close, TRAIN_END, execution_lag=lag)
    targets = random_targets(process, 20)
    state = play(process, targets, NOW - 20)
    seen = process.observe(state)
    for delay, names in ((lag, ("assets", "market")), (portfolio_lag, ("portfolio",))):
        other = build_featured_process(shocked(close, NOW - delay), TRAIN_END, execution_lag=lag)
        changed = play(other, targets, NOW - 20)
        older = build_featured_process(shocked(close, NOW - delay - 1), TRAIN_END, execution_lag=lag)
        moved = older.observe(play(older, targets, NOW - 20))
        for name in names:
            np.testing.assert_array_equal(other.observe(changed)[name], seen[name])
            assert not np.array_equal(moved[name], seen[name])  # and it is not older than it need be
        target = targets[0]
        assert other.step(changed, target).reward[0] != process.step(state, target).reward[0]


@LAGS
def test_the_reward_state_that_is_seen_holds_only_returns_that_were_known(lag: int) -> None:
    """At decision t: the moments through bar t at lag 0, through bar t - 1 otherwise."""
    process = build_process(random_prices(), execution_lag=lag)
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
    close = random_prices(bars=BARS)
    one = build_featured_process(close, TRAIN_END)
    other = build_featured_process(shocked(close, TRAIN_END - 1), TRAIN_END)
    np.testing.assert_array_equal(other.asset_features[:TRAIN_END], one.asset_features[:TRAIN_END])
    np.testing.assert_array_equal(other.market_features[:TRAIN_END], one.market_features[:TRAIN_END])
    assert other.objective.moments == one.objective.moments
    assert not np.array_equal(other.asset_features[TRAIN_END:], one.asset_features[TRAIN_END:])


def test_the_moments_are_those_of_equal_weight_in_excess_of_cash() -> None:
    close = random_prices()
    close[:20, 1] = np.nan
    panel = build_process(close, cash_rate=2e-4).panel
    moments = equal_weight_moments(panel, "close", range(30, 50))
    returns = np.log((close[30:50] / close[29:49]).mean(axis=1) / 1.0002)
    assert moments.first == pytest.approx(returns.mean(), abs=1e-15)
    assert moments.second == pytest.approx((returns**2).mean(), abs=1e-15)
    assert moments.deviation == pytest.approx(returns.std(), abs=1e-12)
    early = equal_weight_moments(panel, "close", range(2, 19))  # only what is listed
    others = np.delete(close, 1, axis=1)
    assert early.first == pytest.approx(np.log((others[2:19] / others[1:18]).mean(axis=1) / 1.0002).mean(), abs=1e-15)


@LAGS
def test_decisions_lie_inside_their_window_with_a_bar_of_growth_after_them(lag: int) -> None:
    process = build_process(random_prices(), execution_lag=lag)
    assert process.decision_bars(range(0, 60)) == range(max(lag, 1), 59)
    assert process.decision_bars(range(20, 40)) == range(20, 39)
    assert process.decision_bars(range(20, 999)) == range(20, 59)
    observation = process.observe(process.start(np.array([20])))
    assert observation["market"][0, 0] == 20 - lag
    assert observation["assets"][0, 0].tolist() == [20 - lag, 20 - lag, 1.0]


@LAGS
def test_cash_that_earns_is_no_skill(lag: int) -> None:
    """All in cash at a rate: the return counts, its Sharpe ratio is that of cash that earns nothing."""
    process = build_process(random_prices(), cash_rate=2e-4, execution_lag=lag)
    state = process.start(np.array([5]))
    cash = np.eye(process.n_weights)[-1:]
    outcome, plain = process.step(state, cash), build_process(random_prices(), execution_lag=lag).step(state, cash)
    assert outcome.components[0, 0] == pytest.approx(np.log1p(2e-4), abs=1e-15)
    assert outcome.components[0, 1] == pytest.approx(plain.components[0, 1], rel=1e-9)
    np.testing.assert_allclose(outcome.state.objective[0, :2], (1 - 1 / 252) * state.objective[0, :2], rtol=1e-9)


def test_an_account_cannot_begin_with_what_is_not_listed_or_not_known_yet() -> None:
    """Listed at bar 20: a decision that fills at bar 21 with a lag of two saw the market up to bar 19."""
    close = random_prices()
    close[:20, 0] = np.nan
    begun = build_process(close).start(np.array([10]), np.array([[0.5, 0.2, 0.1, 0.1, 0.1]]))
    np.testing.assert_allclose(begun.weights, [[0.0, 0.4, 0.2, 0.2, 0.2]], rtol=0, atol=1e-15)
    process = build_process(close, execution_lag=2)
    assert process.known_listed(np.array([21, 22]))[:, 0].tolist() == [False, True]
    wanted = np.tile([1.0, 0.0, 0.0, 0.0, 0.0], (2, 1))
    assert process.start(np.array([21, 22]), wanted).weights[:, 0].tolist() == [0.0, 1.0]


def halted_process(**env: object) -> DecisionProcess:
    """Four assets, the second halted at the bars 10 to 12, where its price is that of bar 9."""
    close = random_prices()
    close[10:13, 1] = close[9, 1]
    halted = np.zeros(close.shape, dtype=bool)
    halted[10:13, 1] = True
    return build_process(close, fields={"halted": halted}, **env)


@LAGS
@pytest.mark.parametrize("action", [[0.0, 0.9, 0.0, 0.0, 0.1], [0.5, 0.0, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]])
def test_no_share_of_a_halted_asset_is_traded_until_its_price_is_back(lag: int, action: list[float]) -> None:
    process = halted_process(execution_lag=lag)
    state, held = process.start(np.array([8]), np.array([[0.3, 0.3, 0.2, 0.1, 0.1]])), []
    for bar in range(8, 14):
        outcome = process.step(state, np.array([action]))
        wealth = state.wealth * (1.0 - outcome.cost)
        held.append((outcome.filled[0, 1] * wealth / process.panel.close[bar, 1])[0])
        state = outcome.state
    np.testing.assert_allclose(held[2:5], held[1], rtol=1e-12)
    assert abs(held[5] / max(held[1], 1e-300) - 1.0) > 1e-6 or held[1] == held[5] == 0.0


def test_the_return_over_a_halt_is_earned_on_the_bar_on_which_it_ends() -> None:
    process = halted_process(commission_bps=0.0, slippage_bps=0.0)
    only = np.array([[0.0, 1.0, 0.0, 0.0, 0.0]])
    state, gains = process.start(np.array([10]), only), []
    for _ in range(3):
        outcome = process.step(state, only)
        gains.append(float(outcome.simple_return[0]))
        state = outcome.state
    close = process.panel.close[:, 1]
    assert gains == [0.0, 0.0, pytest.approx(close[13] / close[9] - 1.0)]


def test_further_tables_of_growth_keep_the_halts() -> None:
    process = halted_process()
    other = with_growths(process, [process.growth])
    assert other.halted.shape == other.listed.shape
    assert other.halted[10 + process.panel.n_bars, 1]


@LAGS
def test_a_resumed_portfolio_is_observed_as_it_was_and_fares_as_it_would(lag: int) -> None:
    """After some decisions; at lag 0 the weights have drifted since, which is taken back to one part in 1e12."""
    process = build_process(random_prices(), execution_lag=lag)
    rng = np.random.default_rng(0)
    state = process.start(np.arange(5, 25), rng.dirichlet(np.ones(5), 20))
    for _ in range(6):
        state = process.step(state, rng.dirichlet(np.ones(5), 20)).state
    observed = process.observed_portfolio(state)
    resumed = resumed_state(process, state.bar, observed)
    np.testing.assert_allclose(process.observed_portfolio(resumed), observed, atol=1e-10)
    np.testing.assert_allclose(resumed.weights, state.weights, atol=1e-12)
    assert (resumed.wealth == process.env.initial_capital).all()
    fresh = resumed_state(process, state.bar, process.observed_portfolio(process.start(state.bar)))
    assert np.abs(process.observed_portfolio(fresh) - observed).max() > 0.1  # nothing above holds for any portfolio
    action = rng.dirichlet(np.ones(5), 20)
    again, step = process.step(resumed, action), process.step(state, action)
    np.testing.assert_allclose(again.components[:, 0], step.components[:, 0], atol=1e-12)
    np.testing.assert_allclose(again.state.weights, step.state.weights, atol=1e-12)


def test_assets_that_are_not_listed_are_not_taken_up() -> None:
    """A stored portfolio of a bar before an asset has a price holds none of it, and the rest sums to one."""
    close = random_prices()
    close[:30, 1] = np.nan
    process = build_process(close)
    observed = process.observed_portfolio(process.start(np.array([20])))
    observed[:, :5] = 0.2
    weights = resumed_state(process, np.array([20]), observed).weights
    assert weights[0, 1] == 0.0
    assert weights.sum() == pytest.approx(1.0)
