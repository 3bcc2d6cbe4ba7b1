"""Volume and volatility reach the costs of a decision, and nothing that was not known then."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finflow.config import CostsConfig, EnvConfig, ObjectivesConfig
from finflow.env.decision_process import DecisionProcess
from finflow.env.portfolio_env import PortfolioEnv
from finflow.env.process_variants import with_costs
from finflow.env.vector_env import PortfolioVectorEnv
from finflow.errors import ConfigError
from finflow.market.liquidity import liquidity_of
from finflow.market.panel import MarketPanel
from tests.env.conftest import EVERYTHING, LAGS, MOMENTS, numbered_features, panel_of, random_prices

BARS, ASSETS, WINDOW = 60, 3, 5
IMPACT = CostsConfig(impact=1.0, window=WINDOW)


def made_panel(seed: int = 0, **changes: Any) -> MarketPanel:
    volume = np.random.default_rng(seed).lognormal(13.0, 1.0, size=(BARS, ASSETS))
    return panel_of(**{"close": random_prices(BARS, ASSETS, seed), "volume": volume, **changes})


def made_process(panel: MarketPanel, costs: CostsConfig = IMPACT, **env: Any) -> DecisionProcess:
    return DecisionProcess(panel, numbered_features(panel), EnvConfig(costs=costs, **env), ObjectivesConfig(), MOMENTS)


@LAGS
def test_impact_is_that_of_the_bars_before_the_decision(lag: int) -> None:
    """All sold at bar 30: coefficient, volatility and the root of participation, recomputed from the prices."""
    panel = made_panel()
    process = made_process(panel, execution_lag=lag, commission_bps=0.0, slippage_bps=0.0)
    outcome = process.step(process.start(np.array([30]), np.array([[0.5, 0.0, 0.2, 0.3]])), np.eye(4)[-1:])
    assert panel.volume is not None
    last = 30 - lag
    bars = slice(last - WINDOW + 1, last + 1)
    volume = (panel.close * panel.volume)[bars].mean(axis=0)
    volatility = np.diff(np.log(panel.close), axis=0)[last - WINDOW : last].std(axis=0, ddof=1)
    held = np.array([0.5, 0.0, 0.2, 0.3]) * np.append(panel.close[30] / panel.close[29], 1.0)
    sold = (held / held.sum())[:-1]
    expected = (sold * volatility * np.sqrt(sold * 1e6 / volume)).sum()
    assert outcome.cost[0] == pytest.approx(expected, rel=1e-9)


@LAGS
def test_no_volume_or_price_after_the_information_set_moves_a_cost(lag: int) -> None:
    """From cash the target at a given bar does not depend on older prices, so the volume alone can be shocked."""
    panel, now = made_panel(), 30
    assert panel.volume is not None
    volume = panel.volume.copy()
    volume[now - lag + 1 :] *= 7.0
    shocked = made_panel(volume=volume)
    target = np.array([[0.2, 0.5, 0.1, 0.2]])
    costs = [
        process.step(process.start(np.array([now])), target).cost[0]
        for process in (made_process(world, execution_lag=lag) for world in (panel, shocked))
    ]
    assert costs[0] == costs[1]
    close = panel.close.copy()
    close[now - lag + 1 :] *= 1.5  # all assets alike; of the measures only those of later bars may change
    ours, theirs = liquidity_of(panel, WINDOW), liquidity_of(made_panel(close=close), WINDOW)
    for left, right in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(left[: now - lag + 1], right[: now - lag + 1])
        assert not np.array_equal(left[now - lag + 1], right[now - lag + 1])
    volume[now - lag] *= 7.0  # what was known does count
    known = made_process(made_panel(volume=volume), execution_lag=lag)
    assert known.step(known.start(np.array([now])), target).cost[0] < costs[0]


@LAGS
def test_costs_of_a_range_of_bars_know_what_their_decisions_know(lag: int) -> None:
    """As accounts that already happened are charged again, asset by asset."""
    process = made_process(made_panel(), execution_lag=lag)
    found = process.market_known(range(20, 24))
    assert found is not None
    for table, known in zip(liquidity_of(process.panel, WINDOW), found, strict=True):
        np.testing.assert_array_equal(known, table[20 - lag : 24 - lag])


def test_a_market_without_volume_is_refused_only_where_volume_is_needed() -> None:
    panel = made_panel(volume=None)
    for key in ("slippage_linear_bps", "slippage_sqrt_bps", "impact"):
        with pytest.raises(ConfigError, match=r"env\.costs .* no volume"):
            made_process(panel, CostsConfig(**{key: 1.0}))
    process = made_process(panel, CostsConfig(minimum=2.0), commission_bps=0.0, slippage_bps=0.0)
    outcome = process.step(process.start(np.array([30])), np.array([[0.2, 0.5, 0.1, 0.2]]))
    assert outcome.cost[0] == pytest.approx(6.0 / 1e6, abs=1e-15)
    assert process.liquidity is None


def test_decisions_begin_where_volume_and_volatility_are_known() -> None:
    assert made_process(made_panel(), execution_lag=2).decision_bars(range(BARS)).start == WINDOW + 2
    assert made_process(made_panel(), CostsConfig(window=WINDOW)).decision_bars(range(BARS)).start == 1


def test_what_cannot_be_measured_is_taken_to_be_dear() -> None:
    close, volume = made_panel().close.copy(), np.full((BARS, ASSETS), 1e5)
    close[:20, 1] = volume[:20, 1] = np.nan  # lists at bar 20
    volume[:, 2] = 0.0  # never trades
    measured = liquidity_of(made_panel(close=close, volume=volume), WINDOW)
    assert measured.volume[19].tolist() == [measured.volume[19, 0]] * 3
    assert measured.volume[20, 1] == 1e5 * close[20, 1]  # known from its first bar on
    assert measured.volume[25, 2] == measured.volume[25, :2].min()
    assert measured.volatility[21, 1] == max(measured.volatility[21, 0], measured.volatility[21, 2])
    assert measured.volatility[22, 1] != measured.volatility[22, 0]


def test_an_order_that_cannot_be_paid_is_reported_and_leaves_the_account_as_it_was() -> None:
    """Each asset traded costs four at least: an account of ten cannot pay for three, but for two."""
    process = made_process(made_panel(), CostsConfig(minimum=4.0), initial_capital=10.0)
    orders = np.array([[0.3, 0.3, 0.3, 0.1], [0.3, 0.3, 0.0, 0.4]])
    outcome = process.step(process.start(np.array([30, 30])), orders)
    assert outcome.cost[0] == outcome.simple_return[0] == 0.0
    np.testing.assert_array_equal(outcome.filled[0], [0.0, 0.0, 0.0, 1.0])
    assert outcome.cost[1] == pytest.approx(0.8, abs=0.01)
    together = PortfolioVectorEnv(process, range(BARS), 2)
    together.reset(options={"bars": np.array([30, 30])})
    *_, info = together.step(orders)
    assert info["refused"].tolist() == [True, False]
    assert info["turnover"][0] == 0.0 < info["turnover"][1]
    for order, refused in zip(orders, (True, False), strict=True):
        alone = PortfolioEnv(process, range(BARS))
        alone.reset(options={"bar": 30})
        *_, info = alone.step(order)
        assert info["refused"] is refused


def test_another_price_of_trading_leaves_the_first_process_as_it_was() -> None:
    process = made_process(made_panel(), CostsConfig(), execution_lag=0)
    dear = with_costs(process, EnvConfig(commission_bps=500.0, slippage_bps=0.0, costs=IMPACT, initial_capital=5e6))
    target = np.array([[0.4, 0.1, 0.2, 0.3]])
    cheap = process.step(process.start(np.array([30])), target).cost[0]
    assert cheap == pytest.approx(0.0015 * 0.7 / (1.0 + 0.0015 * 0.7), abs=1e-14)
    assert dear.start(np.array([30])).wealth[0] == 5e6
    assert dear.step(dear.start(np.array([30])), target).cost[0] > 0.03
    assert process.liquidity is None
    assert dear.env.execution_lag == process.env.execution_lag


@settings(max_examples=6)
@given(seed=st.integers(0, 2**32 - 1), capital=st.sampled_from([10.0, 1e3, 1e6, 1e12]))
def test_no_cost_takes_more_than_there_is(seed: int, capital: float) -> None:
    """Dear costs, wild prices, an asset that ends: an account may be worn down to where its orders are refused."""
    rng = np.random.default_rng(seed)
    close = random_prices(BARS, ASSETS, seed, deviation=0.5)
    close[15:, 0] = np.nan
    costs = EVERYTHING.model_copy(update={"impact": 5.0, "slippage_linear_bps": 5000.0})
    panel = made_panel(seed, close=close, volume=np.where(np.isnan(close), np.nan, made_panel(seed).volume))
    process = made_process(panel, costs, initial_capital=capital)
    state = process.start(np.full(4, 10), rng.dirichlet(np.full(4, 0.3), size=4))
    np.testing.assert_allclose(state.wealth, capital, rtol=0, atol=0)
    for _ in range(12):
        outcome = process.step(state, rng.dirichlet(np.full(4, 0.3), size=4))
        refused = np.zeros(4, dtype=np.bool_) if outcome.refused is None else outcome.refused
        assert (outcome.cost[refused] == 0.0).all()
        assert ((outcome.cost >= 0.0) & (outcome.cost < 1.0)).all()
        assert (outcome.state.wealth > 0.0).all()
        assert np.isfinite(outcome.reward).all()
        np.testing.assert_allclose(outcome.filled.sum(axis=1), 1.0, rtol=0, atol=1e-12)
        np.testing.assert_array_equal(outcome.terminated, outcome.state.wealth <= 1e-6 * capital)
        state = outcome.state
